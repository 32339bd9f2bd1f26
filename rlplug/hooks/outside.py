"""What hooks can change outside of their plugin: globals, closures, and attributes of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

__all__ = ["OutsideNames"]

Owner: TypeAlias = dict[str, Any] | type | CellType
"""Where a name is bound."""


class OutsideNames:
    """The names that the code of some objects can bind, and what is bound to them.

    Their classes are read, the functions that they and `functions` call in the same file, and the
    classes of that file that these use. What lies further away, such as another file, is not seen.
    """

    def __init__(
        self, objects: Iterable[object], functions: Iterable[Callable[..., Any]] = ()
    ) -> None:
        found: dict[tuple[int, str], tuple[Owner, str]] = {}
        for owner, name in _names([type(one) for one in objects], functions):
            if _is_data(_read(owner, name)):
                found.setdefault((id(owner), name), (owner, name))
        self._names = list(found.values())

    def values(self) -> list[Any]:
        """What is bound to the names now."""
        return [_read(owner, name) for owner, name in self._names]

    def bind(self, values: Iterable[Any]) -> None:
        """Bind these values to the names."""
        for (owner, name), value in zip(self._names, values, strict=True):
            if _read(owner, name) is value:
                continue
            if isinstance(owner, dict):
                owner.pop(name, None)
                if value is not _UNBOUND:
                    owner[name] = value
            elif value is _UNBOUND:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _names(
    classes: Iterable[type], functions: Iterable[Callable[..., Any]]
) -> Iterator[tuple[Owner, str]]:
    waiting: list[Any] = [*classes, *functions]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        value = getattr(value, "__func__", value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            # What is bound in a base may be bound anew in the class itself.
            for base in filter(_is_theirs, value.__mro__):
                waiting += [base, *filter(_is_code, vars(base).values())]
                yield from ((value, name) for name in vars(base) if not name.startswith("__"))
        elif isinstance(value, property):
            waiting += [value.fget, value.fset]
        elif isinstance(value, FunctionType):
            waiting.append(getattr(value, "__wrapped__", None))
            used = []
            for name in _names_in(value.__code__):
                yield value.__globals__, name
                used.append(value.__globals__.get(name))
            for cell in value.__closure__ or ():
                yield cell, "cell_contents"
                used.append(_read(cell, "cell_contents"))
            for one in used:
                if isinstance(one, type | FunctionType) and one.__module__ == value.__module__:
                    waiting.append(one)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)


def _is_theirs(kind: type) -> bool:
    """Whether a class is not of a package that is known to keep no such counts."""
    return kind.__module__.partition(".")[0] not in ("builtins", "torch", "rlplug", "abc", "typing")


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | staticmethod | classmethod | property)


def _read(owner: Owner, name: str) -> Any:
    if isinstance(owner, dict):
        return owner.get(name, _UNBOUND)
    if isinstance(owner, type):
        return vars(owner).get(name, _UNBOUND)
    try:
        return owner.cell_contents
    except ValueError:
        return _UNBOUND


def _is_data(value: Any) -> bool:
    """Whether it is a value and not code."""
    return not (isinstance(value, ModuleType) or callable(value) or hasattr(type(value), "__get__"))


class _Unbound:
    """Stands for the value of a name that nothing is bound to."""


_UNBOUND = _Unbound()
