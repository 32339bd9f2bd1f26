"""Compare runs and groups of runs: options that differ, scores with intervals, curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import attrs

from rlplug.review.history import History, Series
from rlplug.review.record import HEADLINES, RunRecord
from rlplug.review.statistics import (
    Interval,
    bootstrap,
    mean_interval,
    probability_of_improvement,
)

__all__ = ["DEFAULT", "Compared", "Measure", "Which", "curves_of", "differing", "measure_of"]

Which: TypeAlias = Literal["best", "last"]

DEFAULT = "(default)"
"""Stands for the value of an option that was not changed."""

_BEST = "return of the best evaluation"


@attrs.frozen(kw_only=True)
class Measure:
    """What runs are compared by: a number that all of them have, if there is one."""

    name: str
    """For headings; empty if there is none."""
    of: Callable[[RunRecord], float | None]


def measure_of(runs: Sequence[RunRecord], which: Which = "best") -> Measure:
    """The best evaluation if all runs have one, else the last value that all of them have."""
    if which == "best" and all(run.best is not None for run in runs):
        return Measure(name=_BEST, of=lambda run: None if run.best is None else run.best[1])
    name = _shared([run.latest for run in runs])
    return Measure(name=f"last {name}" if name else "", of=lambda run: run.latest.get(name))


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
        counts = Counter(run.status for run in self.runs)
        if len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{number} {status}" for status, number in counts.items())

    def scores(self, measure: Measure) -> list[float]:
        """One per run that has one; what is not a number is left out."""
        values = [measure.of(run) for run in self.runs]
        return [value for value in values if value is not None and math.isfinite(value)]

    def mean(self, measure: Measure) -> Interval | None:
        scores = self.scores(measure)
        return mean_interval(scores) if scores else None

    def iqm(self, measure: Measure) -> Interval | None:
        """The interquartile mean with its bootstrap interval."""
        scores = self.scores(measure)
        return bootstrap(scores) if scores else None

    def improvement(self, other: Compared, measure: Measure) -> Interval | None:
        """How likely a run of it is better than one of another; None for single runs."""
        scores, others = self.scores(measure), other.scores(measure)
        if min(len(scores), len(others)) < 2:
            return None
        return probability_of_improvement(scores, others)


def differing(compared: Sequence[Compared]) -> dict[str, list[str]]:
    """Option → the value of each, of those that are not the same in all."""
    rows = [_options(one) for one in compared]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = {name: [row.get(name, DEFAULT) for row in rows] for name in names}
    return {name: values for name, values in table.items() if len(set(values)) > 1}


def curves_of(
    compared: Sequence[Compared], histories: Mapping[str, History]
) -> tuple[str, dict[str, list[Series]]]:
    """The metric that all runs have a curve of, and the curves of each; by run ids."""
    every = [histories[run.run_id] for one in compared for run in one.runs]
    name = _shared([_curves(history) for history in every]) or _shared(every)
    if not name:
        return "", {}
    curves = {one.label: [histories[run.run_id][name] for run in one.runs] for one in compared}
    return name, curves


def _curves(history: History) -> dict[str, Series]:
    """The metrics that have more than one value."""
    return {name: one for name, one in history.items() if len(one.steps) > 1}


def _shared(metrics: Sequence[Mapping[str, object]]) -> str:
    """The first headline that all have."""
    return next((name for name in HEADLINES if all(name in one for one in metrics)), "")


def _options(compared: Compared) -> dict[str, str]:
    """What was run; where the runs differ, all values."""
    values: dict[str, dict[str, None]] = {}
    names = {name for run in compared.runs for name in run.about.options}
    for run in compared.runs:
        about = run.about
        facts = {"algorithm": about.algorithm, "env": about.env, "steps": f"{about.steps:,}"}
        facts["seed"] = ", ".join(str(run.about.seed) for run in compared.runs)
        facts |= {name: about.options.get(name, DEFAULT) for name in sorted(names)}
        for name, value in facts.items():
            values.setdefault(name, {})[value] = None
    return {name: " | ".join(seen) for name, seen in values.items()}
