"""Bandit experience as NumPy arrays: contexts, arms, rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy
from attrs import Factory
from numpy.typing import NDArray

from rlplug.bandits.problem import Floats
from rlplug.batch import Batch
from rlplug.errors import RequestError

__all__ = ["BanditBatch"]

_COLUMNS = ("label", "weights", "importance_weight", "action_log_prob", "action_mask")


@attrs.frozen(kw_only=True, eq=False)
class BanditBatch:
    """n rows of bandit experience as NumPy arrays, shapes and values checked.

    Columns are named as in a `Batch`, whose `observations` hold context, arms and action mask.
    """

    context: NDArray[Any]
    """Features of the context, (n, features)."""
    actions: NDArray[Any]
    """The arm chosen, (n,)."""
    rewards: NDArray[Any]
    """Its reward, (n,)."""
    arms: NDArray[Any] | None = None
    """Features of every arm, (n, arms, features); None where arms are fixed."""
    action_mask: NDArray[Any] | None = None
    """Which arms are present, (n, arms); None if all are."""
    label: NDArray[Any] = attrs.field(default=Factory(lambda self: self.rewards, takes_self=True))
    """Regression target, (n,); by default the reward."""
    weights: NDArray[Any] | None = None
    """How many observations each row stands for, (n,); None: one."""
    importance_weight: NDArray[Any] | None = None
    """Corrects for how rows were drawn, (n,); None: 1."""
    action_log_prob: NDArray[Any] | None = None
    """Log-probability of the chosen arm, (n,)."""

    def __attrs_post_init__(self) -> None:
        n = _rows(self.context)
        _check("context", self.context, n, 2)
        _check("rewards", self.rewards, n, 1)
        if self.arms is not None:
            _check("arms", self.arms, n, 3)
        if self.action_mask is not None:
            _check_mask(self.action_mask, n, self.arms)
        _check_actions(self.actions, n, self.num_arms)
        if self.label is not self.rewards:
            _check("label", self.label, n, 1)
        for name in ("weights", "importance_weight"):
            column = getattr(self, name)
            if column is not None:
                _check(name, column, n, 1)
                _refuse(name, column, column < 0, "must not be negative")
        if self.action_log_prob is not None:
            _check("action_log_prob", self.action_log_prob, n, 1)
            # Rounding may leave the logarithm of 1 slightly above 0.
            above = self.action_log_prob > 1e-5
            _refuse("action_log_prob", self.action_log_prob, above, "must be at most 0")

    @classmethod
    def of(cls, batch: Batch) -> BanditBatch:
        """The rows of a `Batch`, without copies where it is on the CPU."""
        missing = [name for name in ("observations", "actions", "rewards") if name not in batch]
        if missing:
            raise RequestError(
                f"column {missing[0]!r} is missing from the batch; its columns are: "
                f"{', '.join(batch) or 'none'}."
            )
        given = {name: batch.array(name) for name in _COLUMNS if name in batch}
        seen = batch.array("observations")
        if not isinstance(seen, Mapping):
            seen = {"context": seen}
        elif "context" not in seen:
            raise RequestError(
                f"observations have no 'context'; they have: {', '.join(seen) or 'nothing'}."
            )
        given |= {name: seen[name] for name in ("context", "arms", "action_mask") if name in seen}
        return cls(actions=batch.array("actions"), rewards=batch.array("rewards"), **given)

    def to_batch(self) -> Batch:
        """The same rows as a `Batch`, without copies."""
        columns: dict[str, Any] = {"actions": self.actions, "rewards": self.rewards}
        seen = {"context": self.context, "arms": self.arms, "action_mask": self.action_mask}
        present = {name: column for name, column in seen.items() if column is not None}
        columns["observations"] = present if len(present) > 1 else self.context
        if self.label is not self.rewards:
            columns["label"] = self.label
        for name in ("weights", "importance_weight", "action_log_prob"):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
        return Batch(columns)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.context)

    @property
    def num_arms(self) -> int | None:
        """The number of arms, if arm features or the mask show it."""
        for column in (self.arms, self.action_mask):
            if column is not None:
                return int(column.shape[1])
        return None

    @property
    def effective_weight(self) -> Floats:
        """Weight times importance weight, (n,)."""
        weight = numpy.ones(len(self)) if self.weights is None else self.weights
        if self.importance_weight is None:
            return numpy.asarray(weight, dtype=numpy.float64)
        return numpy.asarray(weight * self.importance_weight, dtype=numpy.float64)

    @property
    def chosen_arm(self) -> NDArray[Any]:
        """Features of the chosen arms, (n, features)."""
        if self.arms is None:
            raise RequestError("column 'arms' is missing: fixed arms have no features.")
        chosen: NDArray[Any] = self.arms[numpy.arange(len(self)), self.actions]
        return chosen


def _rows(context: NDArray[Any]) -> int:
    if context.ndim != 2:
        raise RequestError(
            f"column 'context': expected shape (rows, features), found {context.shape}."
        )
    return len(context)


def _check(name: str, column: NDArray[Any], n: int, dimensions: int) -> None:
    """Refuse shapes other than (n, …), and numbers that are not finite."""
    if column.ndim != dimensions or len(column) != n:
        expected = {1: f"({n},)", 2: f"({n}, features)", 3: f"({n}, arms, features)"}
        raise RequestError(
            f"column {name!r}: expected shape {expected[dimensions]}, found {column.shape}."
        )
    if column.dtype.kind not in "biuf":
        raise RequestError(f"column {name!r}: expected numbers, found {column.dtype}.")
    # The sum of squares is finite if all numbers are: one call instead of a mask.
    if not math.isfinite(numpy.vdot(column, column)):
        _refuse(name, column, ~numpy.isfinite(column), "must be finite")


def _refuse(name: str, column: NDArray[Any], bad: NDArray[Any], why: str) -> None:
    """Refuse a column with bad values, naming the first."""
    if not bad.any():
        return
    place = tuple(int(index) for index in numpy.argwhere(bad)[0])
    where = f"row {place[0]}"
    if len(place) == 2:
        where += f", column {place[1]}"
    elif len(place) == 3:
        where += f", arm {place[1]}, column {place[2]}"
    raise RequestError(f"column {name!r}, {where}: {why}, found {column[place]}.")


def _check_actions(actions: NDArray[Any], n: int, num_arms: int | None) -> None:
    if actions.shape != (n,):
        raise RequestError(f"column 'actions': expected shape ({n},), found {actions.shape}.")
    if actions.dtype.kind not in "iu":
        raise RequestError(f"column 'actions': expected whole numbers, found {actions.dtype}.")
    if not n:
        return
    _refuse("actions", actions, actions < 0, "must not be negative")
    if num_arms is not None:
        _refuse("actions", actions, actions >= num_arms, f"must be below {num_arms}, the arms")


def _check_mask(mask: NDArray[Any], n: int, arms: NDArray[Any] | None) -> None:
    count = "arms" if arms is None else str(arms.shape[1])
    if mask.ndim != 2 or len(mask) != n or (arms is not None and mask.shape[1] != arms.shape[1]):
        raise RequestError(
            f"column 'action_mask': expected shape ({n}, {count}), found {mask.shape}."
        )
    if mask.dtype.kind not in "biu":
        raise RequestError(
            f"column 'action_mask': expected 0 and 1 or booleans, found {mask.dtype}."
        )
