"""The history of a run, each metric over environment steps, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.review.record import BEST_RETURN, BEST_STEP, HEADLINES, CheckpointRecord

if TYPE_CHECKING:
    from pandas import DataFrame

Array: TypeAlias = NDArray[numpy.float64]

_LEVELS = "▁▂▃▄▅▆▇█"


class Series(NamedTuple):
    """One metric, in the order of steps."""

    steps: Array
    values: Array


History: TypeAlias = Mapping[str, Series]

NO_VALUES = Series(numpy.empty(0), numpy.empty(0))


@attrs.frozen(kw_only=True)
class RunDetails:
    """What `RunRecord` leaves out, as it takes longer to read."""

    history: History
    plugins: Sequence[str] = ()
    """Each plugin that took part, with distribution and version."""
    command: str = ""
    """The command line that started it."""
    checkpoints: Sequence[CheckpointRecord] = ()
    """In the order of steps."""


def history_of(reports: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, Series]:
    """The series of reports, each a step with its metrics; of two at one step the later counts."""
    values: dict[str, dict[int, float]] = {}
    for step, metrics in reports:
        for name, value in metrics.items():
            values.setdefault(name, {})[step] = value
    return {
        name: Series(*numpy.array(sorted(points.items()), dtype=float).T)
        for name, points in values.items()
    }


def frame_of(history: History) -> DataFrame:
    """A row per step and a column per metric; NaN where a metric was not reported."""
    import pandas

    columns = {
        name: pandas.Series(values, index=steps.astype(numpy.int64))
        for name, (steps, values) in history.items()
    }
    return pandas.DataFrame(columns).rename_axis("step")


def curve_metric(history: History) -> str:
    """The metric whose curve tells how a run went; of evaluations only where there are several."""
    known = [name for name in HEADLINES if name in history]
    return next((name for name in known if len(history[name].steps) > 1), next(iter(known), ""))


def last_values(history: History) -> dict[str, float]:
    """The last value of each metric."""
    return {name: float(values[-1]) for name, (_, values) in history.items()}


def grouped(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Values by the first parts of their names; the best evaluation is left out."""
    areas: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        if name not in (BEST_RETURN, BEST_STEP):
            area, slash, rest = name.partition("/")
            areas.setdefault(area if slash else "", {})[rest or name] = value
    return areas


def sparkline(series: Series, width: int) -> str:
    """A curve of block letters: the mean of each of `width` equal parts of the steps."""
    steps, values = (column[numpy.isfinite(series.values)] for column in series)
    if not len(values) or width < 1:
        return ""
    count = min(width, len(values))
    parts = ((steps - steps[0]) / max(steps[-1] - steps[0], 1) * count).astype(int)
    parts = numpy.minimum(parts, count - 1)
    known, places = numpy.unique(parts, return_inverse=True)
    means = numpy.bincount(places, values) / numpy.bincount(places)
    levels = (means - means.min()) / (numpy.ptp(means) or 1.0) * (len(_LEVELS) - 1)
    letters = dict(zip(known.tolist(), (_LEVELS[round(level)] for level in levels), strict=True))
    return "".join(letters.get(part, " ") for part in range(count))


def fitting(rows: Sequence[Sequence[str]], width: int, spare: Sequence[str]) -> Iterator[str]:
    """A table without the columns that can be spared, where it is too wide."""
    for name in spare:
        if table_width(rows) > width and name in rows[0]:
            index = rows[0].index(name)
            rows = [(*row[:index], *row[index + 1 :]) for row in rows]
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns aligned to the right, but the first one."""
    widths = _widths(rows)
    for first, *others in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([f"{first:<{widths[0]}}", *cells]).rstrip()


def table_width(rows: Sequence[Sequence[str]]) -> int:
    """The characters of its lines."""
    widths = _widths(rows)
    return sum(widths) + 2 * (len(widths) - 1)


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]
