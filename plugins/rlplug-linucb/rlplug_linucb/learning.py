"""Learn a batch in closed form, and say how far off the predictions on it were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from rlplug import Batch, LearnerView
from rlplug_linucb.module import LinUCBModule

__all__ = ["foretold", "labels_in", "learn_batch", "learn_together", "weights_in"]


def learn_batch(bandit: LinUCBModule, batch: Batch, learner: LearnerView) -> Mapping[str, float]:
    """Learn what was seen, chosen and earned; its errors were made before it was learned."""
    read = batch.array if bandit.on_cpu else batch.__getitem__
    labels = read(labels_in(batch))
    rows = (read("observations"), read("actions"), labels, weights_in(batch, read))
    if learner.world_size == 1:
        bandit.update(*rows)
    else:
        learn_together(bandit, rows, learner)
    return {**foretold(batch, labels), **bandit.fallbacks()}


def learn_together(bandit: LinUCBModule, rows: tuple[Any, ...], learner: LearnerView) -> None:
    """Learn observations, actions, labels and weights, and what other learners have of them."""
    count = torch.tensor(len(rows[1]), device=learner.device)
    # Learners that step together are as many rows ahead as the busiest of them.
    (most,) = learner.all_reduce([count], "max")
    bandit.absorb(learner.all_reduce(bandit.statistics(*rows)), int(most))


def labels_in(batch: Batch) -> str:
    """The column that is to be predicted."""
    return "label" if "label" in batch else "rewards"


def weights_in(batch: Batch, read: Callable[[str], Any]) -> Any:
    """What each row counts: the observations it stands for times its importance."""
    given = [read(name) for name in ("weights", "importance_weight") if name in batch]
    if len(given) == 2:
        return given[0] * given[1]
    return given[0] if given else None


def foretold(batch: Batch, labels: Any) -> Mapping[str, float]:
    """How far predictions were off when arms were chosen, and how unsure of them it was."""
    if "pred_label" not in batch:
        return {}
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().numpy()
    labels = labels.reshape(-1)
    means, sigma = batch.array("pred_label"), batch.array("pred_sigma")
    if len(labels) == 1:
        # Three reductions of arrays would cost more than learning the row.
        error = float(means[0]) - float(labels[0])
        return {"progressive_error": error * error, "sigma": float(sigma[0])}
    errors = means - labels
    return {
        "progressive_error": float(numpy.vdot(errors, errors)) / len(errors),
        "sigma": float(sigma.mean()),
    }
