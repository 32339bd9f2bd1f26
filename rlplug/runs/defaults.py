"""Defaults of a run: the algorithm's own, those of a preset, and derived ones."""

from __future__ import annotations

from typing import Any

import attrs

from rlplug.config.sections import DataSection, EnvSection, RunConfig
from rlplug.config.sources import Layers, Setting, locate
from rlplug.durable import absolute_path
from rlplug.errors import ConfigError, PluginError, Problem, did_you_mean
from rlplug.registry import FoundPlugin

__all__ = ["derived", "with_preset"]

_NOT_IN_PRESETS = {("run", "algorithm"), ("run", "addons"), ("run", "preset")}
_EVALUATIONS, _EPISODES_OF_BANDITS = 10, 1000
_NO_LOG = DataSection()


def with_preset(
    algorithm: type[Any], found: FoundPlugin, preset: Any
) -> tuple[Layers, list[Problem]]:
    """The algorithm's defaults, overridden by its preset of this name; an empty name means none."""
    layers, problems = Layers(), []
    origin = f"default of {found.name}"
    layers.put(("run", "env"), algorithm.default_env, origin)
    layers.put(("run", "steps"), algorithm.default_steps, origin)
    for name, value in algorithm.defaults.items():
        layers.put(tuple(name.split(".")), value, origin)
    if not isinstance(preset, str) or not preset:
        return layers, []
    presets = algorithm.presets
    if preset not in presets:
        guess = did_you_mean(preset, presets, sentence=True)
        raise PluginError(
            f"{found.label} has no preset {preset!r}. {guess}".rstrip(),
            f"presets: {', '.join(presets) or 'none'}",
            f"see: rlplug plugins show {found.name}",
        )
    for key, value in presets[preset].items():
        path = locate(Setting(key, value), algorithm.Config, {})
        if isinstance(path, Problem):
            problems.append(Problem(f"preset {preset}: {path.path}", path.message))
        elif path in _NOT_IN_PRESETS:
            problems.append(Problem(f"preset {preset}: {key}", "cannot be set by a preset"))
        else:
            layers.put(path, value, f"preset {preset}")
    return layers, problems


def derived(config: RunConfig, one_step: bool, layers: Layers) -> RunConfig:
    """The defaults that depend on other options: of runs that learn from a log, of evaluations.

    Unless set, a run evaluates ten times, but not at all where episodes have one step: a bandit's
    reward while it learns is its result (regret), and greedy episodes would only cost time. A run
    from a log has no environment, as the default one has nothing to do with the log, and makes one
    pass over it.
    """
    values: dict[tuple[str, str], tuple[Any, str]] = {}
    if config.data.is_used:
        values = _of_log(config, one_step, layers)
    elif config.data != _NO_LOG:
        raise ConfigError(
            "a run that learns in an environment",
            [
                Problem(f"data.{field.name}", "has no effect without a log")
                for field in attrs.fields(DataSection)
                if getattr(config.data, field.name) != getattr(_NO_LOG, field.name)
            ],
            "try: --data FILE, or env.NAME for an argument of the environment",
        )
    evaluated = [path[1] for path in layers.origins if path[0] == "evaluation" and path[1:]]
    if one_step and not evaluated and not config.data.is_used:
        values["evaluation", "episodes"] = 0, "default for one-step episodes"
    elif "every" not in evaluated:
        steps, _ = values.get(("run", "steps"), (config.run.steps, ""))
        values["evaluation", "every"] = max(steps // _EVALUATIONS, 1), "a tenth of run.steps"
    sections: dict[str, Any] = {}
    for (section, name), (value, origin) in values.items():
        layers.put((section, name), value, origin)
        options = sections.get(section, getattr(config, section))
        sections[section] = attrs.evolve(options, **{name: value})
    return attrs.evolve(config, **sections)


def _of_log(
    config: RunConfig, one_step: bool, layers: Layers
) -> dict[tuple[str, str], tuple[Any, str]]:
    """The values of options in a run that learns from a log, and where they come from."""
    if config.sampling.record:
        problem = Problem("sampling.record", "has no effect on a run that learns from a log")
        raise ConfigError(
            "a run that learns from a log", [problem], "try: rlplug eval --save-episodes"
        )
    values: dict[tuple[str, str], tuple[Any, str]] = {}
    if not config.run.env or _is_default(layers, "run", "env"):
        _refuse_without_env(config, layers)
        values["run", "env"] = "", "no environment: data.files"
        values["evaluation", "episodes"] = 0, "no environment"
    elif one_step and _is_default(layers, "evaluation", "episodes"):
        values["evaluation", "episodes"] = _EPISODES_OF_BANDITS, "default for one-step episodes"
    # A policy that was trained is loaded without the log: its steps are known.
    if _is_default(layers, "run", "steps"):
        from rlplug.logs import Log

        values["run", "steps"] = Log.open(config.data).rows, "the rows of the log"
    if config.data.format != "minari":
        files = tuple(str(absolute_path(file, "data.files:")) for file in config.data.files)
        values["data", "files"] = files, layers.origins.get(("data", "files"), "default")
    return values


def _is_default(layers: Layers, *path: str) -> bool:
    return layers.origins.get(path, "default").startswith("default")


def _refuse_without_env(config: RunConfig, layers: Layers) -> None:
    """Refuse options of environments where there is none."""
    given = [
        path
        for path, origin in layers.origins.items()
        if path[1:] and not origin.startswith(("default", "no environment"))
    ]
    problems = [
        Problem(".".join(path), "has no effect without an environment")
        for path in given
        if (path[0] == "env" and config.env != EnvSection())
        or (path[0] == "evaluation" and config.evaluation.episodes)
    ]
    if config.sampling.backend != "in_process":
        problems.append(Problem("sampling.backend", "a log is read in this process"))
    if problems:
        raise ConfigError(
            "a run that learns from a log", problems, "try: --env ID, or leave these options out"
        )
