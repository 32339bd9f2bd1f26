"""Bandit experience: contexts, arms, rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy
from attrs import Factory
from numpy.typing import NDArray

from rlplug.batch import Batch
from rlplug.errors import RequestError
from rlplug.spaces import as_array

__all__ = ["BanditBatch"]

_COLUMNS = ("label", "weights", "importance_weight", "action_log_prob", "action_mask")
_OBSERVED = ("context", "arms", "arm_ids", "action_mask")


@attrs.frozen(kw_only=True, eq=False)
class BanditBatch:
    """n rows of bandit experience as NumPy arrays, shapes and values checked.

    Columns are named as in a `Batch`, whose `observations` hold context, arms and action mask.
    `validate=False` skips the checks, for readers that check what they learn from.
    """

    context: NDArray[Any] | None = None
    """Features of the context, (n, features); None if arms are chosen without one."""
    actions: NDArray[Any]
    """The arm chosen, (n,)."""
    rewards: NDArray[Any]
    """Its reward, (n,)."""
    arms: NDArray[Any] | None = None
    """Features of every arm, (n, arms, features), of absent ones any; None where arms are fixed."""
    arm_ids: NDArray[Any] | None = None
    """Which arm stands at each index, (n, arms); None if the same arms always do."""
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
    _validate: bool = attrs.field(default=True, repr=False)

    def __attrs_post_init__(self) -> None:
        if not self._validate:
            return
        self._as_arrays()
        observed = (getattr(self, name) for name in _OBSERVED)
        first = next((column for column in observed if column is not None), self.rewards)
        n = len(first) if first.ndim else 0
        if self.context is not None:
            _check("context", self.context, n, 2)
        _check("rewards", self.rewards, n, 1)
        if self.arms is not None:
            _check("arms", self.arms, n, 3, self.action_mask)
        for name in ("action_mask", "arm_ids"):
            column = getattr(self, name)
            if column is not None:
                _check_per_arm(name, column, n, self.arms)
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

    def _as_arrays(self) -> None:
        """Make arrays of columns that are lists or tensors."""
        label_is_reward = self.label is self.rewards
        for name in (*_OBSERVED, *_COLUMNS, "actions", "rewards"):
            column = getattr(self, name)
            if column is None or isinstance(column, numpy.ndarray):
                continue
            try:
                object.__setattr__(self, name, as_array(column))
            except ValueError as error:
                raise RequestError(f"column {name!r} is no array: {error}.") from error
        if label_is_reward:
            object.__setattr__(self, "label", self.rewards)

    @classmethod
    def of(
        cls,
        batch: Batch,
        *,
        read: Callable[[str], Any] | None = None,
        validate: bool = True,
    ) -> BanditBatch:
        """The rows of a `Batch`, without copies where it is on the CPU.

        `read` gives the columns by name: `batch.array` as a rule, `batch.__getitem__` for tensors,
        which are not validated.
        """
        read = batch.array if read is None else read
        missing = [name for name in ("observations", "actions", "rewards") if name not in batch]
        if missing:
            raise RequestError(
                f"column {missing[0]!r} is missing from the batch; its columns are: "
                f"{', '.join(batch) or 'none'}."
            )
        given = {name: read(name) for name in _COLUMNS if name in batch}
        seen = read("observations")
        if isinstance(seen, Mapping):
            given |= {name: seen[name] for name in _OBSERVED if name in seen}
        else:
            given["arms" if seen.ndim == 3 else "context"] = seen
        return cls(actions=read("actions"), rewards=read("rewards"), validate=validate, **given)

    def to_batch(self) -> Batch:
        """The same rows as a `Batch`, without copies."""
        columns: dict[str, Any] = {"actions": self.actions, "rewards": self.rewards}
        columns["observations"] = self.observations
        if self.label is not self.rewards:
            columns["label"] = self.label
        for name in ("weights", "importance_weight", "action_log_prob"):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
        return Batch(columns)

    @property
    def observations(self) -> Any:
        """What an algorithm chose from: a mapping, or the context alone if there is no more."""
        if self.arms is None and self.action_mask is None and self.arm_ids is None:
            return numpy.empty((len(self), 0)) if self.context is None else self.context
        seen = {name: getattr(self, name) for name in _OBSERVED}
        return {name: column for name, column in seen.items() if column is not None}

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rewards)

    @property
    def num_arms(self) -> int | None:
        """The number of arms, if arm features, ids or the mask show it."""
        for column in (self.arms, self.action_mask, self.arm_ids):
            if column is not None:
                return int(column.shape[1])
        return None

    @property
    def weighted(self) -> bool:
        """Whether any row counts for more or less than one."""
        return self.weights is not None or self.importance_weight is not None

    @property
    def effective_weight(self) -> Any:
        """Weight times importance weight, (n,)."""
        if self.weights is None:
            given = self.importance_weight
            return numpy.ones(len(self)) if given is None else given
        return (
            self.weights
            if self.importance_weight is None
            else self.weights * self.importance_weight
        )

    @property
    def chosen_arm(self) -> NDArray[Any]:
        """Features of the chosen arms, (n, features)."""
        if self.arms is None:
            raise RequestError("column 'arms' is missing: fixed arms have no features.")
        chosen: NDArray[Any] = self.arms[numpy.arange(len(self)), self.actions]
        return chosen


def _check(name: str, column: NDArray[Any], n: int, dimensions: int, among: Any = None) -> None:
    """Refuse shapes other than (n, …), and numbers that are not finite `among` those present."""
    if column.ndim != dimensions or len(column) != n:
        expected = {1: f"({n},)", 2: f"({n}, features)", 3: f"({n}, arms, features)"}
        raise RequestError(
            f"column {name!r}: expected shape {expected[dimensions]}, found {column.shape}."
        )
    if column.dtype.kind not in "biuf":
        raise RequestError(f"column {name!r}: expected numbers, found {column.dtype}.")
    # The sum of squares is finite if all numbers are: one call instead of a mask.
    if not math.isfinite(numpy.vdot(column, column)):
        bad = ~numpy.isfinite(column)
        if among is not None and among.shape == column.shape[:2]:
            bad &= (among != 0)[:, :, None]
        _refuse(name, column, bad, "must be finite")


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


def _check_per_arm(name: str, column: NDArray[Any], n: int, arms: NDArray[Any] | None) -> None:
    count = "arms" if arms is None else str(arms.shape[1])
    if (
        column.ndim != 2
        or len(column) != n
        or (arms is not None and column.shape[1] != arms.shape[1])
    ):
        raise RequestError(f"column {name!r}: expected shape ({n}, {count}), found {column.shape}.")
    if column.dtype.kind not in "biu":
        expected = "0 and 1 or booleans" if name == "action_mask" else "whole numbers"
        raise RequestError(f"column {name!r}: expected {expected}, found {column.dtype}.")
