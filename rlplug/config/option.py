"""Options of a config class: default, one line of help, and validators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

import attrs

from rlplug.config.schedule import Schedule, points

Check = Callable[[Any], str | None]
"""Takes a value and returns an error message, or None."""


@attrs.frozen
class Limit:
    """A check whose words are shown beside the option's type."""

    words: str
    holds: Callable[[Any], bool]

    def __call__(self, value: Any) -> str | None:
        """The error message of a value beyond the limit."""
        return None if self.holds(value) else f"must be {self.words}, got {value!r}"


def option(
    default: Any,
    help: str,
    *checks: Check,
    schedulable: bool = False,
    factory: bool = False,
    rest: bool = False,
    infinite: bool = False,
) -> Any:
    """A field of a frozen attrs class that users can set.

    `help` is the option's only documentation. A `schedulable` option also takes
    `[[step, value], …]`; hooks get the value at the current step. `factory=True` calls `default`
    for each new config (for mappings). `rest=True` marks the one field that takes all other keys
    of its section. Numbers must be finite, unless the default is infinite or `infinite=True`.
    """

    def validate(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        values = points(value) if isinstance(value, Schedule) else [value]
        try:
            for one in values:
                _check_finite(one, infinite or default in (math.inf, -math.inf))
                for check in checks:
                    problem = check(one)
                    if problem is not None:
                        raise ValueError(problem)
        except ValueError as error:
            # For who makes it by hand: a run names the option before the message.
            error.add_note(f"option {attribute.name!r} of {type(instance).__name__}")
            raise

    limits = tuple(check.words for check in checks if isinstance(check, Limit))
    metadata = {"help": help, "schedulable": schedulable, "rest": rest, "limits": limits}
    if factory:
        return attrs.field(factory=default, validator=validate, metadata=metadata, kw_only=True)
    return attrs.field(default=default, validator=validate, metadata=metadata, kw_only=True)


def _check_finite(value: Any, infinite: bool) -> None:
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, float) and (math.isnan(one) or (math.isinf(one) and not infinite)):
            raise ValueError(f"must be a finite number, got {one!r}")


def changed(options: Any, names: Iterable[str] = ()) -> list[str]:
    """Which of these options, or of all, differ from their defaults."""
    fields = attrs.fields_dict(type(options))
    return [name for name in names or fields if getattr(options, name) != _default(fields[name])]


def refuse(problems: Iterable[str]) -> None:
    """Refuse a config for all that is wrong with it."""
    if said := "; ".join(problems):
        raise ValueError(said)


def no_effect(names: Iterable[str], why: str) -> list[str]:
    """What is wrong with options that are set and have no effect."""
    joined = " and ".join(names)
    return [f"{joined} would have no effect {why}"] if joined else []


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if hasattr(default, "factory") else default


def config_class_error(config: Any) -> str | None:
    """Why something cannot be the `Config` of a plugin; None if it can."""
    if not (isinstance(config, type) and attrs.has(config)):
        return "is not an attrs class: decorate it with @attrs.frozen(kw_only=True)"
    foreign = [field.name for field in attrs.fields(config) if "help" not in field.metadata]
    if foreign:
        return f"has fields that are not made with rlplug.option: {', '.join(foreign)}"
    try:
        get_type_hints(config)
    except NameError as error:
        return f"has a type annotation that cannot be resolved: {error}"
    return None


def at_least(lowest: float) -> Check:
    """Value >= `lowest`."""
    return Limit(f"at least {lowest}", lambda value: value >= lowest)


def at_most(highest: float) -> Check:
    """Value <= `highest`."""
    return Limit(f"at most {highest}", lambda value: value <= highest)


def above(bound: float) -> Check:
    """Value > `bound`."""
    return Limit(f"greater than {bound}", lambda value: value > bound)


def below(bound: float) -> Check:
    """Value < `bound`."""
    return Limit(f"less than {bound}", lambda value: value < bound)


def between(lowest: float, highest: float) -> Check:
    """Value in the closed interval."""
    return Limit(f"between {lowest} and {highest}", lambda value: lowest <= value <= highest)


def one_of(choices: Iterable[Any]) -> Check:
    """Value among the choices."""
    allowed = tuple(choices)
    words = ", ".join(repr(choice) for choice in allowed)
    return Limit(f"one of {words}", lambda value: value in allowed)


def not_empty(value: Any) -> str | None:
    """A non-empty string, list or mapping."""
    return None if value else "must not be empty"
