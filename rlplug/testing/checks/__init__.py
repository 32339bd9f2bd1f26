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
    learning,
    probes,
    repeatable,
    targets,
    updates,
)
from rlplug.testing.subject import Subject

__all__ = ["CHECKS", "Check", "check_named", "checks_for", "own_checks"]

_MODULES = (
    *(declaration, acting, distributions, learning, targets, updates, closed_forms),
    *(repeatable, effects, addons, probes),
)
_DEFINED = [one for module in _MODULES for one in vars(module).values() if isinstance(one, Check)]
CHECKS = (*_DEFINED, *probes.SOLVED, *probes.SOLVED_BY_VARIANTS)
"""Those of every plugin."""


def checks_for(subject: Subject, *, slow: bool = False) -> tuple[Check, ...]:
    """The checks of a plugin, its own ones last; with `slow` all of them."""
    chosen = [one for one in CHECKS if one.applies_to(subject.found.kind)]
    return tuple(one for one in (*chosen, *own_checks(subject.kind)) if slow or one.quick)


def own_checks(kind: type[Any]) -> list[Check]:
    """Those that a plugin names in `checks`: each is a function, or a list of functions."""
    checks: list[Check] = []
    for name in kind.checks:
        module, _, attribute = name.partition(":")
        named = getattr(import_module(module), attribute)
        functions = named if isinstance(named, list | tuple) else [named]
        checks += [one if isinstance(one, Check) else check()(one) for one in functions]
    return checks


def check_named(name: str, kind: type[Any] | None = None) -> Check:
    """The check of this name, of every plugin or of one that names its own."""
    known: dict[str, Check] = {
        one.name: one for one in (*CHECKS, *(own_checks(kind) if kind else ()))
    }
    if name in known:
        return known[name]
    near = did_you_mean(name, list(known), sentence=True)
    raise PluginError(
        f"there is no check {name!r}. {near}".rstrip(),
        *(() if near else (f"there are: {', '.join(known)}",)),
    )
