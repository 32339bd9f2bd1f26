"""Turn a request into a checked config and loaded plugins, before any environment is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from rlplug.config.names import Owners, core_owners
from rlplug.config.secrets import masked, without_secrets
from rlplug.config.sections import CORE_SECTIONS, RunConfig, RunSection
from rlplug.config.sources import Layers, addon_section, locate
from rlplug.config.strict import structure
from rlplug.config.toml import flat
from rlplug.errors import ConfigError, Problem, did_you_mean
from rlplug.hooks.calls import HookCalls, HookTrace
from rlplug.plugin import AddOn, Algorithm
from rlplug.registry import ALGORITHM, FoundPlugin, Participant, Registry
from rlplug.review.provenance import OptionRecord, Provenance
from rlplug.runs.defaults import algorithm_defaults, apply_preset, derived
from rlplug.runs.module_sections import module_sections
from rlplug.runs.other_plugins import OtherPlugins
from rlplug.runs.request import Request, find_plugins, layers_of, no_section
from rlplug.tracking.provenance import plugin_record

__all__ = ["Prepared", "overlap", "prepare"]


@attrs.frozen(kw_only=True)
class Prepared:
    """A run ready to start: its options, their origins, and its plugins."""

    config: RunConfig
    origins: Mapping[str, str]
    defaults: Mapping[str, Any]
    """The values that options would have had without a request; those of a preset are kept."""
    algorithm: Participant
    addons: tuple[Participant, ...]
    registry: Registry
    """For suggesting other algorithms."""

    @property
    def chosen(self) -> dict[str, Any]:
        """The options whose values differ from the defaults; none where those are not valid."""
        if not self.defaults:
            return {}
        return {
            path: value
            for path, value in flat(self.config).items()
            if self.defaults.get(path) != value
        }

    def with_options(self, *, origin: str = "", **sections: Mapping[str, Any]) -> Prepared:
        """With other values of some options, which are of that origin: `run={"seed": 1}`."""
        changed = {
            name: attrs.evolve(getattr(self.config, name), **values)
            for name, values in sections.items()
        }
        names = [f"{section}.{name}" for section, values in sections.items() for name in values]
        origins = {**self.origins, **dict.fromkeys(names if origin else (), origin)}
        return attrs.evolve(self, config=attrs.evolve(self.config, **changed), origins=origins)

    def provenance(self, calls: HookCalls) -> Provenance:
        """Where options and plugins come from."""
        options = {
            path: OptionRecord(
                value=masked(value, path),
                default=masked(self.defaults.get(path)),
                origin=without_secrets(self.origins.get(path, "default")),
            )
            for path, value in flat(self.config).items()
        }
        plugins = [plugin_record(one.found) for one in calls.participants]
        return Provenance(options=options, plugins=tuple(plugins), hooks=calls.order())

    def hooks(self) -> HookCalls:
        """The run's hooks, checked."""
        trace = HookTrace() if self.config.learner.trace_hooks else None
        return HookCalls(self.algorithm, self.addons, trace=trace)


def prepare(
    request: Request, registry: Registry, instances: Mapping[str, AddOn] | None = None
) -> Prepared:
    """Find, load and configure the plugins, or raise all problems at once.

    `instances` are inline add-ons by name; they keep their own options.
    """
    instances = {} if instances is None else instances
    layers = layers_of(request)
    found = find_plugins(layers, registry)
    classes = {plugin.name: registry.load(plugin) for plugin in found}
    algorithm, *addons = found
    kind = classes[algorithm.name]
    options = {one.name: classes[one.name].Config for one in addons}
    others = OtherPlugins(registry, algorithm)
    problems = _apply_settings(layers, request, kind.Config, options, others.owners)
    resolved = algorithm_defaults(kind, algorithm)
    problems += apply_preset(resolved, layers.section("run", "preset"), kind, algorithm)
    resolved.merge_layers(layers)
    problems += _unknown_sections(resolved.values, options)
    config, found_problems = _structure(resolved, kind, options, others.owners)
    problems += found_problems
    stranger = others.file_for_another(request, kind.Config)
    if stranger is not None:
        problems = [one for one in problems if not _is_of_file(one, request, layers)] + [stranger]
    if problems or config is None:
        raise ConfigError(_source(request, algorithm, problems), problems, *_hints(problems, found))
    inline = {name: one.config for name, one in instances.items()}
    config = attrs.evolve(config, addons={**config.addons, **inline})
    plugin = _instantiate(algorithm, kind, config.algorithm)
    feed = None
    if kind.feed is not Algorithm.feed:
        with algorithm.calling("feed"):
            feed = plugin.feed()
        config = derived(config, feed, resolved)
    origins = {".".join(path): origin for path, origin in resolved.origins.items()}
    defaults = algorithm_defaults(kind, algorithm)
    apply_preset(defaults, config.run.preset, kind, algorithm)
    return Prepared(
        config=config,
        defaults=_default_values(config, defaults, kind, options, feed),
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


def _default_values(
    config: RunConfig,
    defaults: Layers,
    kind: type[Any],
    addons: Mapping[str, type[Any]],
    feed: Any,
) -> dict[str, Any]:
    """All options as they are by default, or by the preset, with as many steps."""
    defaults.put(("run", "algorithm"), config.run.algorithm, "request")
    defaults.put(("run", "steps"), config.run.steps, "request")
    if config.data.is_used:
        # Other options of runs that learn from a log have their defaults in such runs.
        defaults.put(("run", "env"), config.run.env, "request")
        defaults.put(("data", "files"), list(config.data.files), "request")
    default, problems = _structure(defaults, kind, addons, core_owners)
    if problems or default is None:
        # The algorithm's own defaults are not valid; what was asked for is.
        return {}
    if feed is not None:
        default = derived(default, feed, defaults)
    values = flat(default)
    if config.data.is_used:
        values["data.files"] = []
    return values


def _instantiate(found: FoundPlugin, kind: type[Any], config: Any) -> Any:
    with found.calling("__init__"):
        return kind(config)


def _apply_settings(
    layers: Layers,
    request: Request,
    algorithm: type[Any],
    addons: Mapping[str, type[Any]],
    owners: Owners,
) -> list[Problem]:
    """Override with `--set`; an option that is given twice, in whatever way, is a problem."""
    problems = []
    flags = Layers()
    flags.merge(request.flags, request.flags_origin)
    given = {path: request.flag_names.get(path[1], path[1]) for path in flags.origins if path[1:]}
    for setting in request.settings:
        path = locate(setting, algorithm, addons, owners)
        if isinstance(path, Problem):
            problems.append(path)
            continue
        # `tracking.tags` also gives the option `tracking.tags.team`.
        other = next((key for one, key in given.items() if overlap(one, path)), None)
        if other == setting.key:
            problems.append(Problem(setting.key, "is given twice: set it once"))
        elif other is not None:
            problems.append(Problem(setting.key, f"is the same option as {other!r}: set one"))
        given[path] = setting.key
        layers.put(path, setting.value, "--set")
    return problems


def _is_of_file(problem: Problem, request: Request, layers: Layers) -> bool:
    """Whether a problem is with an option of the algorithm that the file sets."""
    section, _, option = problem.path.partition(".")
    path = (section, option.partition("[")[0])
    return section == "algorithm" and layers.origins.get(path) == str(request.config)


def overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether one of two paths of options gives the other one, too."""
    return all(here == there for here, there in zip(one, other, strict=False))


def _unknown_sections(values: Mapping[str, Any], addons: Mapping[str, Any]) -> list[Problem]:
    """Unknown sections, and options of add-ons that are not used."""
    known = [*CORE_SECTIONS, "algorithm", "addons", "modules"]
    problems = []
    for name, section in values.items():
        if name not in known:
            guess = addon_section(name, addons) or did_you_mean(name, known)
            message = f"unknown section, {guess}" if guess else "unknown section"
            problems.append(Problem(name, message))
        elif not isinstance(section, Mapping):
            problems.append(no_section(name, section))
    options = values.get("addons", {})
    for name in options if isinstance(options, Mapping) else ():
        if name not in addons:
            problems.append(
                Problem(f"addons.{name}", f"this add-on is not used: add --with {name}")
            )
    return problems


def _structure(
    layers: Layers, kind: Any, addons: Mapping[str, type[Any]], owners: Owners
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
    options, found = structure(kind.Config, values, "algorithm", owners)
    problems += found
    configs = {}
    for name, config_class in addons.items():
        configs[name], found = structure(
            config_class, layers.section("addons", name), f"addons.{name}", owners
        )
        problems += found
    modules, found = module_sections(layers, kind.Config, owners)
    problems += found
    if "league" in layers.values and not layers.section("league"):
        problems.append(Problem("league", "is empty: set every or win_rate"))
    if problems:
        return None, problems
    sections["run"] = _with_short_names(sections["run"], addons)
    return RunConfig(algorithm=options, addons=configs, modules=modules, **sections), []


def _with_short_names(run: RunSection, addons: Mapping[str, Any]) -> RunSection:
    """`package:name` selected a package; the recorded name is the short one."""
    return attrs.evolve(run, algorithm=run.algorithm.rpartition(":")[2], addons=tuple(addons))


def _source(request: Request, algorithm: FoundPlugin, problems: Iterable[Problem]) -> str:
    given = {setting.key for setting in request.settings}
    is_of_file = request.config is not None and any(one.path not in given for one in problems)
    return f"{request.config if is_of_file else 'the options'} for {algorithm.label}"


def _hints(problems: Iterable[Problem], found: Iterable[FoundPlugin]) -> list[str]:
    paths = [problem.path for problem in problems]
    named = []
    for one in found:
        prefix = "algorithm" if one.kind == ALGORITHM else f"addons.{one.name}"
        if any(
            path.startswith(prefix) or ("." not in path and path not in CORE_SECTIONS)
            for path in paths
        ):
            named.append(f"see: rlplug plugins show {one.name}")
    return named or ["see: rlplug plugins show all"]
