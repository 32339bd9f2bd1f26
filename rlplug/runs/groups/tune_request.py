"""What a study is asked to do, checked as a whole before its first trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import attrs

from rlplug.config.secrets import masked
from rlplug.config.sections import CORE_SECTIONS, TuneSection
from rlplug.config.sources import Layers, Setting, locate, read_toml
from rlplug.config.strict import structure
from rlplug.config.toml import flat, toml_value
from rlplug.errors import ConfigError, Problem
from rlplug.registry import Registry
from rlplug.runs.groups.seed_numbers import parse_seeds
from rlplug.runs.groups.study import Range, import_optuna, optuna_problems
from rlplug.runs.prepare import Prepared, owners_in, prepare
from rlplug.runs.request import TUNE, Request, find_plugins, layers_of

__all__ = ["TuneRequest"]

_FIXED = {
    ("run", "algorithm"): "a study is of one algorithm",
    ("run", "addons"): "a study is of the same add-ons",
    ("run", "seed"): "seeds are not searched: use --seeds",
}


@attrs.frozen(kw_only=True)
class TuneRequest:
    """A study: the run that it is about, and how its options are searched."""

    run: Request
    """The run without what is searched."""
    prepared: Prepared
    """A first trial."""
    section: TuneSection
    ranges: tuple[Range, ...]
    seeds: tuple[int, ...]
    given: Mapping[str, Any]
    """The section as it was given, without defaults."""
    registry: Registry

    @classmethod
    def of(cls, request: Request, flags: Mapping[str, Any], registry: Registry) -> TuneRequest:
        """Of a request and the flags of `[tune]`, or raise all that is wrong with them."""
        import_optuna()
        values, run = _split(request, flags)
        section, problems = structure(TuneSection, values, TUNE)
        ranges, wrong = _ranges(run, values.get("space", {}), registry)
        problems += wrong
        if section is not None:
            problems += optuna_problems(section, ranges)
        if problems or section is None:
            source = str(run.config) if run.config is not None else "the study"
            raise ConfigError(source, problems, "see: rlplug plugins show tune")
        prepared = _first_trial(run, ranges, registry)
        seeds = parse_seeds(str(section.seeds)) if section.seeds else (prepared.config.run.seed,)
        if section.sampler == "grid":
            combinations = math.prod(each.combinations or 1 for each in ranges)
            section = attrs.evolve(section, trials=min(section.trials, combinations))
        return cls(
            run=run,
            prepared=prepared,
            section=section,
            ranges=tuple(ranges),
            seeds=seeds,
            given=values,
            registry=registry,
        )

    @property
    def evaluate_every(self) -> int:
        """Steps between evaluations; 0: there are none before the end."""
        evaluation, steps = self.prepared.config.evaluation, self.prepared.config.run.steps
        return evaluation.every if evaluation.episodes and 0 < evaluation.every < steps else 0

    @property
    def options(self) -> dict[str, str]:
        """All that its results depend on, as text: a study does not go on with others.

        Not where it runs, how it is recorded, or how long.
        """
        options = {
            name: toml_value(masked(value, name))
            for name, value in flat(self.prepared.config).items()
            if name.partition(".")[0] not in ("tracking", "scale") and name != "run.seed"
        }
        section = attrs.asdict(self.section) | {"seeds": list(self.seeds)}
        section["space"] = {each.name: dict(each.given) for each in self.ranges}
        del section["trials"]
        return options | {f"tune.{name}": toml_value(value) for name, value in section.items()}

    def trial(self, values: Mapping[str, Any], seed: int) -> Prepared:
        """The run of a trial with these values."""
        prepared = prepare(_with(self.run, values), self.registry)
        return prepared.with_options(origin="--seeds", run={"seed": seed})


def _first_trial(run: Request, ranges: Sequence[Range], registry: Registry) -> Prepared:
    """A trial with the values at one end of all ranges; raises what is wrong with single values.

    What two options contradict each other in fails trials: others of their values may not.
    """
    prepared, problems = None, []
    for end in (1, 0):
        try:
            values = {each.name: each.ends[end] for each in ranges}
            prepared = prepare(_with(run, values), registry)
        except ConfigError as error:
            problems += [one for one in error.problems if "." in one.path and one not in problems]
    if problems:
        raise ConfigError("the ranges of the study", problems, "see: rlplug plugins show tune")
    return prepared or prepare(run, registry)


def _with(run: Request, values: Mapping[str, Any]) -> Request:
    settings = (Setting(name, value) for name, value in values.items())
    return attrs.evolve(run, settings=(*run.settings, *settings))


def _split(request: Request, flags: Mapping[str, Any]) -> tuple[dict[str, Any], Request]:
    """The values of `[tune]` in the file, the flags and `--set`, and the request of the run."""
    layers = Layers()
    if request.config is not None:
        layers.merge({TUNE: read_toml(request.config).get(TUNE, {})}, str(request.config))
    if isinstance(layers.section(TUNE), Mapping):
        layers.put((TUNE, "space"), dict(_flat(layers.section(TUNE, "space"))), "the file")
    space = dict(_flat(flags.get("space", {})))
    given: dict[tuple[str, ...], Any] = {(TUNE, name): flags[name] for name in flags}
    given |= {(TUNE, "space", name): value for name, value in space.items()}
    given.pop((TUNE, "space"), None)
    tuning = [setting for setting in request.settings if setting.key.startswith(f"{TUNE}.")]
    for setting in tuning:
        _, name, *rest = setting.key.split(".")
        # `tune.space.run.env` is the range of `run.env`, not a table in a table.
        given[(TUNE, name, *([".".join(rest)] if rest else []))] = setting.value
    for where, value in given.items():
        layers.put(where, value, "command line")
    kept = tuple(setting for setting in request.settings if setting not in tuning)
    return dict(layers.section(TUNE)), attrs.evolve(request, settings=kept)


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The ranges in a table; `sampling.num_envs` may be a key or a table in a table."""
    for name, value in values.items() if isinstance(values, Mapping) else ():
        is_table = isinstance(value, Mapping) and value
        if is_table and all(isinstance(inner, Mapping) for inner in value.values()):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _ranges(
    run: Request, space: Mapping[str, Any], registry: Registry
) -> tuple[list[Range], list[Problem]]:
    """The ranges, with the kinds of numbers that their options take; what cannot be searched."""
    found = find_plugins(layers_of(run), registry)
    algorithm, *addons = (registry.load(plugin).Config for plugin in found)
    of_addons = {plugin.name: kind for plugin, kind in zip(found[1:], addons, strict=True)}
    owners = owners_in(registry, found[0].name)
    kinds: dict[tuple[str, ...], type[Any]] = {
        (name,): CORE_SECTIONS[name] for name in CORE_SECTIONS
    }
    kinds |= {("algorithm",): algorithm}
    kinds |= {("addons", name): kind for name, kind in of_addons.items()}
    ranges, problems = [], []
    for name, written in space.items():
        where = f"tune.space.{name}"
        path = locate(Setting(name, None), algorithm, of_addons, owners)
        if isinstance(path, Problem):
            problems.append(Problem(where, path.message))
            continue
        if path in _FIXED:
            problems.append(Problem(where, f"cannot be searched: {_FIXED[path]}"))
        try:
            kind = kinds.get(path[:-1])
            declared = None if kind is None else get_type_hints(kind).get(path[-1])
            is_float = declared is float or float in get_args(declared)
            ranges.append(Range.of(name, written, is_float=is_float))
        except (TypeError, ValueError) as error:
            problems.append(Problem(where, str(error)))
    if not (ranges or problems):
        example = "--space 'learning_rate={low=1e-5,high=1e-2}'"
        problems.append(Problem("tune.space", f"is empty: {example}"))
    return ranges, problems
