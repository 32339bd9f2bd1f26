"""What a study is asked to do, checked as a whole before its first trial."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

import attrs

from rlplug.config.secrets import masked
from rlplug.config.sections import CORE_SECTIONS, RunConfig
from rlplug.config.sources import Layers, Setting, locate, read_toml
from rlplug.config.strict import structure
from rlplug.config.toml import flat, toml_value
from rlplug.config.tune_section import TuneSection
from rlplug.errors import ConfigError, Problem, RequestError
from rlplug.registry import Registry
from rlplug.runs.other_plugins import OtherPlugins
from rlplug.runs.prepare import overlap, prepare
from rlplug.runs.request import TUNE, Request, find_plugins, layers_of
from rlplug.runs.seeds.asked import parse_seeds
from rlplug.runs.tuning.space import Range, read_space
from rlplug.runs.tuning.study import import_optuna, optuna_problems
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
    section: TuneSection
    ranges: tuple[Range, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, str]
    """All that its results depend on, as text: a study does not go on with others."""
    env: str
    steps: int
    evaluate_every: int
    """Steps between evaluations; 0: there are none before the end."""
    given: Mapping[str, Any]
    """The section as it was given, without defaults."""

    @classmethod
    def of(cls, request: Request, flags: Mapping[str, Any], registry: Registry) -> TuneRequest:
        """Of a request and the flags of `[tune]`, or raise all that is wrong with them."""
        import_optuna()
        values, run, doubled = _split(request, flags)
        section, problems = structure(TuneSection, values, TUNE)
        problems += doubled
        given = values.get("space", {})
        ranges, found = read_space(given if isinstance(given, Mapping) else {})
        problems += found
        if section is not None:
            problems += optuna_problems(section, ranges)
        if not (ranges or found):
            problems.append(
                Problem("tune.space", "is empty: --space 'learning_rate={low=1e-5,high=1e-2}'")
            )
        ranges, found = _located(run, ranges, registry)
        config, of_options = _prepared(run, ranges, registry)
        problems += found + of_options
        if section is not None and config is not None:
            problems += _pruning(section, config, given=values)
        if problems or section is None or config is None:
            source = str(run.config) if run.config is not None else "the study"
            raise ConfigError(source, problems, "see: rlplug options tune")
        seeds = parse_seeds(str(section.seeds)) if section.seeds else (config.run.seed,)
        combinations = _combinations(ranges)
        if section.sampler == "grid" and combinations < section.trials:
            section = attrs.evolve(section, trials=combinations)
        return cls(
            run=run,
            section=section,
            ranges=tuple(ranges),
            seeds=seeds,
            options=_depends_on(config, section, ranges, seeds),
            env=config.run.env or "log",
            steps=config.run.steps,
            evaluate_every=_every(config),
            given=values,
        )

    @property
    def algorithm(self) -> str:
        """Its name."""
        return self.options["run.algorithm"]

    @property
    def default_name(self) -> str:
        """The same for the same study, so that the same command goes on with it."""
        text = json.dumps(dict(self.options), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:4]
        return slug(f"{self.algorithm}-{self.env}-tune-{digest}")

    def trial(self, values: Mapping[str, Any]) -> Request:
        """The run of a trial with these values."""
        settings = tuple(Setting(name, value) for name, value in values.items())
        return attrs.evolve(self.run, settings=(*self.run.settings, *settings))


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
    given: list[tuple[tuple[str, ...], Any]]
    given = [((TUNE, name), value) for name, value in flags.items() if name != "space"]
    # Whole: a range of the file is replaced, not mixed with this one.
    given += [((TUNE, "space", name), value) for name, value in flags.get("space", {}).items()]
    paths = [tuple(".".join(path).split(".")) for path, _ in given]
    for path, value in given:
        layers.put(path, value, "command line")
    kept, doubled = [], []
    for setting in request.settings:
        if not setting.key.startswith(f"{TUNE}."):
            kept.append(setting)
            continue
        path = tuple(setting.key.split("."))
        if any(overlap(one, path) for one in paths):
            doubled.append(Problem(setting.key, "is given twice: set it once"))
        paths.append(path)
        layers.put(path, setting.value, "--set")
    return dict(layers.section(TUNE)), attrs.evolve(request, settings=tuple(kept)), doubled


def _located(
    run: Request, ranges: Sequence[Range], registry: Registry
) -> tuple[list[Range], list[Problem]]:
    """The ranges with the kinds of numbers that their options take; what cannot be searched."""
    found = find_plugins(layers_of(run), registry)
    kinds = {one.name: registry.load(one).Config for one in found}
    algorithm = kinds[found[0].name]
    addons = {one.name: kinds[one.name] for one in found[1:]}
    owners = OtherPlugins(registry, found[0]).owners
    located, problems = [], []
    given: dict[tuple[str, ...], str] = {}
    for setting in run.settings:
        path = locate(setting, algorithm, addons, owners)
        if not isinstance(path, Problem):
            given[path] = f"--set {setting.key}"
    for section, values in run.flags.items():
        for name in values:
            given[(section, name)] = run.flag_names.get(name, name)
    for one in ranges:
        where = f"tune.space.{one.name}"
        path = locate(Setting(one.name, None), algorithm, addons, owners)
        if isinstance(path, Problem):
            problems.append(Problem(where, path.message))
            continue
        if path in _FIXED:
            problems.append(Problem(where, f"cannot be searched: {_FIXED[path]}"))
        elif path in given:
            problems.append(Problem(where, f"is also set, by {given[path]}: one of the two"))
        given[path] = where
        is_float = one.is_float or _takes_floats(path, algorithm, addons)
        located.append(attrs.evolve(one, is_float=is_float))
    return located, problems


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


def _prepared(
    run: Request, ranges: Sequence[Range], registry: Registry
) -> tuple[RunConfig | None, list[Problem]]:
    """The options of a first trial, and what is wrong with the run or with ends and choices.

    What two options contradict each other in shows in the trials: others of their values may not.
    """
    first = {one.name: one.ends[0] for one in ranges}
    config, problems = _config(run, first, registry, first)
    for one in ranges:
        for value in one.ends[1:]:
            values = {**first, one.name: value}
            _, found = _config(run, values, registry, values)
            problems += [problem for problem in found if problem not in problems]
    if config is None and not problems:
        config, problems = _without(run, registry)
    return config, problems


def _config(
    run: Request, values: Mapping[str, Any], registry: Registry, about: Mapping[str, Any]
) -> tuple[RunConfig | None, list[Problem]]:
    settings = tuple(Setting(name, value) for name, value in values.items())
    try:
        prepared = prepare(attrs.evolve(run, settings=(*run.settings, *settings)), registry)
    except ConfigError as error:
        return None, [_named(one, about) for one in error.problems if "." in one.path]
    return prepared.config, []


def _named(problem: Problem, about: Mapping[str, Any]) -> Problem:
    """As a problem of the range that it is of."""
    for name, value in about.items():
        short = name.rpartition(".")[2]
        if problem.path.partition("[")[0].rpartition(".")[2] == short:
            return Problem(f"tune.space.{name}", f"{toml_value(value)}: {problem.message}")
    return problem


def _without(run: Request, registry: Registry) -> tuple[RunConfig | None, list[Problem]]:
    """The options without what is searched, where first values contradict each other."""
    try:
        return prepare(run, registry).config, []
    except ConfigError as error:
        return None, list(error.problems)


def _pruning(section: TuneSection, config: RunConfig, given: Mapping[str, Any]) -> list[Problem]:
    """A pruner that was asked for, and would have nothing to prune on."""
    if "pruner" not in given or section.pruner == "none":
        return []
    if section.metric and not section.metric.startswith("eval/"):
        return [
            Problem("tune.pruner", f"prunes on evaluations, and {section.metric} is not of them")
        ]
    if not _every(config):
        return [
            Problem(
                "tune.pruner",
                "there is no evaluation before the end of a trial to prune on: "
                "--set evaluation.episodes=10",
            )
        ]
    return []


def _every(config: RunConfig) -> int:
    evaluation = config.evaluation
    before_the_end = evaluation.episodes and 0 < evaluation.every < config.run.steps
    return evaluation.every if before_the_end else 0


def _combinations(ranges: Sequence[Range]) -> int:
    counts = [
        len(one.choices) or math.floor((one.high - one.low) / (one.step or 1) + 1e-9) + 1
        for one in ranges
    ]
    return math.prod(counts)


def _depends_on(
    config: RunConfig, section: TuneSection, ranges: Sequence[Range], seeds: Sequence[int]
) -> dict[str, str]:
    """Options → values, as text; not those of where it runs, is recorded, or how long."""
    options = {
        name: toml_value(masked(value))
        for name, value in flat(config).items()
        if name.partition(".")[0] not in ("tracking", "scale") and name != "run.seed"
    }
    options["run.algorithm"] = config.run.algorithm
    fields = attrs.asdict(section)
    for name in ("trials", "space", "seeds", "seed"):
        del fields[name]
    options |= {f"tune.{name}": toml_value(value) for name, value in fields.items()}
    options |= {f"tune.space.{one.name}": toml_value(one.as_toml()) for one in ranges}
    options["tune.seeds"] = toml_value(list(seeds))
    options["tune.seed"] = str(section.seed)
    return options
