"""Defaults of a run: the algorithm's own, those of a preset, and derived ones."""

from __future__ import annotations

from typing import Any

import attrs

from rlplug.config.sections import RunConfig
from rlplug.config.sources import Layers, Setting, locate
from rlplug.errors import PluginError, Problem, did_you_mean
from rlplug.registry import FoundPlugin

__all__ = ["algorithm_defaults", "apply_preset", "derive_evaluation"]

_NOT_IN_PRESETS = {("run", "algorithm"), ("run", "addons"), ("run", "preset")}
_EVALUATIONS = 10


def algorithm_defaults(algorithm: Any, found: FoundPlugin) -> Layers:
    """The defaults that the algorithm declares: environment, steps and core options."""
    layers = Layers()
    origin = f"default of {found.name}"
    layers.put(("run", "env"), algorithm.default_env, origin)
    layers.put(("run", "steps"), algorithm.default_steps, origin)
    for path, value in algorithm.defaults.items():
        layers.put(tuple(path.split(".")), value, origin)
    return layers


def apply_preset(
    layers: Layers, name: Any, algorithm: type[Any], found: FoundPlugin
) -> list[Problem]:
    """Override with the algorithm's preset of this name; an empty name means none."""
    if not isinstance(name, str) or not name:
        return []
    presets = algorithm.presets
    if name not in presets:
        guess = did_you_mean(name, presets, sentence=True)
        available = f"presets: {', '.join(presets)}" if presets else "it has no presets"
        raise PluginError(
            f"{found.label} has no preset {name!r}. {guess}".rstrip(),
            available,
            f"see: rlplug plugins show {found.name}",
        )
    problems = []
    for key, value in presets[name].items():
        path = locate(Setting(key, value), algorithm.Config, {})
        if isinstance(path, Problem):
            problems.append(Problem(f"preset {name}: {path.path}", path.message))
        elif path in _NOT_IN_PRESETS:
            problems.append(Problem(f"preset {name}: {key}", "cannot be set by a preset"))
        else:
            layers.put(path, value, f"preset {name}")
    return problems


def derive_evaluation(config: RunConfig, feed: Any, layers: Layers) -> RunConfig:
    """Unless set: evaluate ten times a run, but not at all where episodes have one step.

    A bandit's reward while it learns is its result (regret), so greedy episodes would only cost
    time; setting any option of `[evaluation]` turns them on.
    """
    section = config.evaluation
    set_options = [path[1] for path in layers.origins if path[0] == "evaluation" and len(path) > 1]
    one_step = getattr(feed, "one_step_episodes", False) and not config.data.is_used
    if one_step and not set_options:
        layers.put(("evaluation", "episodes"), 0, "default for one-step episodes")
        section = attrs.evolve(section, episodes=0)
    elif "every" not in set_options:
        every = max(config.run.steps // _EVALUATIONS, 1)
        layers.put(("evaluation", "every"), every, "a tenth of run.steps")
        section = attrs.evolve(section, every=every)
    return attrs.evolve(config, evaluation=section)
