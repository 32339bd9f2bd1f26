"""Checks of logged rows: the first bad one is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from rlplug.errors import RequestError
from rlplug.logs.files import bad_row
from rlplug.logs.roles import Roles

__all__ = ["SUM_TOLERANCE", "check_block"]

SUM_TOLERANCE = 1e-3
"""By how much the propensities of all arms may miss 1."""

_FINITE = ("context", "arms", "reward", "rewards", "label", "weight", "next_context")
_PER_ARM = ("arms", "arm_ids", "action_mask", "propensities", "rewards")


def check_block(
    columns: Mapping[str, NDArray[Any]], roles: Roles, arms: range, path: Path, row: int
) -> None:
    """Refuse values that cannot be; `columns` by role, `row` is the number of the first.

    `arms` are the numbers that actions may have, none where they are continuous.
    """
    check = _Block(columns, roles, arms, path, row)
    for role in _PER_ARM:
        if role in columns:
            check.all_arms(role)
    for role in _FINITE:
        if role in columns:
            check.finite(role)
    if arms:
        check.actions()
    else:
        check.finite("action")
    if "weight" in columns:
        weight = columns["weight"]
        check.refuse("weight", weight < 0, lambda one: f"is {one:g}, below 0", weight)
    if "propensity" in columns:
        check.probabilities("propensity", above_zero=True)
    if "action_log_prob" in columns:
        given = columns["action_log_prob"]
        # Rounding may leave the logarithm of 1 slightly above 0.
        bad = ~(numpy.isfinite(given) & (given <= 1e-5))
        check.refuse("action_log_prob", bad, lambda one: f"is {one}, no log-probability", given)
    if "propensities" in columns:
        check.probabilities("propensities", above_zero=False)
        check.distributions()
    if "action_mask" in columns:
        check.presence()


class _Block:
    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        roles: Roles,
        arms: range,
        path: Path,
        row: int,
    ) -> None:
        self._columns, self._roles, self._arms = columns, roles, arms
        self._path, self._row = path, row

    def refuse(self, role: str, bad: NDArray[Any], what: Any, values: NDArray[Any]) -> None:
        """Refuse the first bad row; `what` makes the words of its value."""
        if not bad.any():
            return
        row, *inner = place = tuple(int(index) for index in numpy.argwhere(bad)[0])
        names = self._roles.columns[role]
        # Columns of features are numbered through all arms.
        index = 0
        if inner and len(names) > 1:
            index = int(numpy.ravel_multi_index(inner, bad.shape[1:]))
        listed = role in self._roles.lists and inner
        inside = f"(value {', '.join(map(str, inner))}) " if listed else ""
        raise bad_row(self._path, self._row + row, names[index], inside + what(values[place]))

    def finite(self, role: str) -> None:
        values = self._columns[role]
        if values.dtype.kind != "f":
            return
        flat = values.reshape(-1)
        # The sum of squares is finite if all numbers are: one call instead of a mask.
        if math.isfinite(numpy.vdot(flat, flat)):
            return
        bad = ~numpy.isfinite(values)
        if role in ("arms", "rewards") and "action_mask" in self._columns:
            # What absent arms hold is no error.
            present = self._columns["action_mask"] != 0
            bad &= present[:, :, None] if values.ndim == 3 else present
        words = {True: "is missing or NaN", False: "is infinite"}
        self.refuse(role, bad, lambda one: words[bool(numpy.isnan(one))], values)

    def actions(self) -> None:
        actions = self._columns["action"]
        if actions.dtype.kind == "f":
            self.refuse("action", numpy.isnan(actions), lambda _: "is missing or NaN", actions)
            bad = actions != numpy.floor(actions)
            self.refuse("action", bad, lambda one: f"is {one}, no whole number", actions)
        first, last = self._arms[0], self._arms[-1]
        bad = (actions < first) | (actions > last)
        self.refuse(
            "action", bad, lambda one: f"is {one:g}, the arms are {first} to {last}", actions
        )

    def probabilities(self, role: str, *, above_zero: bool) -> None:
        given = self._columns[role]
        low = given > 0 if above_zero else given >= 0
        bad = ~(low & (given <= 1 + 1e-6))

        def what(one: Any) -> str:
            if numpy.isnan(one):
                return "is missing or NaN"
            if one > 1:
                return f"is {one:g}, no probability: it is above 1"
            return f"is {one:g}, no probability" + (" above 0" if above_zero else "")

        self.refuse(role, bad, what, given)

    def all_arms(self, role: str) -> None:
        """One value per arm."""
        given, num_arms = self._columns[role].shape[1], len(self._arms)
        if given != num_arms:
            columns = self._roles.columns[role]
            names = ", ".join(columns[:4]) + (", …" if len(columns) > 4 else "")
            raise RequestError(
                f"{self._path.name}: {role} ({names}) are of {given} arms, there are {num_arms}.",
                "try: one value per arm, or --set data.num_arms=N",
            )

    def distributions(self) -> None:
        """The propensities of all arms sum to 1, and that of the chosen one is above 0."""
        role, given = "propensities", self._columns["propensities"]
        sums = given.sum(1)
        bad = abs(sums - 1) > SUM_TOLERANCE
        self.refuse(role, bad, lambda one: f"and those of the other arms sum to {one:g}", sums)
        chosen = numpy.zeros(given.shape, bool)
        chosen[numpy.arange(len(given)), self._index] = True
        bad = chosen & (given <= 0)
        self.refuse(role, bad, lambda _: "is 0 for the arm that was chosen", given)

    @property
    def _index(self) -> NDArray[Any]:
        """The arms that were chosen, counted from 0."""
        index: NDArray[Any] = self._columns["action"].astype(numpy.int64) - self._arms.start
        return index

    def presence(self) -> None:
        mask = self._columns["action_mask"]
        actions = self._columns["action"]
        absent = mask[numpy.arange(len(mask)), self._index] == 0
        self.refuse(
            "action", absent, lambda one: f"is {one:g}, an arm that is absent there", actions
        )
