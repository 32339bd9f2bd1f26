"""Structure plain values into typed options with cattrs, strictly, reporting all errors at once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs
import cattrs
from cattrs.errors import IterableValidationError

from rlplug.config.names import Owners, core_owners, unknown_option
from rlplug.config.schedule import Schedule
from rlplug.errors import Problem, did_you_mean

__all__ = ["structure", "type_name"]

ConfigT = TypeVar("ConfigT")

_types = functools.lru_cache(maxsize=None)(get_type_hints)
"""The types of the fields of a class: to find them takes as long as to check its values."""


def structure(
    config_class: type[ConfigT], values: Any, path: str, owners: Owners = core_owners
) -> tuple[ConfigT | None, list[Problem]]:
    """The options made from these values, or all problems with them.

    `owners` finds who else has an option that this class does not have.
    """
    if not isinstance(values, Mapping):
        return None, [Problem(path, f"expected a section [{path}], got {values!r}")]
    fields = {field.name: field for field in attrs.fields(config_class)}  # type: ignore[arg-type] # any attrs class
    rest = next((name for name, field in fields.items() if field.metadata.get("rest")), None)
    declared = {name: value for name, value in values.items() if name in fields and name != rest}
    others = {name: value for name, value in values.items() if name not in declared}
    types = _types(config_class)  # type: ignore[arg-type] # a class is hashable
    problems: list[Problem] = []
    valid: dict[str, Any] = {}
    if rest is not None:
        valid[rest] = others
    else:
        problems += [
            Problem(f"{path}.{name}", unknown_option(name, fields, owners)) for name in others
        ]
    for name, raw in declared.items():
        where = f"{path}.{name}"
        value, found = _value(raw, types[name], fields[name], where)
        problems += found
        if not found:
            valid[name] = value
    wrong = [name for name in declared if name not in valid]
    try:
        made = config_class(**valid)
    except (TypeError, ValueError) as error:
        # A class may report several problems, one per line, or none.
        lines = str(error).splitlines() or [type(error).__name__]
        # Options with errors were left at their defaults: what is said about those is misleading.
        about_others = [line for line in lines if not any(_mentions(line, name) for name in wrong)]
        return None, problems + [Problem(path, line) for line in about_others]
    return (None, problems) if problems else (made, [])


def type_name(declared: Any) -> str:
    """A readable name of this type: `int`, `'a' or 'b'`, `list of int`."""
    origin = get_origin(declared)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(declared))
    if origin in (tuple, list):
        return f"list of {type_name(get_args(declared)[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"table of {type_name(get_args(declared)[1])}"
    if origin is not None:
        return " or ".join(type_name(part) for part in get_args(declared) if part is not NoneType)
    return "anything" if declared is Any else getattr(declared, "__name__", str(declared))


def _value(
    raw: Any, declared: Any, field: attrs.Attribute[Any], where: str
) -> tuple[Any, list[Problem]]:
    try:
        if field.metadata.get("schedulable") and isinstance(raw, list | tuple):
            value: Any = Schedule(_pairs(raw))
        else:
            _refuse_shape(raw, declared)
            value = _CONVERTER.structure(raw, declared)
    except Exception as error:
        reported: Exception = error
        if field.metadata.get("schedulable") and not isinstance(raw, list | tuple):
            reported = _expected(declared, raw, " or a schedule, [[step, value], …]")
        return None, list(_explain(reported, where))
    if field.validator is not None:
        try:
            field.validator(None, field, value)
        except (TypeError, ValueError) as error:
            return None, [Problem(where, str(error))]
    return value, []


def _refuse_shape(raw: Any, declared: Any) -> None:
    """cattrs would split a string into letters, and raise AttributeError on numbers."""
    origin = get_origin(declared)
    if not isinstance(origin, type):
        return
    if issubclass(origin, Mapping) and not isinstance(raw, Mapping):
        raise _expected(declared, raw)
    if origin is list and not isinstance(raw, list | tuple):
        raise _expected(declared, raw)


def _pairs(raw: Any) -> list[tuple[int, float]]:
    for pair in raw:
        if not (isinstance(pair, list | tuple) and len(pair) == 2):
            raise ValueError(f"a schedule is a list of [step, value] pairs, got {pair!r}")
        if type(pair[0]) is not int or type(pair[1]) not in (int, float):
            raise ValueError(f"a schedule's pairs are [whole number, number], got {list(pair)!r}")
    return [(step, value) for step, value in raw]


def _explain(error: BaseException, where: str) -> Iterator[Problem]:
    """The problems in a failed conversion, one per bad value."""
    if isinstance(error, IterableValidationError):
        located, unlocated = error.group_exceptions()
        for item, note in located:
            yield from _explain(item, f"{where}[{note.index!r}]")
        for item in unlocated:
            yield from _explain(item, where)
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _explain(inner, where)
    else:
        yield Problem(where, str(error) or type(error).__name__)


def _mentions(line: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", line) is not None


def _expected(declared: Any, value: Any, also: str = "") -> TypeError:
    wanted = f"{type_name(declared)}{also}"
    return TypeError(f"expected {wanted}, got {type(value).__name__} {value!r}")


def _exactly(value: Any, declared: type[Any]) -> Any:
    if type(value) is not declared:
        raise _expected(declared, value)
    return value


def _float(value: Any, declared: type[float]) -> float:
    if type(value) not in (int, float):
        raise _expected(declared, value)
    return float(value)


def _literal(value: Any, declared: Any) -> Any:
    choices = get_args(declared)
    if not any(type(choice) is type(value) and choice == value for choice in choices):
        allowed = ", ".join(repr(choice) for choice in choices)
        guess = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
        hint = f", {guess}" if guess else ""
        raise ValueError(f"expected one of {allowed}, got {value!r}{hint}")
    return value


def _union(value: Any, declared: Any) -> Any:
    for part in get_args(declared):
        try:
            return _CONVERTER.structure(value, part)
        except Exception:
            continue
    raise _expected(declared, value)


def _sequence(value: Any, declared: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise _expected(declared, value)
    items: Any = list[get_args(declared)[0]]  # type: ignore[misc] # known at run time only
    return tuple(_CONVERTER.structure(list(value), items))


def _converter() -> cattrs.Converter:
    """A strict converter: by default cattrs turns `"false"` into `True` and 1.7 into 1."""
    converter = cattrs.Converter(detailed_validation=True, forbid_extra_keys=True)
    for scalar in (bool, int, str):
        converter.register_structure_hook(scalar, _exactly)
    converter.register_structure_hook(float, _float)
    converter.register_structure_hook_func(_is_literal, _literal)
    converter.register_structure_hook_func(_is_tuple, _sequence)
    converter.register_structure_hook_func(_is_union, _union)
    return converter


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (UnionType, Union)


_CONVERTER = _converter()
