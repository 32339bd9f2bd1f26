"""The networks of RND: a fixed random one, and one that learns to predict it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplug import LearnerView
from rlplug.nn import make_encoder
from rlplug.spaces import AnySpace

__all__ = ["Distillation"]

_LARGEST = 5.0
"""Normalized features are clipped to ± 5, as in the paper."""


class Distillation(nn.Module):
    """The error of a prediction is large for observations unlike those that it learned from.

    Both networks read the features of one random encoder, normalized over all observations so
    far: random outputs of inputs that hardly vary could be predicted at once.
    """

    feature_moments: Tensor
    error_moments: Tensor

    def __init__(
        self, observation_space: AnySpace, net_arch: Sequence[int], out_features: int
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(observation_space).requires_grad_(False)
        width = self.encoder.out_features
        self.target = _mlp(width, net_arch, out_features).requires_grad_(False)
        self.predictor = _mlp(width, net_arch, out_features)
        # Count, mean and sum of squared deviations.
        moments = torch.zeros(3, int(width), dtype=torch.float64)  # type: ignore[arg-type]
        self.register_buffer("feature_moments", moments)
        self.register_buffer("error_moments", torch.zeros(3, 1, dtype=torch.float64))

    def features(self, observations: Any) -> Tensor:
        """Random features, normalized, shape (n, width)."""
        with torch.no_grad():
            features: Tensor = self.encoder(observations)
            count, mean, squares = self.feature_moments.to(features.dtype)
            deviation = (squares / count.clamp(min=1)).sqrt().clamp(min=1e-3)
            normalized = (features - mean) / torch.where(count > 0, deviation, 1.0)
            clipped: Tensor = normalized.clamp(-_LARGEST, _LARGEST)
        return clipped

    def errors(self, features: Tensor) -> Tensor:
        """The mean squared error of each row's prediction, shape (n,)."""
        errors: Tensor = ((self.predictor(features) - self.target(features)) ** 2).mean(1)
        return errors

    def bonuses(self, errors: Tensor) -> Tensor:
        """Errors divided by their standard deviation over all so far."""
        count, _, squares = self.error_moments[:, 0].to(errors.dtype)
        deviation = (squares / count.clamp(min=1)).sqrt()
        return errors / torch.where(deviation > 0, deviation, 1.0)

    @torch.no_grad()
    def absorb(self, observations: Any, errors: Tensor, learner: LearnerView) -> None:
        """Add a batch to the statistics, with those of all other learners."""
        _absorb(self.feature_moments, self.encoder(observations), learner)
        _absorb(self.error_moments, errors[:, None], learner)


def _mlp(width: Any, net_arch: Sequence[int], out_features: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in net_arch:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, out_features))


def _absorb(moments: Tensor, rows: Tensor, learner: LearnerView) -> None:
    """Combine the moments with those of new rows (Chan et al. 1979)."""
    count, mean, squares = moments
    # Sums of differences to the mean so far: sums of the values themselves would cancel.
    off = rows.to(moments.dtype) - mean
    added = torch.stack([torch.ones_like(off).sum(0), off.sum(0), (off**2).sum(0)])
    if learner.world_size > 1:
        (added,) = learner.all_reduce([added])
    new, sums, new_squares = added
    shift = sums / (count + new)
    moments.copy_(torch.stack([count + new, mean + shift, squares + new_squares - shift * sums]))
