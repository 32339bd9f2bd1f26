"""Presets: sets of options that an algorithm names, between its defaults and what a person says."""

from __future__ import annotations

from typing import Any

from rlplug.config.sources import Layers, Setting, locate
from rlplug.errors import PluginError, Problem, did_you_mean
from rlplug.registry import FoundPlugin

__all__ = ["lay_preset"]

_NOT_HERE = {("run", "algorithm"), ("run", "addons"), ("run", "preset")}


def lay_preset(
    layers: Layers, name: Any, algorithm: type[Any], found: FoundPlugin
) -> list[Problem]:
    """Lay the preset of this name over what is there; an empty name means none."""
    if not isinstance(name, str) or not name:
        return []
    presets = algorithm.presets
    if name not in presets:
        guess = did_you_mean(name, presets, sentence=True)
        has = f"it has: {', '.join(presets)}" if presets else "it has none"
        raise PluginError(
            f"{found.label} has no preset {name!r}. {guess}".rstrip(),
            has,
            f"see: rlplug plugins show {found.name}",
        )
    problems = []
    for key, value in presets[name].items():
        path = locate(Setting(key, value), algorithm.Config, {})
        if isinstance(path, Problem):
            problems.append(Problem(f"preset {name}: {path.path}", path.message))
        elif path in _NOT_HERE:
            problems.append(Problem(f"preset {name}: {key}", "is not for a preset to choose"))
        else:
            layers.put(path, value, f"preset {name}")
    return problems
