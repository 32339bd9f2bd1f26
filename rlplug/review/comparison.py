"""Compare runs and groups of runs, as rliable recommends: IQM with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Literal, TypeAlias

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.quantities import format_number
from rlplug.review.history import Array, History, Series
from rlplug.review.record import BEST_RETURN, HEADLINES, REGRET, RunRecord

Which: TypeAlias = Literal["best", "last"]

_DEFAULT = "(default)"
"""Shown for an option that was not changed."""
_RESAMPLES = 2000


@attrs.frozen
class Interval:
    """An estimate with its 95% interval."""

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
    scores: Sequence[float], statistic: Callable[[Array], Array] = interquartile_mean
) -> Interval:
    """The statistic with its percentile bootstrap interval."""
    values = numpy.asarray(scores, dtype=numpy.float64)
    low, high = _bounds(statistic(values[_resamples(len(values))]))
    return Interval(float(statistic(values)), float(low), float(high))


def mean_interval(scores: Sequence[float]) -> Interval:
    """The mean with its bootstrap interval."""
    return bootstrap(scores, lambda values: numpy.asarray(values.mean(axis=-1)))


def bootstrap_rows(rows: Array) -> tuple[Array, Array]:
    """The intervals of the mean over the rows, one per column; each resample draws whole rows."""
    drawn = _resamples(len(rows))
    # How often each row was drawn, instead of a copy of the rows for each resample.
    counts = numpy.apply_along_axis(numpy.bincount, 1, drawn, minlength=len(rows))
    low, high = _bounds(counts @ rows / len(rows))
    return low, high


def probability_of_improvement(scores: Sequence[float], others: Sequence[float]) -> Interval:
    """How likely a run of the first is better than one of the others; of equal ones, one half."""
    wins = (numpy.sign(numpy.subtract.outer(scores, others)) + 1) / 2
    rows, columns = _resamples(len(scores)), _resamples(len(others), seed=1)
    low, high = _bounds(wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2)))
    return Interval(float(wins.mean()), float(low), float(high))


@attrs.frozen(kw_only=True)
class Compared:
    """A run, or several that differ in their seeds only."""

    label: str
    runs: Sequence[RunRecord]

    @property
    def env(self) -> str:
        """The environment; of runs of several, all of them."""
        return ", ".join(dict.fromkeys(run.about.env for run in self.runs))

    @property
    def status(self) -> str:
        """The statuses of its runs."""
        return ", ".join(dict.fromkeys(run.status for run in self.runs))

    def scores(self, measure: str) -> list[float]:
        """The finite values of this metric, one per run that has one."""
        values = [run.latest.get(measure, math.nan) for run in self.runs]
        return [value for value in values if math.isfinite(value)]

    def mean(self, measure: str) -> Interval | None:
        scores = self.scores(measure)
        return mean_interval(scores) if scores else None

    def iqm(self, measure: str) -> Interval | None:
        """The interquartile mean with its bootstrap interval."""
        scores = self.scores(measure)
        return bootstrap(scores) if scores else None

    def improvement(self, other: Compared, measure: str) -> Interval | None:
        """How likely a run of it is better than one of another; None for single runs."""
        scores, others = self.scores(measure), other.scores(measure)
        if min(len(scores), len(others)) < 2:
            return None
        return probability_of_improvement(scores, others)


@attrs.frozen
class Paired:
    """How much more one group has than another, seed by seed."""

    seeds: Sequence[int]
    differences: Sequence[float]
    mean: Interval


def paired(group: Compared, other: Compared) -> dict[str, Paired]:
    """By metric, over the seeds that have finished in both."""

    def by_seed(compared: Compared, name: str) -> dict[int, float]:
        runs = [run for run in compared.runs if run.status == "FINISHED" and name in run.latest]
        return {run.about.seed: run.latest[name] for run in runs}

    found = {}
    for name in (BEST_RETURN, *HEADLINES, REGRET):
        ours, theirs = by_seed(group, name), by_seed(other, name)
        seeds = [seed for seed in ours if seed in theirs]
        differences = [ours[seed] - theirs[seed] for seed in seeds]
        if seeds:
            found[name] = Paired(seeds, differences, mean_interval(differences))
    return found


def measure_of(runs: Sequence[RunRecord], which: Which = "best") -> str:
    """The metric to compare by, which all runs have: the best evaluation, or else a headline."""
    names = (BEST_RETURN, *HEADLINES) if which == "best" else HEADLINES
    return _shared(names, [run.latest for run in runs])


def differing(compared: Sequence[Compared]) -> dict[str, list[str]]:
    """Option → the value of each, of those that are not the same in all."""
    rows = [_options(one.runs) for one in compared]
    names = dict.fromkeys(name for row in rows for name in row)
    table = {name: [row.get(name, _DEFAULT) for row in rows] for name in names}
    return {name: values for name, values in table.items() if len(set(values)) > 1}


def curves_of(
    compared: Sequence[Compared], histories: Mapping[str, History]
) -> tuple[str, dict[str, list[Series]]]:
    """The metric that all runs have a curve of, and the curves of each; by run ids."""
    every = [histories[run.run_id] for one in compared for run in one.runs]
    long = [{name for name, one in history.items() if len(one.steps) > 1} for history in every]
    name = _shared(HEADLINES, long) or _shared(HEADLINES, every)
    if not name:
        return "", {}
    curves = {one.label: [histories[run.run_id][name] for run in one.runs] for one in compared}
    return name, curves


def _shared(names: Sequence[str], metrics: Sequence[Container[str]]) -> str:
    """The first name that all have; empty without one."""
    return next((name for name in names if all(name in one for one in metrics)), "")


def _options(runs: Sequence[RunRecord]) -> dict[str, str]:
    """What was run; where the runs differ, all values."""
    changed = sorted({name for run in runs for name in run.about.options})
    rows = []
    for about in (run.about for run in runs):
        facts = {"algorithm": about.algorithm, "env": about.env, "steps": f"{about.steps:,}"}
        options = {name: about.options.get(name, _DEFAULT) for name in changed}
        rows.append({**facts, "seed": str(about.seed), **options})
    return {name: ", ".join(dict.fromkeys(row[name] for row in rows)) for name in rows[0]}


def _resamples(count: int, seed: int = 0) -> NDArray[numpy.int64]:
    """The indices of each resample."""
    return numpy.random.default_rng(seed).integers(count, size=(_RESAMPLES, count))


def _bounds(statistics: Array) -> Array:
    return numpy.asarray(numpy.percentile(statistics, [2.5, 97.5], axis=0))
