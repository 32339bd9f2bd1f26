"""Bandit experience: contexts, arms, rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy
from attrs import Factory
from numpy.typing import NDArray

from rlplug.errors import RequestError
from rlplug.logs.checks import first_bad_value

if TYPE_CHECKING:
    from rlplug.batch import Batch

__all__ = ["BanditBatch"]

_OBSERVED = ("context", "arms", "action_mask")
_OPTIONAL = ("label", "weights", "importance_weight", "action_log_prob")
_ROLES = {"actions": "action", "rewards": "reward", "weights": "weight"}
"""What a log calls them."""
_AXES = {"context": ("features",), "arms": ("arms", "features"), "action_mask": ("arms",)}
_KINDS = {"actions": "iu", "action_mask": "biu"}
_WORDS = {"iu": "whole numbers", "biu": "0 and 1 or booleans", "biuf": "numbers"}


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
        columns = self._columns((*_OBSERVED, "actions", "rewards", *_OPTIONAL))
        for name, column in columns.items():
            self._check_shape(name, column)
        named = {_ROLES.get(name, name): name for name in columns}
        by_role = {role: columns[name] for role, name in named.items()}
        # Without features or a mask, arms are as many as their numbers say.
        arms = range(self.num_arms or int(self.actions.max(initial=0)) + 1)
        bad = first_bad_value(by_role, arms)
        if bad is not None:
            role, (row, *inner), told = bad
            where = f"row {row}" + (f", value {', '.join(map(str, inner))}" if inner else "")
            raise RequestError(f"column {named[role]!r}, {where}: {told}.")

    def _check_shape(self, name: str, column: NDArray[Any]) -> None:
        n, axes, kinds = len(self.rewards), _AXES.get(name, ()), _KINDS.get(name, "biuf")
        fits = column.ndim == 1 + len(axes) and len(column) == n
        if fits and name == "action_mask":
            fits = column.shape[1] == self.num_arms
        if not fits or column.dtype.kind not in tuple(kinds):
            expected = f"({', '.join((str(n), *axes))}{',' * (not axes)})"
            raise RequestError(
                f"column {name!r}: expected {_WORDS[kinds]} of shape {expected}, found "
                f"{column.dtype} of shape {column.shape}."
            )

    def _columns(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        """Those that there are."""
        columns = {name: getattr(self, name) for name in names}
        return {name: column for name, column in columns.items() if column is not None}

    @classmethod
    def of(cls, batch: Batch, *, validate: bool = True) -> BanditBatch:
        """The rows of a `Batch`, without copies where it is on the CPU."""
        missing = [name for name in ("observations", "actions", "rewards") if name not in batch]
        if missing:
            raise RequestError(
                f"column {missing[0]!r} is missing from the batch; its columns are: "
                f"{', '.join(batch) or 'none'}."
            )
        names = ("actions", "rewards", *_OPTIONAL, "action_mask")
        columns: dict[str, Any] = {name: batch.array(name) for name in names if name in batch}
        seen = batch.array("observations")
        if isinstance(seen, Mapping):
            columns |= {name: seen[name] for name in _OBSERVED if name in seen}
        else:
            columns["arms" if seen.ndim == 3 else "context"] = seen
        return cls(validate=validate, **columns)

    def to_batch(self) -> Batch:
        """The same rows as a `Batch`, without copies."""
        from rlplug.batch import Batch

        columns = self._columns(("actions", "rewards", *_OPTIONAL))
        if self.label is self.rewards:
            del columns["label"]
        return Batch({**columns, "observations": self.observations})

    @property
    def observations(self) -> Any:
        """What an algorithm chose from: a mapping, or the context alone if there is no more."""
        if self.arms is None and self.action_mask is None:
            return numpy.empty((len(self), 0)) if self.context is None else self.context
        return self._columns(_OBSERVED)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rewards)

    @property
    def num_arms(self) -> int | None:
        """The number of arms, if arm features or the mask show it."""
        shown = self.action_mask if self.arms is None else self.arms
        return None if shown is None else int(shown.shape[1])

    @property
    def weighted(self) -> bool:
        """Whether any row counts for more or less than one."""
        return self.weights is not None or self.importance_weight is not None

    @property
    def effective_weight(self) -> Any:
        """Weight times importance weight, (n,)."""
        weights, importance = self.weights, self.importance_weight
        if weights is None:
            return numpy.ones(len(self)) if importance is None else importance
        return weights if importance is None else weights * importance

    @property
    def chosen_arm(self) -> NDArray[Any]:
        """Features of the chosen arms, (n, features)."""
        if self.arms is None:
            raise RequestError("column 'arms' is missing: fixed arms have no features.")
        chosen: NDArray[Any] = self.arms[numpy.arange(len(self)), self.actions]
        return chosen
