"""Algorithms and add-ons that were handed over as classes and instances, not named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.errors import RequestError
from rlplug.plugin import AddOn, Algorithm
from rlplug.registry import ADDON, ALGORITHM, Kind, Registry, describe

if TYPE_CHECKING:
    pass

__all__ = ["Given"]


@attrs.frozen(kw_only=True)
class Given:
    """What `rlplug.run` was given, with names for what had none."""

    algorithm: str
    addons: tuple[str, ...]
    registry: Registry
    """What is installed, and over it what was handed over."""
    rerunnable: bool
    """Whether all of it has an installed name."""
    instances: Mapping[str, AddOn]

    @classmethod
    def of(
        cls, algorithm: str | type[Algorithm], addons: Sequence[str | AddOn], installed: Registry
    ) -> Given:
        """Name the classes and instances among these: as installed, or after their classes."""
        if not isinstance(algorithm, str):
            _check_algorithm(algorithm)
        for one in addons:
            _check_addon(one)
        instances = [one for one in addons if not isinstance(one, str)]
        kinds: list[tuple[type[Any], Kind]] = [(type(one), ADDON) for one in instances]
        if not isinstance(algorithm, str):
            kinds.append((algorithm, ALGORITHM))
        known = {plugin.target: plugin for plugin in installed.found}
        found = {
            kind: known.get(_target(kind)) or describe(_name(kind), kind, role)
            for kind, role in kinds
        }
        own = {(plugin.kind, plugin.name) for plugin in found.values()}
        others = [one for one in installed.found if (one.kind, one.name) not in own]
        return cls(
            algorithm=algorithm if isinstance(algorithm, str) else found[algorithm].name,
            addons=tuple(one if isinstance(one, str) else found[type(one)].name for one in addons),
            registry=Registry((*found.values(), *others)),
            rerunnable=all(plugin.loaded is None for plugin in found.values()),
            instances={found[type(one)].name: one for one in instances},
        )


def _check_algorithm(given: Any) -> None:
    if not (isinstance(given, type) and issubclass(given, Algorithm)):
        raise RequestError(
            f"algorithm must be a name or a class of rlplug.Algorithm, got {given!r}.",
            "try: the class itself, not an instance",
        )


def _check_addon(given: Any) -> None:
    if not isinstance(given, str | AddOn):
        raise RequestError(
            f"addons must be names or instances of rlplug.AddOn, got {given!r}.",
            f"try: {getattr(given, '__name__', 'MyAddOn')}()",
        )


def _target(kind: type[Any]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _name(kind: type[Any]) -> str:
    """`GradNoise` → `grad-noise`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", kind.__name__).lower().strip("-")
