"""From a request to a checked config and the plugins that it names: before any environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from rlplug.config.sections import CORE_SECTIONS, RunConfig, RunSection
from rlplug.config.sources import Layers, Setting, locate, read_toml
from rlplug.config.strict import structure
from rlplug.config.toml import flat
from rlplug.errors import ConfigError, Problem, RequestError, did_you_mean
from rlplug.hooks.calls import HookCalls
from rlplug.plugin import AddOn, Algorithm
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Participant, Registry
from rlplug.runs.presets import lay_preset
from rlplug.runs.request import Request
from rlplug.runs.settled import settle_evaluation

__all__ = ["Prepared", "prepare"]


@attrs.frozen(kw_only=True)
class Prepared:
    """A run that could start: its options, where each came from, and its plugins."""

    config: RunConfig
    origins: Mapping[str, str]
    algorithm: Participant
    addons: tuple[Participant, ...]
    registry: Registry
    """Where other algorithms are found, if this one does not fit."""

    def hooks(self) -> HookCalls:
        """The hooks of the run, all checked."""
        return HookCalls(self.algorithm, self.addons)


def prepare(
    request: Request, registry: Registry, instances: Mapping[str, AddOn] | None = None
) -> Prepared:
    """Find, load and configure what was asked for, or raise everything that is wrong with it.

    Add-ons that are there already, by name, take part as they are, with the options they have.
    """
    instances = {} if instances is None else instances
    layers = Layers()
    if request.config is not None:
        layers.lay(read_toml(request.config), str(request.config))
    layers.lay(request.flags, request.flags_origin)
    for setting in request.settings:
        if setting.key.startswith("run."):
            layers.put(tuple(setting.key.split(".")), setting.value, "--set")
    found = _find(layers.section("run"), registry)
    classes = {plugin.name: registry.load(plugin) for plugin in found}
    algorithm, *addons = found
    kind = classes[algorithm.name]
    options = {one.name: classes[one.name].Config for one in addons}
    problems = _lay_settings(layers, request.settings, kind.Config, options)
    below = _defaults(kind, algorithm)
    problems += lay_preset(below, layers.section("run", "preset"), kind, algorithm)
    below.lay_over(layers)
    problems += _strangers(below.values, options)
    config, found_problems = _structure(below, kind, options)
    problems += found_problems
    if problems or config is None:
        raise ConfigError(_where(request, algorithm), problems, *_advice(problems, found))
    given = {name: one.config for name, one in instances.items()}
    config = attrs.evolve(config, addons={**config.addons, **given})
    plugin = _made(algorithm, kind, config.algorithm)
    if kind.feed is not Algorithm.feed:
        with algorithm.asked("feed"):
            feed = plugin.feed()
        config = settle_evaluation(config, feed, below)
    origins = {".".join(path): origin for path, origin in below.origins.items()}
    return Prepared(
        config=config,
        origins={path: origins.get(path, "default") for path in flat(config)},
        algorithm=Participant(algorithm, plugin, config.algorithm),
        addons=tuple(
            Participant(
                one,
                instances.get(one.name) or _made(one, classes[one.name], config.addons[one.name]),
                config.addons[one.name],
            )
            for one in addons
        ),
        registry=registry,
    )


def _made(found: FoundPlugin, kind: type[Any], config: Any) -> Any:
    with found.asked("__init__"):
        return kind(config)


def _find(run: Any, registry: Registry) -> list[FoundPlugin]:
    """The algorithm and the add-ons that the values of `[run]` name."""
    run = run if isinstance(run, Mapping) else {}
    name = run.get("algorithm", "")
    addons = run.get("addons", [])
    if not isinstance(name, str) or not name:
        if not registry.of_kind(ALGORITHM):
            registry.find(ALGORITHM, "")
        installed = ", ".join(sorted(registry.grouped(ALGORITHM)))
        raise RequestError(
            "no algorithm was named.", f"installed: {installed}", "try: rlplug run --algo NAME"
        )
    if not isinstance(addons, list | tuple) or not all(isinstance(one, str) for one in addons):
        raise ConfigError("[run]", [Problem("run.addons", f"expected list of str, got {addons!r}")])
    found = [registry.find(ALGORITHM, name)]
    return found + [registry.find(ADDON, one) for one in addons]


def _defaults(kind: Any, algorithm: FoundPlugin) -> Layers:
    """What the algorithm would have if nobody said otherwise."""
    layers = Layers()
    origin = f"default of {algorithm.name}"
    layers.put(("run", "env"), kind.default_env, origin)
    layers.put(("run", "steps"), kind.default_steps, origin)
    for path, value in kind.defaults.items():
        layers.put(tuple(path.split(".")), value, origin)
    return layers


def _lay_settings(
    layers: Layers,
    settings: Iterable[Setting],
    algorithm: type[Any],
    addons: Mapping[str, type[Any]],
) -> list[Problem]:
    problems = []
    spelled: dict[tuple[str, ...], str] = {}
    for setting in settings:
        path = locate(setting, algorithm, addons)
        if isinstance(path, Problem):
            problems.append(path)
            continue
        other = spelled.setdefault(path, setting.key)
        if other != setting.key:
            # The same key again is how a command line is corrected; this is not.
            problems.append(Problem(setting.key, f"is the same option as {other!r}: give one"))
        layers.put(path, setting.value, "--set")
    return problems


def _strangers(values: Mapping[str, Any], addons: Mapping[str, Any]) -> list[Problem]:
    """Sections nobody knows, and options of add-ons that do not take part."""
    known = [*CORE_SECTIONS, "algorithm", "addons"]
    problems = []
    for name, section in values.items():
        if name not in known:
            guess = did_you_mean(name, known)
            said = f"unknown section, {guess}" if guess else "unknown section"
            problems.append(Problem(name, said))
        elif not isinstance(section, Mapping):
            problems.append(Problem(name, f"expected a section [{name}], got {section!r}"))
    options = values.get("addons", {})
    for name in options if isinstance(options, Mapping) else ():
        if name not in addons:
            problems.append(
                Problem(f"addons.{name}", f"this add-on does not take part: --with {name}")
            )
    return problems


def _structure(
    layers: Layers, kind: Any, addons: Mapping[str, type[Any]]
) -> tuple[RunConfig | None, list[Problem]]:
    problems: list[Problem] = []
    sections: dict[str, Any] = {}
    for name, section in CORE_SECTIONS.items():
        values = layers.section(name)
        if isinstance(values, Mapping):
            sections[name], found = structure(section, values, name)
            problems += found
    values = layers.section("algorithm")
    given = values if isinstance(values, Mapping) else {}
    options, found = structure(kind.Config, given, "algorithm")
    problems += found
    configs = {}
    for name, config_class in addons.items():
        configs[name], found = structure(
            config_class, layers.section("addons", name), f"addons.{name}"
        )
        problems += found
    if problems:
        return None, problems
    sections["run"] = _named(sections["run"], addons)
    return RunConfig(algorithm=options, addons=configs, **sections), []


def _named(run: RunSection, addons: Mapping[str, Any]) -> RunSection:
    """`package:name` chose the package; from here on the plugin has its short name."""
    return attrs.evolve(run, algorithm=run.algorithm.rpartition(":")[2], addons=tuple(addons))


def _where(request: Request, algorithm: FoundPlugin) -> str:
    source = str(request.config) if request.config is not None else "the options"
    return f"{source} for {algorithm.label}"


def _advice(problems: Iterable[Problem], found: Iterable[FoundPlugin]) -> list[str]:
    paths = [problem.path for problem in problems]
    named = []
    for one in found:
        prefix = "algorithm" if one.kind == ALGORITHM else f"addons.{one.name}"
        if any(path.startswith(prefix) or "." not in path for path in paths):
            named.append(f"see: rlplug plugins show {one.name}")
    return named or ["see: rlplug options"]
