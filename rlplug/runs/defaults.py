"""Defaults of a run: the algorithm's own, those of a preset, and derived ones."""

from __future__ import annotations

from typing import Any

import attrs

from rlplug.config.sections import DataSection, EnvSection, RunConfig
from rlplug.config.sources import Layers, Setting, locate
from rlplug.durable import absolute_path
from rlplug.errors import ConfigError, PluginError, Problem, RequestError, did_you_mean
from rlplug.registry import FoundPlugin

__all__ = ["algorithm_defaults", "apply_preset", "derived"]

_NOT_IN_PRESETS = {("run", "algorithm"), ("run", "addons"), ("run", "preset")}
_EVALUATIONS, _EPISODES_OF_BANDITS = 10, 1000


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


def derived(config: RunConfig, feed: Any, layers: Layers) -> RunConfig:
    """The defaults that depend on other options: of runs that learn from a log, of evaluations.

    Unless set, a run evaluates ten times, but not at all where episodes have one step: a bandit's
    reward while it learns is its result (regret), and greedy episodes would only cost time. A run
    from a log has no environment, as the default one has nothing to do with the log, and makes one
    pass over it.
    """
    one_step = bool(getattr(feed, "one_step_episodes", False))
    values: dict[tuple[str, str], tuple[Any, str]] = {}
    if config.data.is_used:
        values = _of_log(config, one_step, layers)
    else:
        _refuse_without_log(config.data)
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
        raise RequestError(
            "sampling.record has no effect on a run that learns from a log: nothing acts.",
            "try: rlplug eval RUN --env ID --record DIR",
        )
    values: dict[tuple[str, str], tuple[Any, str]] = {}
    env = "" if _is_default(layers, "run", "env") else config.run.env
    if not env:
        values["run", "env"] = "", "no environment: data.files"
        _refuse_without_env(config, layers)
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


def _refuse_without_log(data: DataSection) -> None:
    """Refuse options of logs where there is none: `num_arms` alone is one of them."""
    names = [
        field.name
        for field in attrs.fields(DataSection)
        if getattr(data, field.name) != getattr(_NO_LOG, field.name)
    ]
    if names:
        raise ConfigError(
            "a run that learns in an environment",
            [Problem(f"data.{name}", "has no effect without a log") for name in names],
            "try: --data FILE, or env.NAME for an argument of the environment",
        )


def _refuse_without_env(config: RunConfig, layers: Layers) -> None:
    """Refuse options of environments where there is none."""
    problems = []
    for path, origin in layers.origins.items():
        if not path[1:] or origin.startswith(("default", "no environment")):
            continue
        if path[0] == "env" and config.env != EnvSection():
            problems.append(Problem(".".join(path), "has no effect without an environment"))
        elif path[0] == "evaluation" and config.evaluation.episodes:
            problems.append(Problem(".".join(path), "there is no environment to evaluate in"))
    if config.sampling.backend != "in_process":
        problems.append(Problem("sampling.backend", "a log is read in this process"))
    if problems:
        raise ConfigError(
            "a run that learns from a log", problems, "try: --env ID, or leave these options out"
        )


_NO_LOG = DataSection()
