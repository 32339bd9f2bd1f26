"""The options to search: ranges and choices, as they are written in TOML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from rlplug.config.toml import toml_value
from rlplug.errors import Problem, did_you_mean

__all__ = ["Range", "read_space"]

_KEYS = ("low", "high", "log", "step", "choices")

_TRY = "{ low = 0.1, high = 1.0 } or { choices = [1, 2] }"


@attrs.frozen(kw_only=True)
class Range:
    """What an option is searched in: the numbers from `low` to `high`, or `choices`."""

    name: str
    """The option, as it was written."""
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()
    is_float: bool = False
    """Whether the numbers are floats; else whole ones."""

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that must be valid: all choices, or both ends."""
        return self.choices or (self._number(self.low), self._number(self.high))

    @property
    def labels(self) -> dict[Any, Any]:
        """Label → choice: lists and tables, which no database holds, by their text."""
        plain = (bool, int, float, str)
        return {one if type(one) in plain else toml_value(one): one for one in self.choices}

    def value(self, found: Any) -> Any:
        """The value of the option where the search has found this."""
        return self.labels[found] if self.choices else self._number(found)

    def as_toml(self) -> dict[str, Any]:
        """As it is written."""
        if self.choices:
            return {"choices": list(self.choices)}
        found: dict[str, Any] = {"low": self._number(self.low), "high": self._number(self.high)}
        found |= {"log": True} if self.log else {}
        return found | ({"step": self.step} if self.step is not None else {})

    def _number(self, value: float) -> float:
        return float(value) if self.is_float else value


def read_space(values: Mapping[str, Any]) -> tuple[list[Range], list[Problem]]:
    """The ranges in a table; `sampling.num_envs` may be a key or a table in a table."""
    ranges, problems = [], []
    for name, given in _flat(values, ""):
        found = list(_problems(given))
        problems += [Problem(f"tune.space.{name}", one) for one in found]
        if not found:
            ranges.append(_range(name, given))
    return ranges, problems


def _flat(values: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        where = f"{path}.{name}" if path else name
        if _is_section(value):
            yield from _flat(value, where)
        else:
            yield where, value


def _is_section(value: Any) -> bool:
    """Whether it is a table of ranges, not a range."""
    if not isinstance(value, Mapping) or not value or any(key in _KEYS for key in value):
        return False
    return all(isinstance(one, Mapping) for one in value.values())


def _range(name: str, given: Mapping[str, Any]) -> Range:
    if "choices" in given:
        return Range(name=name, choices=tuple(given["choices"]))
    numbers = [given[key] for key in ("low", "high", "step") if key in given]
    is_float = any(isinstance(one, float) for one in numbers)
    return Range(name=name, **given, is_float=is_float)


def _problems(given: Any) -> Iterator[str]:
    if not isinstance(given, Mapping):
        yield f"expected {_TRY}, got {given!r}"
        return
    for key in given:
        if key not in _KEYS:
            guess = did_you_mean(key, _KEYS)
            yield f"unknown key {key!r}" + (f", {guess}" if guess else f": there are {_KEYS}")
    if "choices" in given:
        yield from _problems_of_choices(given)
        return
    missing = [key for key in ("low", "high") if key not in given]
    if missing:
        yield f"{' and '.join(missing)} missing: expected {_TRY}"
        return
    yield from _problems_of_ends(given)


def _problems_of_choices(given: Mapping[str, Any]) -> Iterator[str]:
    choices = given["choices"]
    beside = [key for key in _KEYS if key in given and key != "choices"]
    if beside:
        yield f"choices and {beside[0]} are both given"
    if not isinstance(choices, list | tuple):
        yield f"choices must be a list, got {choices!r}"
    elif not choices:
        yield "choices is empty"
    else:
        yield from _repeated(choices)


def _repeated(choices: Iterable[Any]) -> Iterator[str]:
    texts = [toml_value(one) for one in choices]
    for text in dict.fromkeys(texts):
        if texts.count(text) > 1:
            yield f"the choice {text} is given {texts.count(text)} times"


def _problems_of_ends(given: Mapping[str, Any]) -> Iterator[str]:
    low, high, step = given["low"], given["high"], given.get("step")
    log = given.get("log", False)
    wrong = [
        f"{key} must be a finite number, got {value!r}"
        for key, value in (("low", low), ("high", high), ("step", step))
        if value is not None and not (type(value) in (int, float) and math.isfinite(value))
    ]
    yield from wrong
    if type(log) is not bool:
        yield f"log must be true or false, got {log!r}"
    if wrong or type(log) is not bool:
        return
    if low > high:
        yield f"low = {low} is greater than high = {high}"
    elif low == high:
        yield f"low and high are both {low}: set the option, or another end"
    if log and low <= 0:
        yield f"low = {low} must be greater than 0 with log = true"
    if step is not None and step <= 0:
        yield f"step = {step} must be greater than 0"
    if step is not None and log:
        yield "step and log are both given"
