"""Checks of the columns of logged rows, and of bandit batches: the first bad value is told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

__all__ = ["first_bad_value"]

_SUM_TOLERANCE = 1e-3
"""By how much the propensities of all arms may miss 1."""

_FINITE = (
    *("context", "arms", "reward", "rewards", "label"),
    *("weight", "importance_weight", "next_context"),
)
_ABOVE_1 = 1 + 1e-6
"""Rounding may leave a probability of 1 slightly above, and its logarithm above 0."""


def first_bad_value(
    columns: Mapping[str, NDArray[Any]], arms: range
) -> tuple[str, tuple[int, ...], str] | None:
    """The role of the first value that cannot be, its indices, and what is said of it.

    `columns` are by role, `arms` the numbers that actions may have: none if they are continuous.
    """
    for role, bad, values, told in _rules(columns, arms):
        if bad.any():
            place = tuple(int(index) for index in numpy.argwhere(bad)[0])
            value = values[place]
            return role, place, "is missing or NaN" if value != value else told.format(value)
    return None


def _rules(
    columns: Mapping[str, NDArray[Any]], arms: range
) -> Iterator[tuple[str, NDArray[Any], NDArray[Any], str]]:
    """Role, where its values are bad, values that show it, and what is said of the first."""
    mask, action = columns.get("action_mask"), columns["action"]
    for role in _FINITE if arms else (*_FINITE, "action"):
        values = columns.get(role)
        if values is not None and not _is_finite(values):
            bad = ~numpy.isfinite(values)
            if mask is not None and role in ("arms", "rewards"):
                # What absent arms hold is no error.
                bad &= (mask != 0).reshape(*mask.shape, *[1] * (values.ndim - 2))
            yield role, bad, values, "is infinite"
    if arms:
        if action.dtype.kind == "f":
            yield "action", action != numpy.floor(action), action, "is {}, no whole number"
        outside = (action < arms.start) | (action >= arms.stop)
        told = f"is {{:g}}, the arms are {arms[0]} to {arms[-1]}"
        yield "action", outside, action, told
    for role in ("weight", "importance_weight"):
        if role in columns:
            yield role, columns[role] < 0, columns[role], "is {:g}, below 0"
    if "propensity" in columns:
        given = columns["propensity"]
        bad = ~((given > 0) & (given <= _ABOVE_1))
        yield "propensity", bad, given, "is {:g}, no probability above 0 and at most 1"
    if "action_log_prob" in columns:
        given = columns["action_log_prob"]
        bad = ~(numpy.isfinite(given) & (given <= 1e-5))
        yield "action_log_prob", bad, given, "is {}, no log-probability"
    chosen = numpy.arange(len(action)), action.astype(numpy.int64) - arms.start
    if "propensities" in columns:
        given = columns["propensities"]
        bad = ~((given >= 0) & (given <= _ABOVE_1))
        yield "propensities", bad, given, "is {:g}, no probability from 0 to 1"
        sums = given.sum(1)
        off = abs(sums - 1) > _SUM_TOLERANCE
        yield "propensities", off, sums, "and those of the other arms sum to {:g}"
        never = numpy.zeros(given.shape, bool)
        never[chosen] = given[chosen] <= 0
        yield "propensities", never, given, "is 0 for the arm that was chosen"
    if mask is not None:
        yield "action", mask[chosen] == 0, action, "is {:g}, an arm that is absent there"


def _is_finite(values: NDArray[Any]) -> bool:
    if values.dtype.kind != "f":
        return True
    flat = values.reshape(-1)
    # The sum of squares is finite if all numbers are: one call instead of a mask.
    return math.isfinite(numpy.vdot(flat, flat))
