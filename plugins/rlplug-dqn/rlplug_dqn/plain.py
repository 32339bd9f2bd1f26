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
        following = values[numpy.arange(len(values)), judged.argmax(1)]
        following *= batch.array("discounts") if "discounts" in batch else gamma
        following *= ~batch.array("terminated")
        following += batch.array("rewards")
        return following

    def loss(self, batch: Batch, kind: str) -> Loss:
        """The loss of a minibatch, its gradients found at once."""
        outputs, seen = self._online.forward(batch["observations"])
        count = len(outputs)
        taken = (numpy.arange(count), batch.array("actions") - self._first_action)
        values = outputs.numpy()[taken]
        errors = values - batch.array("targets")
        sizes = numpy.abs(errors)
        if kind == "mse":
            slopes, losses = 2 * errors, errors * errors
        else:
            slopes = numpy.clip(errors, -1, 1)
            losses = slopes * (errors - 0.5 * slopes)
        if "weights" in batch:
            weights = batch.array("weights")
            slopes, losses = slopes * weights, losses * weights
        spread = torch.zeros_like(outputs)
        spread.numpy()[taken] = slopes / values.dtype.type(count)
        gradients = self._online.backward(spread, seen)
        return Loss(
            known_loss(float(losses.sum()) / count, self._online.params, gradients),
            metrics={
                "q_mean": float(values.sum()) / count,
                "surprise": float(sizes.sum()) / count,
            },
            rows={"priority": torch.from_numpy(sizes)},
        )
