"""Plain values on a small network, in closed form: the same numbers without autograd's dispatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import torch

from rlplug import Batch, Loss
from rlplug.nn import Network
from rlplug_dqn.dense import Dense, known_loss

if TYPE_CHECKING:
    from rlplug_dqn.module import DQNModule

__all__ = ["plain_loss", "plain_targets"]


def plain_targets(module: DQNModule, batch: Batch) -> Any:
    """What each row is learned towards, on arrays."""
    after = batch.array("next_observations")
    target = module.target.model
    assert isinstance(target, Network)
    values, _ = target.act(after)
    judged = module.network.act(after)[0] if module.is_double else values
    if "next_action_mask" in batch:
        judged = numpy.where(batch.array("next_action_mask"), judged, -numpy.inf)
    if judged is values:
        following = values.max(1)
    else:
        following = values[numpy.arange(len(values)), judged.argmax(1)]
    discounts = batch.array("discounts") if "discounts" in batch else module.gamma
    following = following * discounts * ~batch.array("terminated")
    following += batch.array("rewards")
    return following


def plain_loss(module: DQNModule, dense: Dense, batch: Batch, kind: str) -> Loss:
    """The loss of a minibatch, its gradients found at once."""
    outputs, seen = dense.forward(batch.array("observations"))
    count = len(outputs)
    taken = (numpy.arange(count), batch.array("actions") - module.first_action)
    values = outputs[taken]
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
    spread = numpy.zeros_like(outputs)
    spread[taken] = slopes / numpy.float32(count)
    value = float(numpy.add.reduce(losses)) / count
    return Loss(
        known_loss(value, dense.params, dense.backward(spread, seen)),
        metrics={
            "q_mean": float(numpy.add.reduce(values)) / count,
            "surprise": float(numpy.add.reduce(sizes)) / count,
        },
        rows={"priority": torch.from_numpy(sizes)},
    )
