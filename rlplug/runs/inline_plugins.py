"""Inline plugins: classes and instances passed to `rlplug.run` instead of names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from rlplug.plugin import AddOn, Algorithm
from rlplug.registry import ADDON, ALGORITHM, Kind, Registry, describe

__all__ = ["InlinePlugins"]


@attrs.frozen(kw_only=True)
class InlinePlugins:
    """The plugins passed to `rlplug.run`, each with a name."""

    algorithm: str
    addons: tuple[str, ...]
    registry: Registry
    """The installed plugins, overridden by the inline ones."""
    rerunnable: bool
    """Whether all of them are installed, so that the recorded config can be run again."""
    instances: Mapping[str, AddOn]
    """Add-on instances by name."""

    @classmethod
    def of(
        cls, algorithm: str | type[Algorithm], addons: Sequence[str | AddOn], installed: Registry
    ) -> InlinePlugins:
        """Name classes and instances: as installed, or after their classes."""
        instances = [one for one in addons if not isinstance(one, str)]
        kinds: list[tuple[type[Any], Kind]] = [(type(one), ADDON) for one in instances]
        if not isinstance(algorithm, str):
            kinds.append((algorithm, ALGORITHM))
        by_target = {plugin.target: plugin for plugin in installed.found}
        found = {
            kind: by_target.get(_target(kind)) or describe(_name(kind), kind, role)
            for kind, role in kinds
        }
        overridden = {(plugin.kind, plugin.name) for plugin in found.values()}
        others = [one for one in installed.found if (one.kind, one.name) not in overridden]
        return cls(
            algorithm=algorithm if isinstance(algorithm, str) else found[algorithm].name,
            addons=tuple(one if isinstance(one, str) else found[type(one)].name for one in addons),
            registry=Registry((*found.values(), *others)),
            rerunnable=all(plugin.loaded is None for plugin in found.values()),
            instances={found[type(one)].name: one for one in instances},
        )


def _target(kind: type[Any]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _name(kind: type[Any]) -> str:
    """`GradNoise` → `grad-noise`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", kind.__name__).lower().strip("-")
