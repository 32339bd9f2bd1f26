"""Turn a request into a checked config and loaded plugins, before any environment is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
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
from rlplug.runs.defaults import algorithm_defaults, apply_preset, derive_evaluation

__all__ = ["Prepared", "Request", "prepare"]


@attrs.frozen(kw_only=True)
class Request:
    """What to run, as asked for on the command line or in `rlplug.run`; nothing looked up yet."""

    config: Path | None = None
    """A TOML file."""
    flags: Mapping[str, Any] = attrs.field(factory=dict)
    """Values of dedicated flags, nested: `{"run": {"seed": 1}}`."""
    settings: tuple[Setting, ...] = ()
    """`--set`, in order: later ones win."""
    flags_origin: str = "command line"


@attrs.frozen(kw_only=True)
class Prepared:
    """A run ready to start: its options, their origins, and its plugins."""

    config: RunConfig
    origins: Mapping[str, str]
    algorithm: Participant
    addons: tuple[Participant, ...]
    registry: Registry
    """For suggesting other algorithms."""

    def hooks(self) -> HookCalls:
        """The run's hooks, checked."""
        return HookCalls(self.algorithm, self.addons)


def prepare(
    request: Request, registry: Registry, instances: Mapping[str, AddOn] | None = None
) -> Prepared:
    """Find, load and configure the plugins, or raise all problems at once.

    `instances` are inline add-ons by name; they keep their own options.
    """
    instances = {} if instances is None else instances
    layers = Layers()
    if request.config is not None:
        layers.merge(read_toml(request.config), str(request.config))
    layers.merge(request.flags, request.flags_origin)
    for setting in request.settings:
        if setting.key.startswith("run."):
            layers.put(tuple(setting.key.split(".")), setting.value, "--set")
    found = _find(layers.section("run"), registry)
    classes = {plugin.name: registry.load(plugin) for plugin in found}
    algorithm, *addons = found
    kind = classes[algorithm.name]
    options = {one.name: classes[one.name].Config for one in addons}
    problems = _apply_settings(layers, request.settings, kind.Config, options)
    resolved = algorithm_defaults(kind, algorithm)
    problems += apply_preset(resolved, layers.section("run", "preset"), kind, algorithm)
    resolved.merge_layers(layers)
    problems += _unknown_sections(resolved.values, options)
    config, found_problems = _structure(resolved, kind, options)
    problems += found_problems
    if problems or config is None:
        raise ConfigError(_source(request, algorithm), problems, *_hints(problems, found))
    inline = {name: one.config for name, one in instances.items()}
    config = attrs.evolve(config, addons={**config.addons, **inline})
    plugin = _instantiate(algorithm, kind, config.algorithm)
    if kind.feed is not Algorithm.feed:
        with algorithm.calling("feed"):
            feed = plugin.feed()
        config = derive_evaluation(config, feed, resolved)
    origins = {".".join(path): origin for path, origin in resolved.origins.items()}
    return Prepared(
        config=config,
        origins={path: origins.get(path, "default") for path in flat(config)},
        algorithm=Participant(algorithm, plugin, config.algorithm),
        addons=tuple(
            Participant(
                one,
                instances.get(one.name)
                or _instantiate(one, classes[one.name], config.addons[one.name]),
                config.addons[one.name],
            )
            for one in addons
        ),
        registry=registry,
    )


def _instantiate(found: FoundPlugin, kind: type[Any], config: Any) -> Any:
    with found.calling("__init__"):
        return kind(config)


def _find(run: Any, registry: Registry) -> list[FoundPlugin]:
    """The algorithm and the add-ons named in `[run]`."""
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


def _apply_settings(
    layers: Layers,
    settings: Iterable[Setting],
    algorithm: type[Any],
    addons: Mapping[str, type[Any]],
) -> list[Problem]:
    problems = []
    spellings: dict[tuple[str, ...], str] = {}
    for setting in settings:
        path = locate(setting, algorithm, addons)
        if isinstance(path, Problem):
            problems.append(path)
            continue
        other = spellings.setdefault(path, setting.key)
        if other != setting.key:
            # Repeating a key overrides it; two spellings of one option are an error.
            problems.append(Problem(setting.key, f"is the same option as {other!r}: set one"))
        layers.put(path, setting.value, "--set")
    return problems


def _unknown_sections(values: Mapping[str, Any], addons: Mapping[str, Any]) -> list[Problem]:
    """Unknown sections, and options of add-ons that are not used."""
    known = [*CORE_SECTIONS, "algorithm", "addons"]
    problems = []
    for name, section in values.items():
        if name not in known:
            guess = did_you_mean(name, known)
            message = f"unknown section, {guess}" if guess else "unknown section"
            problems.append(Problem(name, message))
        elif not isinstance(section, Mapping):
            problems.append(Problem(name, f"expected a section [{name}], got {section!r}"))
    options = values.get("addons", {})
    for name in options if isinstance(options, Mapping) else ():
        if name not in addons:
            problems.append(
                Problem(f"addons.{name}", f"this add-on is not used: add --with {name}")
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
    values = values if isinstance(values, Mapping) else {}
    options, found = structure(kind.Config, values, "algorithm")
    problems += found
    configs = {}
    for name, config_class in addons.items():
        configs[name], found = structure(
            config_class, layers.section("addons", name), f"addons.{name}"
        )
        problems += found
    if problems:
        return None, problems
    sections["run"] = _with_short_names(sections["run"], addons)
    return RunConfig(algorithm=options, addons=configs, **sections), []


def _with_short_names(run: RunSection, addons: Mapping[str, Any]) -> RunSection:
    """`package:name` selected a package; the recorded name is the short one."""
    return attrs.evolve(run, algorithm=run.algorithm.rpartition(":")[2], addons=tuple(addons))


def _source(request: Request, algorithm: FoundPlugin) -> str:
    source = str(request.config) if request.config is not None else "the options"
    return f"{source} for {algorithm.label}"


def _hints(problems: Iterable[Problem], found: Iterable[FoundPlugin]) -> list[str]:
    paths = [problem.path for problem in problems]
    named = []
    for one in found:
        prefix = "algorithm" if one.kind == ALGORITHM else f"addons.{one.name}"
        if any(path.startswith(prefix) or "." not in path for path in paths):
            named.append(f"see: rlplug plugins show {one.name}")
    return named or ["see: rlplug options"]
