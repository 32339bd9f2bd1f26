"""Classification as a bandit: the reward says whether the chosen class was right."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.bandits.environments import BanditEnv, BanditVectorEnv, Rounds
from rlplug.bandits.table import NAMES, PREPROCESSING, Table, load_table
from rlplug.config import one_of, option

__all__ = ["ClassificationBandit", "ClassificationBanditEnv", "ClassificationBanditVectorEnv"]


def _table(value: Any) -> str | None:
    if isinstance(value, str | Table):
        return None
    return f"must be a file, one of {', '.join(NAMES)}, or a Table, got {value!r}"


@attrs.frozen(kw_only=True)
class ClassificationBandit:
    """Rows are contexts, classes are arms; the right class has reward 1. Each pass is shuffled."""

    table: Any = option(  # noqa: RUF009 # makes a field; no default is shared
        "digits", f"A .csv, .parquet or .npz file, or one of {', '.join(NAMES)}.", _table
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
        # Load the table now, so that errors come when the environment is made.
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
        # A constant column would make a Box of width 0.
        return spaces.Box(low, numpy.where(low == high, low + 1.0, high), dtype=numpy.float64)

    def start(self, seed: int) -> _RowSource:
        """Start with the first pass."""
        return _RowSource(self.rows)


class ClassificationBanditEnv(BanditEnv):
    """`ClassificationBandit-v0`, one environment."""

    kind = ClassificationBandit


class ClassificationBanditVectorEnv(BanditVectorEnv):
    """`ClassificationBandit-v0`, n environments at once."""

    kind = ClassificationBandit


class _RowSource:
    """Draws every row once per pass, each pass in a new random order."""

    def __init__(self, rows: Table) -> None:
        self._rows = rows
        self._order: NDArray[numpy.int64] = numpy.empty(0, dtype=numpy.int64)

    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        while len(self._order) < steps * n:
            one_pass = random.permutation(len(self._rows.labels))
            self._order = numpy.concatenate([self._order, one_pass])
        drawn, self._order = self._order[: steps * n], self._order[steps * n :]
        flat = numpy.zeros((steps * n, len(self._rows.classes)))
        flat[numpy.arange(steps * n), self._rows.labels[drawn]] = 1.0
        rewards = flat.reshape(steps, n, -1)
        return Rounds(
            observations=self._rows.features[drawn].reshape(steps, n, -1),
            rewards=rewards,
            expected=rewards,
            best=numpy.ones((steps, n)),
        )
