"""Choose the arm of the highest value among those present, with ties broken at random."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug import Acted
from rlplug.bandits.probability import allowed_arms

__all__ = ["TOLERANCE", "choose", "with_log_prob"]

TOLERANCE = 1e-12
"""Values that differ by less, relative to the best or to 1, are tied: they differ by rounding."""


def choose(values: Any, mask: Any, random: numpy.random.Generator | None) -> Any:
    """The arm of the highest value in each row of (n, arms), among those that the mask allows.

    Ties are broken uniformly at random; without a generator, in favour of the first arm.
    A best value that is not finite raises FloatingPointError.
    """
    if mask is not None:
        values = numpy.where(allowed_arms(mask, values.shape), values, -numpy.inf)
    if len(values) == 1:
        return numpy.array([_choose_one(values[0], random)])
    best = values.argmax(1)
    # argmax returns the place of a NaN if there is one.
    top = values[numpy.arange(len(values)), best]
    if not numpy.isfinite(top).all():
        raise FloatingPointError
    if random is not None:
        tolerance = TOLERANCE * numpy.maximum(1.0, abs(top))
        tied = values >= (top - tolerance)[:, None]
        rows = numpy.flatnonzero(tied.sum(1) > 1)
        if len(rows):
            draws = random.random((len(rows), values.shape[1]))
            best[rows] = numpy.where(tied[rows], draws, -1.0).argmax(1)
    return best


def with_log_prob(acted: Acted, probabilities: Any) -> Acted:
    """The same with the log-probability of each choice, out of those of all arms (n, arms)."""
    arms = acted.actions.numpy() if isinstance(acted.actions, Tensor) else acted.actions
    chosen = probabilities[numpy.arange(len(arms)), arms]
    found: Any = numpy.log(numpy.maximum(chosen, _SMALLEST)).astype(numpy.float32)
    if isinstance(acted.actions, Tensor):
        found = torch.from_numpy(found)
    return Acted(acted.actions, extras={**acted.extras, "log_prob": found})


_SMALLEST = 1e-30
"""Of a probability that was found to be 0 by rounding."""


def _choose_one(values: Any, random: numpy.random.Generator | None) -> int:
    """As `choose`, for the values (arms,) of one row: single decisions should be fast."""
    best = int(values.argmax())
    top = values.item(best)
    if not math.isfinite(top):
        raise FloatingPointError
    if random is not None:
        least = top - TOLERANCE * max(1.0, abs(top))
        (tied,) = (values >= least).nonzero()
        if len(tied) > 1:
            return int(tied[random.integers(len(tied))])
    return best
