"""What is reported of a whole rollout."""

from __future__ import annotations

import torch
from torch import Tensor

from rlplug import Batch, LearnerView

__all__ = ["explained_variance"]


def explained_variance(batch: Batch, learner: LearnerView) -> Tensor:
    """The share of the returns' variance that the values foretold: 1 all of it, 0 none."""
    returns, errors = batch["returns"], batch["advantages"]
    sums = torch.stack([_spread(errors), _spread(returns)])
    if learner.world_size > 1:
        (sums,) = learner.all_reduce([sums])
    return 1 - sums[0] / sums[1]


def _spread(numbers: Tensor) -> Tensor:
    """The sum of squared distances from the mean."""
    away = numbers - numbers.mean()
    return away @ away
