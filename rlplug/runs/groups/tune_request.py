"""What a study is asked to do, checked as a whole before its first trial."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import attrs

from rlplug.config.secrets import masked
from rlplug.config.sections import CORE_SECTIONS, TuneSection
from rlplug.config.sources import Layers, Setting, locate, read_toml
from rlplug.config.strict import structure
from rlplug.config.toml import flat, toml_value
from rlplug.errors import ConfigError, Problem, RequestError
from rlplug.registry import Registry
from rlplug.runs.groups.seed_numbers import parse_seeds
from rlplug.runs.groups.study import Range, import_optuna, optuna_problems
from rlplug.runs.prepare import Prepared, overlap, owners_in, prepare
from rlplug.runs.request import TUNE, Request, find_plugins, layers_of
from rlplug.tracking.record import slug

__all__ = ["TuneRequest"]

_FIXED = {
    ("run", "algorithm"): "a study is of one algorithm",
    ("run", "addons"): "a study is of the same add-ons",
    ("run", "seed"): "seeds are no options to search: use --seeds",
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
        values, run, problems = _split(request, flags)
        section, wrong = structure(TuneSection, values, TUNE)
        ranges, wrong_ranges = _ranges(run, values.get("space", {}), registry)
        problems += wrong + wrong_ranges
        if section is not None:
            problems += optuna_problems(section, ranges)
        prepared, wrong = _first_trial(run, ranges, registry)
        problems += wrong
        if section is not None and prepared is not None:
            problems += _pruning(section, prepared, given=values)
        if problems or section is None or prepared is None:
            source = str(run.config) if run.config is not None else "the study"
            raise ConfigError(source, problems, "see: rlplug options tune")
        seeds = parse_seeds(str(section.seeds)) if section.seeds else (prepared.config.run.seed,)
        if section.sampler == "grid":
            combinations = math.prod(each.combinations for each in ranges)
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
        return _evaluate_every(self.prepared)

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
        options["run.algorithm"] = self.prepared.config.run.algorithm
        section = attrs.asdict(self.section)
        for name in ("trials", "space"):
            del section[name]
        options |= {f"tune.{name}": toml_value(value) for name, value in section.items()}
        options |= {f"tune.space.{each.name}": toml_value(dict(each.given)) for each in self.ranges}
        options["tune.seeds"] = toml_value(list(self.seeds))
        return options

    @property
    def default_name(self) -> str:
        """The same for the same study, so that the same command goes on with it."""
        digest = hashlib.sha256(json.dumps(self.options, sort_keys=True).encode()).hexdigest()
        run = self.prepared.config.run
        return slug(f"{run.algorithm}-{run.env or 'log'}-tune-{digest[:4]}")

    def trial(self, values: Mapping[str, Any], seed: int) -> Prepared:
        """The run of a trial with these values."""
        prepared = prepare(_with(self.run, values), self.registry)
        return prepared.with_options(origin="--seeds", run={"seed": seed})


def _with(run: Request, values: Mapping[str, Any]) -> Request:
    settings = (Setting(name, value) for name, value in values.items())
    return attrs.evolve(run, settings=(*run.settings, *settings))


def _split(
    request: Request, flags: Mapping[str, Any]
) -> tuple[dict[str, Any], Request, list[Problem]]:
    """The values of `[tune]`, the request of the run, and the options that are given twice."""
    layers = Layers()
    if request.config is not None:
        section = read_toml(request.config).get(TUNE, {})
        if not isinstance(section, Mapping):
            raise RequestError(
                f"{str(request.config)!r}: expected a section [tune], got {section!r}.",
                "see: rlplug options tune",
            )
        layers.merge({TUNE: section}, str(request.config))
    layers.put((TUNE, "space"), dict(_flat(layers.section(TUNE, "space"))), "the file")
    given = [Setting(f"{TUNE}.{name}", value) for name, value in flags.items() if name != "space"]
    space = dict(_flat(flags.get("space", {})))
    given += [Setting(f"{TUNE}.space.{name}", value) for name, value in space.items()]
    tuning = [setting for setting in request.settings if setting.key.startswith(f"{TUNE}.")]
    problems = []
    paths: list[tuple[str, ...]] = []
    for setting in (*given, *tuning):
        path = tuple(setting.key.split("."))
        if any(overlap(other, path) for other in paths):
            problems.append(Problem(setting.key, "is given twice: set it once"))
        paths.append(path)
        layers.put(_whole_range(path), setting.value, "command line")
    kept = tuple(setting for setting in request.settings if setting not in tuning)
    return dict(layers.section(TUNE)), attrs.evolve(request, settings=kept), problems


def _whole_range(path: tuple[str, ...]) -> tuple[str, ...]:
    """`tune.space.run.env` is the range of `run.env`, not a table in a table."""
    return (*path[:2], ".".join(path[2:])) if path[2:] else path


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
    kinds = {plugin.name: registry.load(plugin).Config for plugin in found}
    algorithm = kinds[found[0].name]
    addons = {plugin.name: kinds[plugin.name] for plugin in found[1:]}
    owners = owners_in(registry, found[0].name)
    given: dict[Any, str] = {
        locate(setting, algorithm, addons, owners): f"--set {setting.key}"
        for setting in run.settings
    }
    for section, values in run.flags.items():
        for name in values:
            given[section, name] = run.flag_names.get(name, name)
    ranges, problems = [], []
    for name, written in space.items():
        where = f"tune.space.{name}"
        path = locate(Setting(name, None), algorithm, addons, owners)
        if isinstance(path, Problem):
            problems.append(Problem(where, path.message))
            continue
        if path in _FIXED:
            problems.append(Problem(where, f"cannot be searched: {_FIXED[path]}"))
        elif path in given:
            problems.append(Problem(where, f"is also set, by {given[path]}: one of the two"))
        given[path] = where
        try:
            is_float = _takes_floats(path, algorithm, addons)
            ranges.append(Range.of(name, written, is_float=is_float))
        except (TypeError, ValueError) as error:
            problems.append(Problem(where, str(error)))
    if not (ranges or problems):
        problems.append(
            Problem("tune.space", "is empty: --space 'learning_rate={low=1e-5,high=1e-2}'")
        )
    return ranges, problems


def _takes_floats(
    path: tuple[str, ...], algorithm: type[Any], addons: Mapping[str, type[Any]]
) -> bool:
    kinds: dict[tuple[str, ...], type[Any]] = {
        ("algorithm",): algorithm,
        **{(name,): kind for name, kind in CORE_SECTIONS.items()},
        **{("addons", name): kind for name, kind in addons.items()},
    }
    kind = kinds.get(path[:-1])
    declared = None if kind is None else get_type_hints(kind).get(path[-1])
    return declared is float or float in get_args(declared)


def _first_trial(
    run: Request, ranges: Sequence[Range], registry: Registry
) -> tuple[Prepared | None, list[Problem]]:
    """A first trial, and what is wrong with the run or with ends and choices.

    What two options contradict each other in shows in the trials: others of their values may not.
    """
    first = {each.name: each.ends[0] for each in ranges}
    prepared, problems = _prepared(run, first, registry)
    for each in ranges:
        for end in each.ends[1:]:
            _, wrong = _prepared(run, {**first, each.name: end}, registry)
            problems += [problem for problem in wrong if problem not in problems]
    if prepared is None and not problems:
        try:
            prepared = prepare(run, registry)
        except ConfigError as error:
            problems = [*error.problems]
    return prepared, problems


def _prepared(
    run: Request, values: Mapping[str, Any], registry: Registry
) -> tuple[Prepared | None, list[Problem]]:
    """The trial with these values, or what is wrong with single options."""
    try:
        return prepare(_with(run, values), registry), []
    except ConfigError as error:
        return None, [_named(one, values) for one in error.problems if "." in one.path]


def _named(problem: Problem, values: Mapping[str, Any]) -> Problem:
    """As a problem of the range that it is of."""
    for name, value in values.items():
        if problem.path.partition("[")[0].rpartition(".")[2] == name.rpartition(".")[2]:
            return Problem(f"tune.space.{name}", f"{toml_value(value)}: {problem.message}")
    return problem


def _pruning(section: TuneSection, prepared: Prepared, given: Mapping[str, Any]) -> list[Problem]:
    """A pruner that was asked for, and would have nothing to prune on."""
    message = ""
    if "pruner" not in given or section.pruner == "none":
        return []
    if section.metric and not section.metric.startswith("eval/"):
        message = f"prunes on evaluations, and {section.metric} is not of them"
    elif not _evaluate_every(prepared):
        message = (
            "there is no evaluation before the end of a trial to prune on: "
            "--set evaluation.episodes=10"
        )
    return [Problem("tune.pruner", message)] if message else []


def _evaluate_every(prepared: Prepared) -> int:
    evaluation, steps = prepared.config.evaluation, prepared.config.run.steps
    return evaluation.every if evaluation.episodes and 0 < evaluation.every < steps else 0
