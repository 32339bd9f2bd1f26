"""Plain values on a small network, in closed form: the same numbers without autograd's dispatch."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from rlplug import Batch, Loss
from rlplug_dqn.dense import Dense, known_loss

__all__ = ["Plain"]


class Plain:
    """A network of plain values and its target, both in closed form."""

    def __init__(self, online: Dense, target: Dense, *, double: bool, first_action: int) -> None:
        self._online = online
        self._target = target
        self._double = double
        self._first_action = first_action
        self._starts = numpy.zeros(0, numpy.int64)

    def fits(self) -> bool:
        """Whether this still stands for the networks."""
        return self._online.fits() and self._target.fits()

    def targets(self, batch: Batch, gamma: float) -> Any:
        """What each row is learned towards; a truncated row goes on, a terminated one does not."""
        after = batch["next_observations"]
        values = judged = self._target.forward(after)[0].numpy()
        if self._double:
            judged = self._online.forward(after)[0].numpy()
        if "next_action_mask" in batch:
            judged = numpy.where(batch.array("next_action_mask"), judged, -numpy.inf)
        if judged is values:
            following = values.max(1)
        else:
            following = values.take(self._places(values) + judged.argmax(1))
        following *= batch.array("discounts") if "discounts" in batch else gamma
        following *= ~batch.array("terminated")
        following += batch.array("rewards")
        return following

    def loss(self, batch: Batch, kind: str) -> Loss:
        """The loss of a minibatch, its gradients found at once."""
        outputs, seen = self._online.forward(batch["observations"])
        values = outputs.numpy()
        count = len(values)
        taken = self._places(values) + (batch.array("actions") - self._first_action)
        values = values.take(taken)
        errors = values - batch.array("targets")
        if kind == "mse":
            slopes, losses = 2 * errors, errors * errors
        else:
            slopes = errors.clip(-1, 1)
            losses = slopes * (errors - 0.5 * slopes)
        if "weights" in batch:
            weights = batch.array("weights")
            slopes, losses = slopes * weights, losses * weights
        slopes /= count
        spread = torch.zeros_like(outputs)
        spread.numpy().put(taken, slopes)
        sizes = numpy.abs(errors)
        total = numpy.add.reduce
        return Loss(
            known_loss(
                float(total(losses)) / count,
                self._online.params,
                self._online.backward(spread, seen),
            ),
            metrics={
                "q_mean": float(total(values)) / count,
                "surprise": float(total(sizes)) / count,
            },
            rows={"priority": torch.from_numpy(sizes)} if "indices" in batch else {},
        )

    def _places(self, values: Any) -> Any:
        """Where each row begins among all numbers."""
        rows, width = values.shape
        if len(self._starts) != rows:
            self._starts = numpy.arange(0, rows * width, width)
        return self._starts
