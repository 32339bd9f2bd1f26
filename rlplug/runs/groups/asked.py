"""What a group is asked to do, checked as a whole before its first run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

import attrs
import tomli_w

from rlplug.checkpoint import lasting_name
from rlplug.config.secrets import masked
from rlplug.config.sections import CORE_SECTIONS, TuneSection
from rlplug.config.sources import Setting, locate, read_toml
from rlplug.config.strict import structure
from rlplug.config.toml import flat, toml_value
from rlplug.errors import ConfigError, Problem
from rlplug.registry import Registry
from rlplug.runs.groups import study
from rlplug.runs.groups.seeds import parse_seeds
from rlplug.runs.prepare import Prepared, owners_in, prepare
from rlplug.runs.request import TUNE, Request, find_plugins, layers_of

__all__ = ["Asked", "Search", "search_of"]

_EXPECTED = "expected { low = 0.1, high = 1.0 } or { choices = [1, 2] }"

_FIXED = {
    ("run", "algorithm"): "a study is of one algorithm",
    ("run", "addons"): "a study is of the same add-ons",
    ("run", "seed"): "seeds are not searched: use --seeds",
}


@attrs.frozen(kw_only=True)
class Search:
    """How the options of the runs are searched."""

    request: Request
    """The run without what is searched."""
    section: TuneSection
    space: Mapping[str, Any]
    """Option → Optuna's distribution."""
    given: Mapping[str, Any]
    """The section as it was given, without defaults."""
    registry: Registry

    def prepared(self, values: Mapping[str, Any]) -> Prepared:
        """The run with these values."""
        chosen = [Setting(name, value) for name, value in values.items()]
        settings = (*self.request.settings, *chosen)
        return prepare(attrs.evolve(self.request, settings=settings), self.registry)

    @property
    def masked_settings(self) -> list[dict[str, Any]]:
        """`--set` without secrets, as JSON values."""
        settings = self.request.settings
        return [{"key": each.key, "value": masked(each.value, each.key)} for each in settings]

    def as_toml(self) -> bytes:
        """The options of the runs, as they were asked for, but for `--set`."""
        layers = layers_of(attrs.evolve(self.request, settings=()))
        return tomli_w.dumps(masked(dict(layers.values))).encode()


@attrs.frozen(kw_only=True)
class Asked:
    """The runs of a group: one per seed, of each trial if their options are searched."""

    prepared: Prepared
    """A first run."""
    seeds: tuple[int, ...]
    name: str = ""
    """The group's; empty: after what is run."""
    search: Search | None = None

    @classmethod
    def of_seeds(cls, prepared: Prepared, seeds: tuple[int, ...]) -> Asked:
        """Seeds of a run, whose name is that of the group."""
        return cls(prepared=prepared, seeds=seeds, name=prepared.config.tracking.run_name)

    @property
    def count(self) -> int:
        """How many runs there are at most."""
        return len(self.seeds) * (1 if self.search is None else self.search.section.trials)

    @property
    def evaluate_every(self) -> int:
        """Steps between evaluations; 0: there are none before the end."""
        evaluation, steps = self.prepared.config.evaluation, self.prepared.config.run.steps
        return evaluation.every if evaluation.episodes and 0 < evaluation.every < steps else 0

    @property
    def options(self) -> dict[str, str]:
        """All that the results of a study depend on, as text: it does not go on with others.

        Not where it runs, how it is recorded, or how long.
        """
        if self.search is None:
            return {}
        options = {
            name: toml_value(masked(value, name))
            for name, value in flat(self.prepared.config).items()
            if name.partition(".")[0] not in ("tracking", "scale") and name != "run.seed"
        }
        section = attrs.asdict(self.search.section) | {"seeds": list(self.seeds)}
        del section["trials"]
        return options | {f"tune.{name}": toml_value(value) for name, value in section.items()}

    def with_lasting_weights(self) -> Asked:
        """All runs start from the same weights: `last` must not mean the first of them."""
        initial = self.prepared.config.run.init_from
        if not initial:
            return self
        prepared = self.prepared.with_options(run={"init_from": lasting_name(initial)})
        return attrs.evolve(self, prepared=prepared)

    def run(self, name: str, seed: int, values: Mapping[str, Any]) -> Prepared:
        """A run; what would be the same for all has the name of this one."""
        config, prepared = self.prepared.config, self.prepared
        sections: dict[str, Mapping[str, Any]] = {"run": {"seed": seed}}
        if self.search is not None:
            prepared = self.search.prepared(values)
        elif self.name:
            sections["tracking"] = {"run_name": f"{self.name}-s{seed}"}
        if config.sampling.record:
            record = f"{config.sampling.record}/{name.replace(' ', '-')}"
            sections["sampling"] = {"record": record}
        return prepared.with_options(origin="--seeds", **sections)


def search_of(
    request: Request, flags: Mapping[str, Any], registry: Registry, name: str = ""
) -> Asked:
    """A study, of a request and the flags of `[tune]`, or raise all that is wrong with them."""
    study.import_optuna()
    given, run = _split(request, flags)
    section, problems = structure(TuneSection, given, TUNE)
    space, wrong = _space(run, given.get("space", {}), registry)
    problems += wrong
    if section is not None:
        problems += study.optuna_problems(section, space)
    if problems or section is None:
        source = str(run.config) if run.config is not None else "the study"
        raise ConfigError(source, problems, "see: rlplug plugins show tune")
    if section.sampler == "grid":
        count = math.prod(study.combinations(found) or 1 for found in space.values())
        section = attrs.evolve(section, trials=min(section.trials, count))
    search = Search(request=run, section=section, space=space, given=given, registry=registry)
    prepared = _first_trial(search)
    seeds = parse_seeds(str(section.seeds)) if section.seeds else (prepared.config.run.seed,)
    return Asked(prepared=prepared, seeds=seeds, name=name, search=search)


def _first_trial(search: Search) -> Prepared:
    """A trial with the values at one end of all ranges; raises what is wrong with single values.

    Two options that contradict each other fail a trial: others of their values may not.
    """
    prepared, problems = None, []
    ranges = search.section.space
    for end in (1, 0):
        try:
            prepared = search.prepared(
                {name: study.ends(given)[end] for name, given in ranges.items()}
            )
        except ConfigError as error:
            found = [problem for problem in error.problems if "." in problem.path]
            problems += [problem for problem in found if problem not in problems]
    if problems:
        raise ConfigError("the ranges of the study", problems, "see: rlplug plugins show tune")
    return prepared or search.prepared({})


def _split(request: Request, flags: Mapping[str, Any]) -> tuple[dict[str, Any], Request]:
    """The values of `[tune]` in the file, the flags and `--set`, and the request of the run."""
    file = {} if request.config is None else read_toml(request.config).get(TUNE, {})
    if not isinstance(file, Mapping):
        problem = Problem(TUNE, f"expected a section [{TUNE}], got {file!r}")
        raise ConfigError(str(request.config), [problem], "see: rlplug plugins show tune")
    given = {**file, **flags}
    space = {**dict(_flat(file.get("space"))), **dict(_flat(flags.get("space")))}
    tuning = [setting for setting in request.settings if setting.key.startswith(f"{TUNE}.")]
    for setting in tuning:
        _, name, *rest = setting.key.split(".")
        # `tune.space.run.env` is the range of `run.env`.
        inner = {".".join(rest): setting.value}
        if name == "space":
            space |= inner if rest else dict(_flat(setting.value))
        else:
            given[name] = {**given.get(name, {}), **inner} if rest else setting.value
    kept = tuple(setting for setting in request.settings if setting not in tuning)
    return {**given, "space": space}, attrs.evolve(request, settings=kept)


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The ranges in a table; `sampling.num_envs` may be a key or a table in a table."""
    for name, value in values.items() if isinstance(values, Mapping) else ():
        is_table = isinstance(value, Mapping) and value
        if is_table and all(isinstance(inner, Mapping) for inner in value.values()):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _space(
    run: Request, ranges: Mapping[str, Any], registry: Registry
) -> tuple[dict[str, Any], list[Problem]]:
    """The distributions, of the kinds of numbers that the options take; what is wrong."""
    found = find_plugins(layers_of(run), registry)
    algorithm, *addons = (registry.load(plugin).Config for plugin in found)
    of_addons = {plugin.name: kind for plugin, kind in zip(found[1:], addons, strict=True)}
    owners = owners_in(registry, found[0].name)
    kinds: dict[tuple[str, ...], Any] = {(name,): kind for name, kind in CORE_SECTIONS.items()}
    kinds |= {("algorithm",): algorithm}
    kinds |= {("addons", name): kind for name, kind in of_addons.items()}
    space, problems = {}, []
    for name, given in ranges.items():
        where = f"tune.space.{name}"
        path = locate(Setting(name, None), algorithm, of_addons, owners)
        if isinstance(path, Problem):
            problems.append(Problem(where, path.message))
            continue
        if path in _FIXED:
            problems.append(Problem(where, f"cannot be searched: {_FIXED[path]}"))
        declared = get_type_hints(kinds[path[:-1]]).get(path[-1]) if path[:-1] in kinds else None
        is_float = declared is float or float in get_args(declared)
        try:
            space[name] = study.distribution(given, is_float=is_float)
        except (AttributeError, TypeError, ValueError) as error:
            problems.append(Problem(where, f"{_EXPECTED}: {str(error).rstrip('.')}"))
    if not ranges:
        example = "--space 'learning_rate={low=1e-5,high=1e-2}'"
        problems.append(Problem("tune.space", f"is empty: {example}"))
    return space, problems
