"""Roles: what the columns of a log mean, and which columns of a file have them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import attrs

from rlplug.config.sections import COLUMN_OPTIONS, DataSection
from rlplug.errors import ConfigError, Problem, RequestError, did_you_mean
from rlplug.logs.files import Column, LogFile

__all__ = ["PER_ARM", "Roles", "matching", "natural", "same_roles"]

PER_ARM = ("action_mask", "propensities", "rewards")
"""Roles with one number per arm."""

_VECTORS = ("context", "next_context", "arms", *PER_ARM)
"""Roles with several values in each row: one column of lists, or several columns."""

_KINDS = {
    "action": "ifs",
    "context": "fibs",
    "position": "i",
    "episode": "i",
    "terminated": "bi",
    "truncated": "bi",
}
_KINDS |= dict.fromkeys(("propensity", "action_log_prob", "propensities", "weight"), "fi")
"""Kinds of columns that may have a role, unless it is any number."""

_REQUIRED = ("action", "reward")


_COUNTED = ("action", "episode", "position", "action_mask")


@attrs.frozen
class Roles:
    """The columns of a log that are read, by role."""

    columns: Mapping[str, tuple[str, ...]]
    of_file: Mapping[str, Column]
    """All columns of the file in which they were looked for."""

    def __contains__(self, role: str) -> bool:
        return role in self.columns

    def is_list(self, role: str) -> bool:
        """Whether a column of lists has the role."""
        return self.of_file[self.columns[role][0]].is_list

    def is_single(self, role: str) -> bool:
        """Whether one column holds one of several values of a row."""
        return role in _VECTORS and len(self.columns[role]) == 1 and not self.is_list(role)

    def kinds(self) -> dict[str, str]:
        """The kind of number that each column is read as, where its file leaves that open."""
        kinds = {}
        for role, names in self.columns.items():
            for name in names:
                kind = self.of_file[name].kind
                if role in _COUNTED:
                    kind = {"f": "f", "s": "c"}.get(kind, "i")
                elif role not in ("terminated", "truncated"):
                    kind = "f"
                kinds[name] = kind
        return kinds

    def outline(self, role: str) -> str:
        """The columns of a role, in the order of their names, and what they hold."""
        parts = []
        for name in sorted(self.columns.get(role, ())):
            column = self.of_file[name]
            kind = {"b": "booleans", "s": "text"}.get(column.kind, "numbers")
            parts.append(f"{name} ({'lists of ' if column.is_list else ''}{kind})")
        return ", ".join(parts) or "missing"


def same_roles(section: DataSection, files: Sequence[LogFile]) -> Roles:
    """The roles of the columns of the first file; refused if others differ in them."""
    if not files:
        return Roles({}, {})
    first, *others = files
    roles = _find_roles(section, first.columns, first.path.name)
    for other in others:
        more = _find_roles(section, other.columns, other.path.name)
        for role in {**roles.columns, **more.columns}:
            here, there = roles.outline(role), more.outline(role)
            if here != there:
                raise RequestError(
                    f"data.{role} is {there:.200} in {other.path.name}, {here:.200} in "
                    f"{first.path.name}.",
                    "try: files with the same columns, or a mapping in [data] to those that all "
                    "have",
                )
    return roles


def _find_roles(section: DataSection, columns: Mapping[str, Column], file: str) -> Roles:
    """The columns that have roles in a file, or all that is wrong with them."""
    roles: dict[str, tuple[str, ...]] = {}
    problems = []
    defaults = attrs.fields_dict(DataSection)
    for role in (*(role for role in COLUMN_OPTIONS if role != "context"), "context"):
        pattern = getattr(section, role)
        taken = {name for names in roles.values() for name in names}
        names = matching(pattern, columns, role, taken if role == "context" else set())
        if names:
            roles[role] = names
            problems += _type_problems(role, names, columns, file)
        elif pattern != defaults[role].default or role in _REQUIRED:
            missing = next((name for name in _listed(pattern) if name not in columns), pattern)
            guess = did_you_mean(str(missing), columns)
            told = f"no column {missing!r} in {file}" + (f", {guess}" if guess else "")
            problems.append(Problem(f"data.{role}", told))
    if problems:
        shown = ", ".join(list(columns)[:12]) + (", …" if len(columns) > 12 else "")
        raise ConfigError("the columns of [data]", problems, f"columns of {file}: {shown}")
    return Roles(roles, columns)


def _listed(pattern: str | Sequence[str]) -> Sequence[str]:
    """The names and patterns of an option: a list, or text separated by commas."""
    return [part.strip() for part in pattern.split(",")] if isinstance(pattern, str) else pattern


def matching(
    pattern: str | Sequence[str], columns: Collection[str], role: str, taken: Collection[str]
) -> tuple[str, ...]:
    """The columns of names or patterns; none if one of them has no column.

    A pattern stands for columns in the order of the file, without those that are taken; columns
    of several arms, or whose names differ in numbers alone, are in the order of these.
    """
    if isinstance(pattern, str) and pattern in columns:
        return (pattern,)
    parts = _listed(pattern)
    excluded = [*taken, *(part[1:] for part in parts if part.startswith("!"))]
    chosen: list[str] = []
    for part in parts:
        if part.startswith("!"):
            continue
        names = [part] if part in columns else _of_pattern(part, columns, excluded)
        if not names:
            return ()
        are_numbered = len({re.sub(r"\d+", "", name) for name in names}) == 1
        by_number = are_numbered or role in ("arms", *PER_ARM)
        chosen += sorted(names, key=natural) if by_number else names
    return tuple(dict.fromkeys(chosen)) if role in _VECTORS else tuple(chosen[:1])


def _of_pattern(pattern: str, columns: Iterable[str], excluded: Sequence[str]) -> list[str]:
    wanted, *others = (text.replace("[", "[[]") for text in (pattern, *excluded))
    return [
        name
        for name in columns
        if fnmatchcase(name, wanted) and not any(fnmatchcase(name, other) for other in others)
    ]


def natural(name: str) -> list[tuple[int, str]]:
    """`x10` after `x9`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _type_problems(
    role: str, names: tuple[str, ...], columns: Mapping[str, Column], file: str
) -> list[Problem]:
    option, kinds = f"data.{role}", _KINDS.get(role, "fib")
    listed = [name for name in names if columns[name].is_list]
    kinds = kinds.replace("s", "") if listed else kinds
    if listed and len(names) > 1:
        told = f"one column of lists, or columns of numbers: {listed[0]!r} has both"
        return [Problem(option, told)]
    if listed and role not in (*_VECTORS, "action"):
        return [Problem(option, f"column {listed[0]!r} of {file} holds lists")]
    wanted = "whole numbers" if kinds == "i" else "numbers or text" if "s" in kinds else "numbers"
    return [
        Problem(option, f"column {name!r} of {file} holds {columns[name].type}, not {wanted}")
        for name in names
        if columns[name].kind not in tuple(kinds)
    ][:3]
