"""A table of labelled rows as a bandit: which label is right is not told, only whether one was."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.bandits.environments import BanditEnv, BanditVectorEnv
from rlplug.bandits.problem import Rounds
from rlplug.bandits.table import (
    GENERATED_SETS,
    PREPROCESSING,
    SKLEARN_SETS,
    Table,
    load_table,
)
from rlplug.config import one_of, option

__all__ = ["ClassificationBandit", "ClassificationBanditEnv", "ClassificationBanditVectorEnv"]


_NAMES = ", ".join((*SKLEARN_SETS, *GENERATED_SETS))


def _table(value: Any) -> str | None:
    if isinstance(value, str | Table):
        return None
    return f"must be a file, one of {_NAMES}, or a Table, got {value!r}"


@attrs.frozen(kw_only=True)
class ClassificationBandit:
    """A row is a context, a class an arm; the right one pays 1. Every pass has its own order."""

    table: Any = option(  # noqa: RUF009 # makes a field; no default is shared
        "digits", f"A .csv, .parquet or .npz file, or one of {_NAMES}.", _table
    )
    label: str = option("label", "Column of a .csv or .parquet file that holds the classes.")
    preprocess: str = option(
        "unit",
        "How features are scaled: standard (mean 0, deviation 1), unit (also a column of ones, "
        "then rows of norm 1), none.",
        one_of(PREPROCESSING),
    )
    problem_seed: int | None = option(None, "Not needed: a table has no hidden parameters.")

    def __attrs_post_init__(self) -> None:
        # A table that cannot be read is found when the environment is made, not at its first use.
        _ = self.rows

    @cached_property
    def rows(self) -> Table:
        """The table, scaled."""
        table = self.table if isinstance(self.table, Table) else load_table(self.table, self.label)
        return table.preprocessed(self.preprocess)

    @property
    def num_arms(self) -> int:
        """The number of classes."""
        return len(self.rows.classes)

    @property
    def observation_space(self) -> spaces.Box:
        """One row of the table, within the bounds of its columns."""
        low, high = self.rows.features.min(axis=0), self.rows.features.max(axis=0)
        if self.preprocess == "unit":
            low, high = numpy.full_like(low, -1.0), numpy.full_like(high, 1.0)
        # A column that never changes would make a Box of no width.
        return spaces.Box(low, numpy.where(low == high, low + 1.0, high), dtype=numpy.float64)

    def start(self, seed: int) -> _RowSource:
        """The table from its first pass."""
        return _RowSource(self.rows)


class ClassificationBanditEnv(BanditEnv):
    """`ClassificationBandit-v0`, one environment."""

    kind = ClassificationBandit


class ClassificationBanditVectorEnv(BanditVectorEnv):
    """`ClassificationBandit-v0`, n environments at once."""

    kind = ClassificationBandit


class _RowSource:
    """Deals every row once per pass, each pass in a new random order."""

    def __init__(self, rows: Table) -> None:
        self._rows = rows
        self._order: NDArray[numpy.int64] = numpy.empty(0, dtype=numpy.int64)

    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        while len(self._order) < steps * n:
            one_pass = random.permutation(len(self._rows.labels))
            self._order = numpy.concatenate([self._order, one_pass])
        dealt, self._order = self._order[: steps * n], self._order[steps * n :]
        pays = numpy.zeros((steps * n, len(self._rows.classes)))
        pays[numpy.arange(steps * n), self._rows.labels[dealt]] = 1.0
        payments = pays.reshape(steps, n, -1)
        return Rounds(
            observations=self._rows.features[dealt].reshape(steps, n, -1),
            rewards=payments,
            expected=payments,
            best=numpy.ones((steps, n)),
        )
