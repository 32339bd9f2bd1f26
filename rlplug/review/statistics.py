"""Statistics of the scores of several runs, as rliable recommends: IQM with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy
from numpy.typing import NDArray

__all__ = ["Interval", "bootstrap", "interquartile_mean", "mean_interval"]

Array = NDArray[numpy.float64]

_RESAMPLES = 2000


@attrs.frozen
class Interval:
    """An estimate with its confidence interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:,.4g} [{self.low:,.4g}, {self.high:,.4g}]"


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
    generator = numpy.random.default_rng(seed)
    drawn = values[generator.integers(len(values), size=(_RESAMPLES, len(values)))]
    tail = (1 - confidence) / 2 * 100
    low, high = numpy.percentile(statistic(drawn), [tail, 100 - tail])
    return Interval(float(statistic(values)), float(low), float(high))


def mean_interval(scores: Sequence[float]) -> Interval:
    """The mean with its bootstrap interval."""
    return bootstrap(scores, lambda values: numpy.asarray(values.mean(axis=-1)))
