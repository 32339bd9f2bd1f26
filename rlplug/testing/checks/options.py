"""Checks of a plugin's options."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import attrs

from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.errors import RlplugError
from rlplug.testing.cases import Case
from rlplug.testing.harness import make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import named

__all__ = [
    "check_every_option_is_read",
    "check_feed_has_the_options",
    "check_options_are_typed_and_documented",
    "recording",
]


def check_options_are_typed_and_documented(subject: Subject) -> None:
    """`Config` is frozen and keyword-only; each option has a default and a line of help."""
    kind = subject.kind.Config
    where = location(kind)
    if not attrs.has(kind):
        raise CheckFailed("a Config made with attrs.frozen(kw_only=True)", repr(kind), where)
    for field in attrs.fields(kind):
        text = field.metadata.get("help")
        lacks = "default" if field.default is attrs.NOTHING else "" if text else "help"
        if lacks:
            raise CheckFailed(
                "a default and a line of help for each option",
                f"{field.name!r} has no {lacks}",
                f'{where}: {field.name} = rlplug.option(default, "one line of help")',
            )
        if not field.kw_only:
            raise CheckFailed("keyword-only options", f"{field.name!r} is positional", where)
    _check_frozen(kind, where)
    _check_round_trip(kind, where)
    _, problems = structure(kind, {"no_such_option": 1}, "")
    if not problems:
        raise CheckFailed("a refusal of unknown options", "'no_such_option' was accepted", where)
    config = kind()
    if subject.kind(config).config is not config:
        raise CheckFailed(
            "a plugin that keeps the options it is made with in `self.config`",
            "another object, or none",
            location(subject.kind, "__init__"),
        )


def check_every_option_is_read(subject: Subject) -> None:
    """Every option is read: none is without effect."""
    names = [field.name for field in attrs.fields(subject.kind.Config)]
    unread = set(names)
    # Most options are read in the first environment: the others take time.
    for variant in _variants_of(subject):
        if unread:
            unread -= _options_read(subject, variant, subject.cases[:1])
    for changes in ({}, *subject.variants):
        if unread:
            unread -= _options_read(subject, changes, subject.cases)
    if unread:
        first = next(name for name in names if name in unread)
        raise CheckFailed(
            "every option read somewhere between feed() and the last update",
            f"nobody read {', '.join(repr(name) for name in names if name in unread)}",
            f"{location(subject.kind.Config)}: use {first!r} or take it out; if it matters only "
            "beside other options, name them in `variants`",
        )


def check_feed_has_the_options(subject: Subject) -> None:
    """What `feed` describes has the options of the same names, such as `n_steps`."""
    known = {field.name for field in attrs.fields(subject.kind.Config)}
    shared: list[str] = []
    for changes in _variants_of(subject):
        config = _config(subject, changes)
        if config is None:
            continue
        feed = subject.kind(config).feed()
        shared = [field.name for field in attrs.fields(type(feed)) if field.name in known]
        for name in shared:
            wanted, found = getattr(config, name), getattr(feed, name)
            if isinstance(wanted, bool | int | float) and found != wanted:
                raise CheckFailed(
                    f"{type(feed).__name__}({name}={wanted!r}) for the option {name} = {wanted!r}"
                    + named(changes),
                    f"{name}={found!r}",
                    f"{location(subject.kind, 'feed')}: self.config.{name}; give the option "
                    "another name if it means something else",
                )
    if not shared:
        raise DoesNotApply("its options have none of the feed's names")


def _check_frozen(kind: type[Any], where: str) -> None:
    config = kind()
    for field in attrs.fields(kind):
        try:
            setattr(config, field.name, getattr(config, field.name))
        except attrs.exceptions.FrozenInstanceError:
            return
        raise CheckFailed("a frozen Config", f"{field.name!r} can be set", where)


def _check_round_trip(kind: type[Any], where: str) -> None:
    config = kind()
    again, problems = structure(kind, plain(config), "")
    if problems or again != config:
        raise CheckFailed(
            "defaults that can be written as TOML and read back",
            "; ".join(f"{one.path} {one.message}" for one in problems) or f"{again!r}",
            where,
        )
    for field in attrs.fields(kind):
        value = getattr(config, field.name)
        if field.metadata.get("schedulable") and isinstance(value, float):
            _, problems = structure(kind, {field.name: [[0, value], [100, value]]}, "")
            if problems:
                raise CheckFailed(
                    "schedulable options that take [[step, value], …]",
                    problems[0].message,
                    f"{where}: {field.name}",
                )


def _variants_of(subject: Subject) -> Iterator[dict[str, Any]]:
    """Changes of options to try: none, the author's variants, and each option changed alone.

    A change that is refused is tried together with each of the booleans inverted.
    """
    yield {}
    for variant in subject.variants:
        yield dict(variant)
    kind = subject.kind.Config
    types = get_type_hints(kind)
    config = subject.config()
    values = {field.name: getattr(config, field.name) for field in attrs.fields(kind)}
    inverted = {name: not value for name, value in values.items() if isinstance(value, bool)}
    for name, value in values.items():
        for other in _other_values(value, types[name]):
            yield {name: other}
            if _config(subject, {name: other}) is None:
                yield from ({name: other, switch: on} for switch, on in inverted.items())


def _options_read(subject: Subject, changes: Mapping[str, Any], cases: Sequence[Case]) -> set[str]:
    """The options that are read in a few updates with these changes; none if they are refused."""
    reads: set[str] = set()
    config = _config(subject, changes, recording(subject.kind.Config, reads))
    if config is None:
        return set()
    plugin = subject.kind(config)
    if not subject.is_addon:
        plugin.feed()
    for case in cases:
        if not subject.is_addon and plugin.supports(case.observation_space, case.action_space):
            continue
        try:
            harness = make_harness(subject, case, config=config)
            harness.train(3)
            harness.calls.inference_module(
                next(iter(harness.learner.modules)), harness.module, harness.learner
            )
            next(iter(harness.collectors.values())).collect(1, greedy=True)
        except RlplugError:
            continue
        if len(reads) == len(attrs.fields(subject.kind.Config)):
            break
    return reads


def recording(kind: type[Any], reads: set[str]) -> type[Any]:
    """A subclass of a `Config` whose instances add the names that plugins read to `reads`."""
    names = {field.name for field in attrs.fields(kind)}

    def read(self: Any, name: str) -> Any:
        if name in names and not _is_bookkeeping(sys._getframe(1)):
            reads.add(name)
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": read, "__doc__": kind.__doc__})


def _config(subject: Subject, changes: Mapping[str, Any], kind: type[Any] | None = None) -> Any:
    """The options with these changes; None if they are refused."""
    values = plain({**attrs.asdict(subject.config(), recurse=False), **changes})
    config, _ = structure(kind or subject.kind.Config, values, "")
    return config


def _is_bookkeeping(frame: FrameType | None) -> bool:
    """Whether the options are compared, copied or validated there, and not used."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "evolve" and module.startswith("attr"):
            # What is read of the copy is noted as well.
            return True
        if frame.f_code.co_name in ("__attrs_post_init__", "__init__", "__eq__", "__repr__"):
            own = frame.f_locals.get("self")
            if attrs.has(type(own)):
                return True
        if not module.startswith(("attr.", "attrs.", "attr", "copy")):
            return module.startswith("rlplug.config.")
        frame = frame.f_back
    return True


def _other_values(value: Any, declared: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if get_origin(declared) is Literal:
        return [choice for choice in get_args(declared) if choice != value]
    if isinstance(value, float):
        return [value * 0.5 if value else 0.1]
    if isinstance(value, int):
        return [value + 1]
    return []
