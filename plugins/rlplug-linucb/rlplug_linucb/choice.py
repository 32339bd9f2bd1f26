"""Choose the best of several arms, fairly where several are best."""

from __future__ import annotations

import math
from typing import Any

import numpy
from torch import Tensor

from rlplug.errors import RunFailedError

__all__ = ["choose", "choose_one"]

_SLACK = 1e-12
"""Arms of the same worth differ by rounding: so much of the value, or of 1, is a tie."""


def choose(values: Any, mask: Any, random: numpy.random.Generator | None) -> Any:
    """The arm of the highest value in each row of (n, arms), among those the mask allows.

    Ties go to any of the best with equal chance; without a generator, to the first.
    A best value that is no finite number is a FloatingPointError.
    """
    if mask is not None:
        values = _masked(values, mask)
    best = values.argmax(1)
    # argmax prefers a NaN to any number.
    top = values[numpy.arange(len(values)), best]
    if not numpy.isfinite(top).all():
        raise FloatingPointError
    if random is not None:
        slack = _SLACK * numpy.maximum(1.0, abs(top))
        tied = values >= (top - slack)[:, None]
        rows = numpy.flatnonzero(tied.sum(1) > 1)
        if len(rows):
            draws = random.random((len(rows), values.shape[1]))
            best[rows] = numpy.where(tied[rows], draws, -1.0).argmax(1)
    return best


def choose_one(values: Any, mask: Any, random: numpy.random.Generator | None) -> int:
    """As `choose`, for the values (arms,) of one row and a mask (1, arms)."""
    if mask is not None:
        values = _masked(values, mask)[0]
    best = int(values.argmax())
    top = values.item(best)
    if not math.isfinite(top):
        raise FloatingPointError
    if random is not None:
        least = top - _SLACK * max(1.0, abs(top))
        # The next best is found sooner than all that are as good.
        values[best] = -math.inf
        next_best = values.item(values.argmax())
        values[best] = top
        if next_best >= least:
            (tied,) = (values >= least).nonzero()
            return int(tied[random.integers(len(tied))])
    return best


def _masked(values: Any, mask: Any) -> Any:
    if isinstance(mask, Tensor):
        mask = mask.cpu().numpy()
    allowed = numpy.asarray(mask) != 0
    missing = numpy.flatnonzero(~allowed.any(1))
    if len(missing):
        raise RunFailedError(
            f"rlplug-linucb: the action mask of row {missing[0]} allows no arm.",
            "try: an environment that always has an arm to choose",
        )
    return numpy.where(allowed, values, -numpy.inf)
