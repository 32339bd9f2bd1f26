"""Structure plain values into typed classes, strictly, reporting all errors at once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from rlplug.config.names import Owners, core_owners, unknown_option
from rlplug.config.schedule import Schedule
from rlplug.errors import Problem, did_you_mean

ClassT = TypeVar("ClassT")

_types = functools.cache(get_type_hints)
"""The types of the fields of a class: to find them takes as long as to check its values."""


def structure(
    kind: type[ClassT], values: Any, path: str, owners: Owners = core_owners
) -> tuple[ClassT | None, list[Problem]]:
    """The options made from these values, or all problems with them.

    Nothing is converted but whole numbers to floats and lists to tuples. `owners` finds who else
    has an option that this class does not have.
    """
    if not isinstance(values, Mapping):
        return None, [Problem(path, f"expected a section [{path}], got {values!r}")]
    fields = {field.name: field for field in attrs.fields(kind)}  # type: ignore[arg-type] # any attrs class
    rest = next((name for name, field in fields.items() if field.metadata.get("rest")), None)
    declared = {name: value for name, value in values.items() if name in fields and name != rest}
    others = {name: value for name, value in values.items() if name not in declared}
    problems: list[Problem] = []
    valid: dict[str, Any] = {} if rest is None else {rest: others}
    for name in others if rest is None else ():
        problems.append(Problem(f"{path}.{name}", unknown_option(name, fields, owners)))
    for name, value in declared.items():
        wrong: list[Problem] = []
        valid[name] = _option(value, _types(kind)[name], fields[name], f"{path}.{name}", wrong)  # type: ignore[arg-type] # a class is hashable
        if wrong:
            del valid[name]
            problems += wrong
    try:
        made = kind(**valid)
    except (TypeError, ValueError) as error:
        # A class may report several problems, one per line, or none.
        lines = str(error).splitlines() or [type(error).__name__]
        # Options with errors were left at their defaults: what is said about those is misleading.
        absent = [re.compile(rf"\b{re.escape(name)}\b") for name in declared if name not in valid]
        told = [line for line in lines if not any(name.search(line) for name in absent)]
        return None, problems + [Problem(path, line) for line in told]
    return (None, problems) if problems else (made, [])


def type_name(declared: Any) -> str:
    """A readable name of this type: `int`, `'a' or 'b'`, `list of int`."""
    origin = get_origin(declared)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(declared))
    if _is_list(origin):
        return f"list of {type_name(get_args(declared)[0])}"
    if _is_table(origin):
        return f"table of {type_name(get_args(declared)[1])}"
    if origin is not None:
        return " or ".join(type_name(part) for part in get_args(declared) if part is not NoneType)
    return "anything" if declared is Any else getattr(declared, "__name__", str(declared))


def _option(
    value: Any, declared: Any, field: attrs.Attribute[Any], where: str, problems: list[Problem]
) -> Any:
    """The value of an option, which may be a schedule, in its limits."""
    schedulable = field.metadata.get("schedulable")
    try:
        if schedulable and isinstance(value, list | tuple):
            typed: Any = Schedule(_pairs(value))
        else:
            also = " or a schedule, [[step, value], …]" if schedulable else ""
            typed = _typed(value, declared, where, problems, also)
        if field.validator is not None and not problems:
            field.validator(None, field, typed)
    except (TypeError, ValueError, OverflowError) as error:
        problems.append(Problem(where, str(error)))
        return None
    return typed


def _typed(value: Any, declared: Any, where: str, problems: list[Problem], also: str = "") -> Any:
    """The value as the declared type; what is wrong with it, or its parts, is added to problems."""
    origin, parts = get_origin(declared), get_args(declared)
    if declared is Any or type(value) is declared:
        return value
    if declared is float and type(value) is int:
        return float(value)
    if attrs.has(declared):
        made, found = structure(declared, value, where)
        problems += found
        return made
    if _is_list(origin) and isinstance(value, list | tuple):
        items = [_typed(one, parts[0], f"{where}[{n}]", problems) for n, one in enumerate(value)]
        return items if origin is list else tuple(items)
    if _is_table(origin) and isinstance(value, Mapping):
        pairs = value.items()
        return {key: _typed(one, parts[1], f"{where}[{key!r}]", problems) for key, one in pairs}
    if origin in (Union, UnionType):
        for part in parts:
            wrong: list[Problem] = []
            typed = _typed(value, part, where, wrong)
            if not wrong:
                return typed
    elif origin is Literal:
        if any(type(choice) is type(value) and choice == value for choice in parts):
            return value
        guess = did_you_mean(value, map(str, parts)) if isinstance(value, str) else ""
        allowed, hint = ", ".join(map(repr, parts)), f", {guess}" if guess else ""
        problems.append(Problem(where, f"expected one of {allowed}, got {value!r}{hint}"))
        return None
    got = f"{type(value).__name__} {value!r}"
    problems.append(Problem(where, f"expected {type_name(declared)}{also}, got {got}"))
    return None


def _pairs(value: Iterable[Any]) -> list[tuple[int, float]]:
    for pair in value:
        if not (isinstance(pair, list | tuple) and len(pair) == 2):
            raise ValueError(f"a schedule is a list of [step, value] pairs, got {pair!r}")
        if type(pair[0]) is not int or type(pair[1]) not in (int, float):
            raise ValueError(f"a schedule's pairs are [whole number, number], got {list(pair)!r}")
    return [(step, number) for step, number in value]


def _is_list(origin: Any) -> bool:
    return origin is not None and origin in (tuple, list, Sequence)


def _is_table(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)
