"""The history of a run: each metric's values over environment steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["NO_VALUES", "History", "Series", "frame_of", "history_of"]

Array: TypeAlias = NDArray[numpy.float64]


class Series(NamedTuple):
    """One metric, in the order of steps."""

    steps: Array
    values: Array


History: TypeAlias = Mapping[str, Series]

NO_VALUES = Series(numpy.empty(0), numpy.empty(0))


def history_of(reports: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, Series]:
    """The series of reports, each a step with its metrics; of two at one step the later counts."""
    found: dict[str, dict[int, float]] = {}
    for step, metrics in reports:
        for name, value in metrics.items():
            found.setdefault(name, {})[step] = value
    return {
        name: Series(
            *(numpy.array(column, dtype=float) for column in zip(*sorted(one.items()), strict=True))
        )
        for name, one in found.items()
    }


def frame_of(history: History) -> DataFrame:
    """A row per step and a column per metric; NaN where a metric was not reported."""
    import pandas

    columns = {
        name: pandas.Series(one.values, index=one.steps.astype(numpy.int64))
        for name, one in history.items()
    }
    return pandas.DataFrame(columns).rename_axis("step")
