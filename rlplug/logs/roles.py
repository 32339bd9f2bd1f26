"""Roles: what the columns of a log mean, and which columns of a file have them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.config.data_section import COLUMN_OPTIONS, DataSection
from rlplug.errors import ConfigError, Problem, did_you_mean

__all__ = ["ROLES", "Column", "Role", "Roles", "find_roles", "largest"]


@attrs.frozen(kw_only=True)
class Column:
    """A column of a file."""

    kind: str
    """`f`, `i` or `b` for numbers and booleans, an empty string for anything else."""
    type: str
    """Its type in the words of the file's format."""
    is_list: bool = False
    """Whether each row holds several values."""


@attrs.frozen
class Role:
    """What a role takes."""

    name: str
    kinds: str
    """Kinds of columns that may have it."""
    is_vector: bool = False
    """Whether each row has several values: one column of lists, or several columns."""


ROLES: Mapping[str, Role] = {
    one.name: one
    for one in (
        Role("context", "fib", is_vector=True),
        Role("arms", "fib", is_vector=True),
        Role("action_mask", "fib", is_vector=True),
        Role("arm_ids", "i", is_vector=True),
        Role("action", "if"),
        Role("reward", "fib"),
        Role("propensity", "fi"),
        Role("action_log_prob", "fi"),
        Role("propensities", "fi", is_vector=True),
        Role("rewards", "fib", is_vector=True),
        Role("weight", "fi"),
        Role("label", "fib"),
        Role("position", "i"),
        Role("episode", "i"),
        Role("terminated", "bi"),
        Role("truncated", "bi"),
        Role("next_context", "fib", is_vector=True),
    )
}
"""The roles by name; the options of `[data]` that name columns have the same names."""

_REQUIRED = ("action", "reward")


@attrs.frozen
class Roles:
    """The columns of a log that are read, by role."""

    columns: Mapping[str, tuple[str, ...]]
    lists: frozenset[str]
    """Roles that a column of lists has."""

    def __contains__(self, role: str) -> bool:
        return role in self.columns

    @property
    def names(self) -> list[str]:
        """All columns, each once."""
        return list(dict.fromkeys(name for names in self.columns.values() for name in names))


def find_roles(section: DataSection, columns: Mapping[str, Column], file: str) -> Roles:
    """The columns that have roles in a file, or all that is wrong with them."""
    found: dict[str, tuple[str, ...]] = {}
    lists = set()
    problems = []
    defaults = attrs.fields_dict(DataSection)
    for name in COLUMN_OPTIONS:
        role, pattern = ROLES[name], getattr(section, name)
        matches = _matching(pattern, columns, role)
        if not matches:
            asked = pattern != defaults[name].default
            if asked or name in _REQUIRED:
                guess = did_you_mean(pattern, columns)
                problems.append(
                    Problem(f"data.{name}", f"no column {pattern!r} in {file}" + _said(guess))
                )
            continue
        problems += _type_problems(role, matches, columns, file)
        found[name] = tuple(matches)
        if columns[matches[0]].is_list:
            lists.add(name)
    if problems:
        shown = ", ".join(list(columns)[:12]) + (", …" if len(columns) > 12 else "")
        raise ConfigError("the columns of [data]", problems, f"columns of {file}: {shown}")
    return Roles(found, frozenset(lists))


def largest(values: NDArray[Any]) -> int:
    """The largest finite number, -1 if there is none; others are refused when rows are checked."""
    if values.dtype.kind == "f":
        values = values[numpy.isfinite(values)]
    return max(-1, int(values.max())) if values.size else -1


def _said(guess: str) -> str:
    return f", {guess}" if guess else ""


def _matching(pattern: str, columns: Mapping[str, Column], role: Role) -> list[str]:
    """The columns of a name or pattern, numbers in names in their order."""
    if "*" not in pattern:
        return [pattern] if pattern in columns else []
    matches = [name for name in columns if fnmatchcase(name, pattern.replace("[", "[[]"))]
    if not role.is_vector:
        return matches[:1]
    return sorted(matches, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    """`x10` after `x9`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _type_problems(
    role: Role, names: Sequence[str], columns: Mapping[str, Column], file: str
) -> list[Problem]:
    option = f"data.{role.name}"
    if len(names) > 1 and any(columns[name].is_list for name in names):
        listed = next(name for name in names if columns[name].is_list)
        return [Problem(option, f"one column of lists, or columns of numbers: {listed!r} has both")]
    problems = []
    for name in names:
        column = columns[name]
        if column.kind not in tuple(role.kinds):
            wanted = "whole numbers" if role.kinds == "i" else "numbers"
            problems.append(
                Problem(option, f"column {name!r} of {file} holds {column.type}, not {wanted}")
            )
        elif column.is_list and not role.is_vector and role.name != "action":
            problems.append(Problem(option, f"column {name!r} of {file} holds lists"))
    return problems[:3]
