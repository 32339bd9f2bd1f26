"""Turn a request into a checked config and loaded plugins, before any environment is made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs

from rlplug.config.names import Owners, core_owners, names
from rlplug.config.secrets import masked, without_secrets
from rlplug.config.sections import CORE_SECTIONS, ModuleSection, RunConfig
from rlplug.config.sources import Layers, addon_section, locate
from rlplug.config.strict import structure
from rlplug.config.toml import bare_key, flat
from rlplug.errors import ConfigError, Problem, RequestError, did_you_mean
from rlplug.hooks.calls import HookCalls, HookTrace
from rlplug.plugin import ALL_MODULES, AddOn, Algorithm
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Participant, Registry
from rlplug.review.provenance import OptionRecord, Provenance
from rlplug.runs.defaults import derived, with_preset
from rlplug.runs.request import Request, find_plugins, layers_of
from rlplug.tracking.journal import metric_name
from rlplug.tracking.provenance import plugin_record

__all__ = ["Prepared", "overlap", "owners_in", "prepare"]

_LONGEST_ID = 200
"""MLflow's names have 250 characters, with the option's or metric's own."""


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
        paths = [f"{section}.{name}" for section, values in sections.items() for name in values]
        origins = {**self.origins, **dict.fromkeys(paths if origin else (), origin)}
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
        plugins = [plugin_record(participant.found) for participant in calls.participants]
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
    algorithm, *addons = find_plugins(layers, registry)
    unused = sorted(instances.keys() - {addon.name for addon in addons})
    if unused:
        raise RequestError(
            f"the run has no add-on {unused[0]!r}.", "try: the add-ons that it was started with"
        )
    kind = registry.load(algorithm)
    classes = {addon.name: registry.load(addon) for addon in addons}
    options = {name: addon.Config for name, addon in classes.items()}
    owners = owners_in(registry, algorithm.name)
    problems = _apply_settings(layers, request, kind.Config, options, owners)
    resolved, of_preset = with_preset(kind, algorithm, layers.section("run", "preset"))
    resolved.merge_layers(layers)
    problems += of_preset + _unknown_sections(resolved.values, options)
    config, invalid = _structure(resolved, kind.Config, options, owners)
    problems += invalid
    if problems or config is None:
        raise ConfigError(
            f"{request.config or 'the options'} for {algorithm.label}",
            problems,
            f"see: rlplug plugins show all, or rlplug plugins show {algorithm.name}",
        )
    inline = {name: instance.config for name, instance in instances.items()}
    config = attrs.evolve(config, addons={**config.addons, **inline})
    with algorithm.calling("__init__"):
        plugin = kind(config.algorithm)
    one_step = None
    if kind.feed is not Algorithm.feed:
        with algorithm.calling("feed"):
            one_step = bool(getattr(plugin.feed(), "one_step_episodes", False))
        config = derived(config, one_step, resolved)
    participants = []
    for addon in addons:
        own = config.addons[addon.name]
        with addon.calling("__init__"):
            instance = instances.get(addon.name) or classes[addon.name](own)
        participants.append(Participant(addon, instance, own))
    origins = {".".join(path): origin for path, origin in resolved.origins.items()}
    return Prepared(
        config=config,
        defaults=_default_values(config, kind, algorithm, options, one_step),
        origins={path: origins.get(path, "default") for path in flat(config)},
        algorithm=Participant(algorithm, plugin, config.algorithm),
        addons=tuple(participants),
        registry=registry,
    )


def owners_in(registry: Registry, but: str) -> Owners:
    """Finds who has an option of some name, apart from one algorithm; imports all plugins."""

    @cache
    def known() -> dict[str, list[str]]:
        algorithms, addons = registry.others(ALGORITHM, but), registry.others(ADDON, "")
        return {
            **{found.name: names(kind.Config) for found, kind in algorithms},
            **{f"add-on {found.name}": names(kind.Config) for found, kind in addons},
        }

    def owners(option: str) -> list[str]:
        return [*core_owners(option), *(name for name, of in known().items() if option in of)]

    return owners


def overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether one of two paths of options gives the other one, too."""
    return all(here == there for here, there in zip(one, other, strict=False))


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
        twice = [key for other, key in given.items() if overlap(other, path)]
        if twice:
            problems.append(Problem(setting.key, f"is given twice, also as {twice[0]!r}"))
        given[path] = setting.key
        layers.put(path, setting.value, "--set")
    return problems


def _unknown_sections(values: Mapping[str, Any], addons: Mapping[str, Any]) -> list[Problem]:
    """Unknown sections, and options of add-ons that are not used."""
    known = [*CORE_SECTIONS, "algorithm", "addons", "modules"]
    problems = []
    for name in values:
        if name not in known:
            guess = addon_section(name, addons) or did_you_mean(name, known)
            problems.append(Problem(name, f"unknown section, {guess}".removesuffix(", ")))
    for name in values.get("addons", ()):
        if name not in addons:
            unused = f"this add-on is not used: add --with {name}"
            problems.append(Problem(f"addons.{name}", unused))
    return problems


def _structure(
    layers: Layers, algorithm: type[Any], addons: Mapping[str, type[Any]], owners: Owners
) -> tuple[RunConfig | None, list[Problem]]:
    problems: list[Problem] = []

    def structured(kind: type[Any], values: Any, path: str) -> Any:
        options, invalid = structure(kind, values, path, owners)
        problems.extend(invalid)
        return options

    sections = {
        name: structured(section, layers.section(name), name)
        for name, section in CORE_SECTIONS.items()
    }
    base = layers.section("algorithm")
    options = structured(algorithm, base, "algorithm")
    configs = {
        name: structured(config, layers.section("addons", name), f"addons.{name}")
        for name, config in addons.items()
    }
    modules: dict[str, ModuleSection] = {}
    for name, values in layers.section("modules").items():
        path = f"modules.{bare_key(name)}"
        if name in (ALL_MODULES, "all") or metric_name(name) != name or len(name) > _LONGEST_ID:
            rule = "choose an id of letters, digits, spaces, and _ - . : /, which names metrics"
            problems.append(Problem(path, rule))
            continue
        modules[name] = structured(ModuleSection, values, path)
        if modules[name] is not None and options is not None:
            structured(algorithm, {**base, **modules[name].options}, path)
    if "league" in layers.values and not layers.section("league"):
        problems.append(Problem("league", "is empty: set every or win_rate"))
    if problems:
        return None, problems
    # `package:name` selected a package; the recorded name is the short one.
    short = sections["run"].algorithm.rpartition(":")[2]
    sections["run"] = attrs.evolve(sections["run"], algorithm=short, addons=tuple(addons))
    return RunConfig(algorithm=options, addons=configs, modules=modules, **sections), []


def _default_values(
    config: RunConfig,
    kind: type[Any],
    found: FoundPlugin,
    addons: Mapping[str, type[Any]],
    one_step: bool | None,
) -> dict[str, Any]:
    """All options as they are by default, or by the preset, with as many steps."""
    layers, _ = with_preset(kind, found, config.run.preset)
    layers.put(("run", "algorithm"), config.run.algorithm, "request")
    layers.put(("run", "steps"), config.run.steps, "request")
    if config.data.is_used:
        # Other options of runs that learn from a log have their defaults in such runs.
        layers.put(("run", "env"), config.run.env, "request")
        layers.put(("data", "files"), list(config.data.files), "request")
    default, _ = _structure(layers, kind.Config, addons, core_owners)
    if default is None:
        # The algorithm's own defaults are not valid; what was asked for is.
        return {}
    if one_step is not None:
        default = derived(default, one_step, layers)
    return {**flat(default), "data.files": []}
