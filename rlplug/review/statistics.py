"""Statistics of the scores of several runs, as rliable recommends: IQM with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.quantities import format_number

__all__ = [
    "Interval",
    "bootstrap",
    "bootstrap_rows",
    "interquartile_mean",
    "mean_interval",
    "probability_of_improvement",
]

Array = NDArray[numpy.float64]

_RESAMPLES = 2000


@attrs.frozen
class Interval:
    """An estimate with its confidence interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        numbers = (self.estimate, self.low, self.high)
        return "{} [{}, {}]".format(*map(format_number, numbers))


def interquartile_mean(scores: Array) -> Array:
    """The mean along the last axis, without the lowest and highest quarter, rounded down."""
    ordered = numpy.sort(numpy.asarray(scores, dtype=numpy.float64), axis=-1)
    quarter = ordered.shape[-1] // 4
    return numpy.asarray(ordered[..., quarter : ordered.shape[-1] - quarter].mean(axis=-1))


def bootstrap(
    scores: Sequence[float],
    statistic: Callable[[Array], Array] = interquartile_mean,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The statistic with its percentile bootstrap interval, reproducible by the seed."""
    values = numpy.asarray(scores, dtype=numpy.float64)
    low, high = _interval(statistic(values[_drawn(len(values), seed)]), confidence)
    return Interval(float(statistic(values)), float(low), float(high))


def bootstrap_rows(rows: Array, *, confidence: float = 0.95, seed: int = 0) -> tuple[Array, Array]:
    """The intervals of the mean over the rows, one per column; each resample draws whole rows."""
    drawn = _drawn(len(rows), seed)
    # How often each row was drawn, instead of a copy of the rows for each resample.
    counts = numpy.apply_along_axis(numpy.bincount, 1, drawn, minlength=len(rows))
    low, high = _interval(counts @ rows / len(rows), confidence)
    return low, high


def _drawn(count: int, seed: int) -> NDArray[numpy.int64]:
    """The indices of each resample."""
    return numpy.random.default_rng(seed).integers(count, size=(_RESAMPLES, count))


def _interval(statistics: Array, confidence: float) -> Array:
    tail = (1 - confidence) / 2 * 100
    return numpy.asarray(numpy.percentile(statistics, [tail, 100 - tail], axis=0))


def mean_interval(scores: Sequence[float]) -> Interval:
    """The mean with its bootstrap interval."""
    return bootstrap(scores, lambda values: numpy.asarray(values.mean(axis=-1)))


def probability_of_improvement(
    scores: Sequence[float], others: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """How likely a run of the first is better than one of the others; of equal ones, one half."""
    first, second = (numpy.asarray(one, dtype=numpy.float64) for one in (scores, others))
    wins = (numpy.sign(first[:, None] - second[None, :]) + 1) / 2
    rows, columns = _drawn(len(first), seed), _drawn(len(second), seed + 1)
    drawn = wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
    low, high = _interval(drawn, confidence)
    return Interval(float(wins.mean()), float(low), float(high))
