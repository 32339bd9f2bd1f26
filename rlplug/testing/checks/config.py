"""Checks of a plugin's options."""

from __future__ import annotations

from typing import Any

import attrs

from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.testing.exercise import exercise, variants_of
from rlplug.testing.report import CheckFailed, place
from rlplug.testing.subject import Subject

__all__ = ["check_every_option_is_read", "check_options_are_typed_and_documented"]


def check_options_are_typed_and_documented(subject: Subject) -> None:
    """`Config` is frozen and keyword-only; each option has a default and a line of help."""
    kind = subject.kind.Config
    where = place(kind)
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
    _check_there_and_back(kind, where)
    _, problems = structure(kind, {"no_such_option": 1}, "")
    if not problems:
        raise CheckFailed("a refusal of unknown options", "'no_such_option' was accepted", where)
    config = kind()
    if subject.kind(config).config is not config:
        raise CheckFailed(
            "a plugin that keeps the options it is made with in `self.config`",
            "another object, or none",
            place(subject.kind, "__init__"),
        )


def check_every_option_is_read(subject: Subject) -> None:
    """No option is without effect: each is read when runs with various options are tried."""
    names = [field.name for field in attrs.fields(subject.kind.Config)]
    unread = set(names)
    # Most is read in the first environment; what is not is looked for in all of them.
    for variant in variants_of(subject):
        if unread:
            unread -= exercise(subject, variant, subject.cases[:1])
    for changes in ({}, *subject.variants):
        if unread:
            unread -= exercise(subject, changes, subject.cases)
    if unread:
        first = next(name for name in names if name in unread)
        raise CheckFailed(
            "every option read somewhere between feed() and the last update",
            f"nobody read {', '.join(repr(name) for name in names if name in unread)}",
            f"{place(subject.kind.Config)}: use {first!r} or take it out; if it matters only "
            "beside other options, name them in `variants`",
        )


def _check_frozen(kind: type[Any], where: str) -> None:
    config = kind()
    for field in attrs.fields(kind):
        try:
            setattr(config, field.name, getattr(config, field.name))
        except attrs.exceptions.FrozenInstanceError:
            return
        raise CheckFailed("a frozen Config", f"{field.name!r} can be set", where)


def _check_there_and_back(kind: type[Any], where: str) -> None:
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
