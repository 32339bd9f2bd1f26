"""The checks, basic ones first: their failures explain those of later ones."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rlplug.errors import PluginError, did_you_mean
from rlplug.testing.check import Check, check
from rlplug.testing.checks import (
    acting,
    addons,
    closed_forms,
    declaration,
    distributions,
    effects,
    families,
    learning,
    probes,
    repeatable,
    targets,
    updates,
)
from rlplug.testing.checks.families import FAMILIES
from rlplug.testing.subject import Subject

__all__ = ["CHECKS", "FAMILIES", "Check", "check_named", "checks_for", "own_checks"]

_MODULES = (
    *(declaration, acting, distributions, learning, targets, updates, closed_forms),
    *(repeatable, effects, addons),
)


def _checks_in(*modules: object) -> tuple[Check, ...]:
    return tuple(
        one for module in modules for one in vars(module).values() if isinstance(one, Check)
    )


CHECKS = (*_checks_in(*_MODULES), *probes.SOLVED, *_checks_in(probes), *probes.SOLVED_BY_VARIANTS)
"""Those of every plugin."""


def checks_for(subject: Subject, *, slow: bool = False) -> tuple[Check, ...]:
    """The checks of a plugin, its own ones last; with `slow` all of them."""
    chosen = [one for one in CHECKS if one.applies_to(subject.found.kind)]
    chosen += own_checks(subject.kind)
    return tuple(one for one in chosen if slow or one.quick)


def own_checks(kind: type[Any]) -> list[Check]:
    """Those of the families that a plugin belongs to, and others that it names."""
    several = [FAMILIES.get(name) or (check_named(name),) for name in kind.checks]
    return [one for checks in several for one in checks]


def check_named(name: str) -> Check:
    """The check of this name, or that of a function that is named by `module:function`."""
    module, _, function = name.partition(":")
    if function:
        found = getattr(import_module(module), function)
        return found if isinstance(found, Check) else check()(found)
    known = {one.name: one for one in (*CHECKS, *_checks_in(families))}
    if name in known:
        return known[name]
    near = did_you_mean(name, list(known), sentence=True)
    raise PluginError(
        f"there is no check {name!r}. {near}".rstrip(),
        *(() if near else (f"there are: {', '.join(known)}",)),
    )
