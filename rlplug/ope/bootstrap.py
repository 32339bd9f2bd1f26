"""Bootstrap intervals of many estimates at once, from the same samples of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy

from rlplug.ope.estimators import Floats, Terms

__all__ = ["Interval", "bootstrap", "intervals"]

_ROWS = 8192
"""Rows that are weighted at a time."""


@attrs.frozen(kw_only=True)
class Interval:
    """An estimate and its percentile interval."""

    value: float
    low: float
    high: float
    standard_error: float


def intervals(
    terms: Mapping[str, Terms],
    *,
    samples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    weights: Floats | None = None,
) -> dict[str, Interval]:
    """Each estimate with its interval; `weights` say how many rows each row stands for."""
    drawn = bootstrap(terms, samples=samples, seed=seed, weights=weights)
    return {name: interval(values, confidence) for name, values in drawn.items()}


def interval(values: Floats, confidence: float = 0.95) -> Interval:
    """The interval of an estimate, the first value, and of its bootstrap samples, the others."""
    value, drawn = float(values[0]), values[1:]
    drawn = drawn[numpy.isfinite(drawn)]
    if not math.isfinite(value) or not len(drawn):
        return Interval(value=value, low=math.nan, high=math.nan, standard_error=math.nan)
    tail = (1 - confidence) / 2
    low, high = numpy.quantile(drawn, [tail, 1 - tail])
    return Interval(
        value=value, low=float(low), high=float(high), standard_error=float(drawn.std())
    )


def bootstrap(
    terms: Mapping[str, Terms],
    *,
    samples: int = 200,
    seed: int = 0,
    weights: Floats | None = None,
) -> dict[str, Floats]:
    """The estimate on all rows, then on each bootstrap sample, (1 + samples,), by name.

    Few rows are drawn with replacement; many are counted as often as Poisson variables of mean 1
    say, which is the same for them (Chamandy et al. 2012) and costs one matrix product. All
    estimates see the same samples, so that they can be subtracted.
    """
    # Estimates share columns, such as the importance weights.
    columns: dict[int, Floats] = {
        id(column): column for one in terms.values() for column in one.columns
    }
    places: dict[int, slice] = {}
    width = 0
    for key, column in columns.items():
        places[key] = slice(width, width + column[:1].size)
        width = places[key].stop
    n = len(next(iter(columns.values())))
    counts, few = _PoissonCounts(samples, seed), numpy.random.default_rng(seed)
    sums, totals = numpy.zeros((1 + samples, width)), numpy.zeros(1 + samples)
    for start in range(0, n, _ROWS):
        part = slice(start, min(start + _ROWS, n))
        matrix = numpy.empty((part.stop - part.start, width))
        for key, column in columns.items():
            matrix[:, places[key]] = column[part].reshape(len(matrix), -1)
        given = None if weights is None else weights[part]
        drawn = (
            few.multinomial(n, numpy.full(n, 1 / n), samples) * 1.0
            if n <= _ROWS
            else (counts.draw(part.stop - start))
        )
        if given is not None:
            matrix = matrix * given[:, None]
        sums[0] += matrix.sum(0)
        sums[1:] += drawn @ matrix
        totals[0] += part.stop - start if given is None else given.sum()
        totals[1:] += drawn.sum(1) if given is None else drawn @ given
    means = sums / totals[:, None]
    return {
        name: one.combine(*(means[:, places[id(column)]] for column in one.columns))
        for name, one in terms.items()
    }


class _PoissonCounts:
    """Draws how often rows count: 16 random bits each, and a table."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples = samples
        self._random = numpy.random.default_rng(seed)
        probabilities = [math.exp(-1) / math.factorial(k) for k in range(9)]
        # Counts above 8 are rarer than one in 2**16: rounded, the last bound is 2**16.
        bounds = numpy.round(numpy.cumsum(probabilities) * 2**16).astype(int)
        self._table = numpy.repeat(numpy.arange(9.0), numpy.diff(bounds, prepend=0))

    def draw(self, rows: int) -> Any:
        """Counts (samples, rows)."""
        words = -(-self._samples * rows // 4)
        bits = self._random.integers(0, 2**64, words, dtype=numpy.uint64).view(numpy.uint16)
        return self._table.take(bits[: self._samples * rows]).reshape(self._samples, rows)
