"""Choose the arm of the highest value among those present, with ties broken at random."""

from __future__ import annotations

import math
from typing import Any

import numpy
from torch import Tensor

from rlplug import Acted
from rlplug.errors import RunFailedError

__all__ = ["choose", "present_arms", "with_log_prob"]

_TOLERANCE = 1e-12
"""Values that differ by less, relative to the best or to 1, are tied: they differ by rounding."""


def choose(values: Any, mask: Any, random: numpy.random.Generator | None) -> Any:
    """The arm of the highest value in each row of (n, arms), among those that the mask allows.

    Ties are broken uniformly at random; without a generator, in favour of the first arm.
    A best value that is not finite raises FloatingPointError.
    """
    if mask is not None:
        values = numpy.where(present_arms(mask), values, -numpy.inf)
    if len(values) == 1:
        return numpy.array([_choose_one(values[0], random)])
    best = values.argmax(1)
    # argmax returns the place of a NaN if there is one.
    top = values[numpy.arange(len(values)), best]
    if not numpy.isfinite(top).all():
        raise FloatingPointError
    if random is not None:
        tolerance = _TOLERANCE * numpy.maximum(1.0, abs(top))
        tied = values >= (top - tolerance)[:, None]
        rows = numpy.flatnonzero(tied.sum(1) > 1)
        if len(rows):
            draws = random.random((len(rows), values.shape[1]))
            best[rows] = numpy.where(tied[rows], draws, -1.0).argmax(1)
    return best


def with_log_prob(acted: Acted, values: Any, mask: Any) -> Acted:
    """The choice with its log-probability: `choose` takes one of as many arms as are tied."""
    if mask is not None:
        values = numpy.where(present_arms(mask), values, -numpy.inf)
    top = values.max(1)
    tied = values >= (top - _TOLERANCE * numpy.maximum(1.0, abs(top)))[:, None]
    acted.extras = {**acted.extras, "log_prob": -numpy.log(tied.sum(1))}
    return acted


def present_arms(mask: Any) -> Any:
    """The mask as booleans (n, arms); a row without any arm is refused."""
    if isinstance(mask, Tensor):
        mask = mask.cpu().numpy()
    allowed = numpy.asarray(mask) != 0
    missing = numpy.flatnonzero(~allowed.any(1))
    if len(missing):
        raise RunFailedError(
            f"rlplug-linucb: the action mask of row {missing[0]} allows no arm.",
            "try: an environment that always has an arm to choose",
        )
    return allowed


def _choose_one(values: Any, random: numpy.random.Generator | None) -> int:
    """As `choose`, for the values (arms,) of one row: single decisions should be fast."""
    best = int(values.argmax())
    top = values.item(best)
    if not math.isfinite(top):
        raise FloatingPointError
    if random is not None:
        least = top - _TOLERANCE * max(1.0, abs(top))
        (tied,) = (values >= least).nonzero()
        if len(tied) > 1:
            return int(tied[random.integers(len(tied))])
    return best
