"""What hooks can change outside of their plugin: globals, closures, and attributes of its class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CellType, ModuleType
from typing import Any, TypeAlias

__all__ = ["OutsideNames"]

Owner: TypeAlias = dict[str, Any] | type | CellType


class OutsideNames:
    """The names that functions of plugins can bind, and what is bound to them."""

    def __init__(self, plugins: Iterable[object], functions: Iterable[Callable[..., Any]]) -> None:
        names = [name for plugin in plugins for name in _of_class(type(plugin))]
        names += [name for function in functions for name in _of_function(function)]
        self._names = [(owner, name) for owner, name in names if _is_data(_read(owner, name))]

    def values(self) -> list[Any]:
        """What is bound to the names now."""
        return [_read(owner, name) for owner, name in self._names]

    def bind(self, values: Iterable[Any]) -> None:
        """Bind these values to the names."""
        for (owner, name), value in zip(self._names, values, strict=True):
            if isinstance(owner, dict):
                owner[name] = value
            elif _read(owner, name) is not value:
                setattr(owner, name, value)


def _of_class(kind: type) -> Iterator[tuple[Owner, str]]:
    for one in kind.__mro__:
        yield from ((one, name) for name in vars(one) if not name.startswith("__"))


def _of_function(function: Callable[..., Any]) -> Iterator[tuple[Owner, str]]:
    plain = inspect.unwrap(function)
    plain = getattr(plain, "__func__", plain)
    code = getattr(plain, "__code__", None)
    if code is None:
        return
    known = plain.__globals__
    yield from ((known, name) for name in code.co_names if name in known)
    yield from ((cell, "cell_contents") for cell in plain.__closure__ or ())


def _read(owner: Owner, name: str) -> Any:
    if isinstance(owner, dict):
        return owner[name]
    return vars(owner)[name] if isinstance(owner, type) else getattr(owner, name, None)


def _is_data(value: Any) -> bool:
    """Whether it is a value and not code."""
    return not (isinstance(value, ModuleType) or callable(value) or hasattr(value, "__get__"))
