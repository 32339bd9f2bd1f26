"""Plain values on a small network, in closed form: the same numbers without autograd's dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from rlplug import Batch, KnownLoss, Loss
from rlplug.nn import ClosedForm, Network, QHead

__all__ = ["Plain"]


class Row:
    """One number for each row of a batch: arrays are faster operands than numbers are."""

    def __init__(self, count: int, dtype: Any) -> None:
        self.numbers = numpy.arange(count)
        self.ones = numpy.ones(count, dtype)
        self.lowest = -self.ones


class Plain:
    """A network of plain values and its target, both in closed form."""

    def __init__(
        self, online: ClosedForm, target: ClosedForm, *, double: bool, first_action: int
    ) -> None:
        self._online = online
        self._target = target
        self._double = double
        self._first_action = first_action
        self._dtype = online.gradients.flat.dtype
        self._constants = Row(0, self._dtype)

    @classmethod
    def of(
        cls, network: Network, target: Network, *, double: bool, first_action: int
    ) -> Plain | None:
        """None if the networks are not as plain."""
        online, other = closed_form(network), closed_form(target)
        if online is None or other is None:
            return None
        return cls(online, other, double=double, first_action=first_action)

    def current(self) -> bool:
        """Whether this still stands for the networks."""
        return self._online.current() and self._target.current()

    def targets(self, batch: Batch, gamma: float) -> Any:
        """What each row is learned towards; a truncated row goes on, a terminated one does not."""
        after = batch.array("next_observations")
        values = judged = self._target.outputs(0, after)
        if self._double:
            judged = self._online.outputs(0, after)
        if "next_action_mask" in batch:
            judged = numpy.where(batch.array("next_action_mask").T, judged, -numpy.inf)
        if judged is values:
            following = numpy.maximum.reduce(values)
        else:
            following = values[judged.argmax(0), self._row(values.shape[1]).numbers]
        following *= batch.array("discounts") if "discounts" in batch else gamma
        numpy.putmask(following, batch.array("terminated"), 0)
        following += batch.array("rewards")
        return following

    def loss(self, module: nn.Module, batch: Batch, kind: str) -> Loss:
        """The loss of a minibatch, its gradients known."""
        outputs, trace = self._online.forward(0, batch.array("observations"))
        count = outputs.shape[1]
        row = self._row(count)
        actions = batch.array("actions")
        if self._first_action:
            actions = actions - self._first_action
        taken = actions, row.numbers
        values = outputs[taken]
        errors = values - batch.array("targets")
        if kind == "mse":
            slopes, losses = 2 * errors, errors * errors
        else:
            slopes = numpy.maximum(errors, row.lowest)
            numpy.minimum(slopes, row.ones, out=slopes)
            losses = slopes * -0.5
            losses += errors
            losses *= slopes
        if "weights" in batch:
            weights = batch.array("weights")
            slopes, losses = slopes * weights, losses * weights
        slopes /= count
        sizes = numpy.abs(errors)
        # A product with ones is the fastest sum.
        total = row.ones.dot

        def gradients(_: Mapping[str, float]) -> Mapping[str, Tensor]:
            spread = numpy.zeros(outputs.shape, outputs.dtype)
            spread[taken] = slopes
            return self._online.backward(0, trace, spread)

        return KnownLoss(
            module,
            float(total(losses)) / count,
            gradients,
            metrics={
                "q_mean": float(total(values)) / count,
                "surprise": float(total(sizes)) / count,
            },
            rows={"priority": torch.from_numpy(sizes)} if "indices" in batch else {},
        )

    def _row(self, count: int) -> Row:
        """What is the same for all batches of so many rows."""
        if len(self._constants.ones) != count:
            self._constants = Row(count, self._dtype)
        return self._constants


def closed_form(network: Network) -> ClosedForm | None:
    """A network of plain values, in closed form."""
    head, body = network.head, network.body
    if type(head) is not QHead or head.dueling or body.memory is not None:
        return None
    return ClosedForm.of(network, [(body.encoder, [*body.hidden, *head.advantage])], "network.")
