"""Metrics of a run as text: last values by area, a curve of block letters, CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from rlplug.review.history import History, Series
from rlplug.review.record import BEST_RETURN, BEST_STEP, HEADLINES

__all__ = ["as_csv", "curve_metric", "grouped", "last_values", "sparkline"]

_LEVELS = "▁▂▃▄▅▆▇█"
_BEST = (BEST_RETURN, BEST_STEP)


def curve_metric(history: History) -> str:
    """The metric whose curve tells how a run went; of evaluations only where there are several."""
    known = [name for name in HEADLINES if name in history]
    several = [name for name in known if len(history[name].steps) > 1]
    return next(iter(several or known), "")


def last_values(history: History) -> dict[str, float]:
    """The last value of each metric."""
    return {name: float(one.values[-1]) for name, one in history.items() if len(one.values)}


def grouped(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Values by the first parts of their names; the best evaluation is left out."""
    areas: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        if name not in _BEST:
            area, slash, rest = name.partition("/")
            areas.setdefault(area if slash else "", {})[rest or name] = value
    return areas


def sparkline(series: Series, width: int) -> str:
    """A curve of block letters: the mean of each of `width` equal parts of the steps."""
    points = zip(series.steps.tolist(), series.values.tolist(), strict=True)
    known = [(step, value) for step, value in points if math.isfinite(value)]
    if not known or width < 1:
        return ""
    first, last = known[0][0], known[-1][0]
    parts: list[list[float]] = [[] for _ in range(min(width, len(known)))]
    for step, value in known:
        place = (step - first) / (last - first) if last > first else 0.0
        parts[min(int(place * len(parts)), len(parts) - 1)].append(value)
    means: Sequence[float | None] = [sum(part) / len(part) if part else None for part in parts]
    seen = [mean for mean in means if mean is not None]
    low, spread = min(seen), max(seen) - min(seen)
    levels = len(_LEVELS) - 1
    return "".join(
        " " if mean is None else _LEVELS[round((mean - low) / spread * levels) if spread else 0]
        for mean in means
    )


def as_csv(history: History) -> str:
    """A line per step; where a metric was not reported, its cell is empty."""
    cells: dict[int, dict[str, float]] = {}
    for name, (steps, values) in history.items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            cells.setdefault(int(step), {})[name] = value
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", *history])
    for step in sorted(cells):
        table.writerow([step, *(cells[step].get(name, "") for name in history)])
    return text.getvalue()
