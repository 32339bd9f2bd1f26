"""A study of Optuna, in a database beside that of MLflow: it proposes trials and prunes them."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.tune_section import TuneSection
from rlplug.errors import Problem, RequestError, did_you_mean
from rlplug.runs.tuning.space import Range

__all__ = ["DATABASE", "Proposal", "Study", "import_optuna", "optuna_problems"]

DATABASE = "optuna.db"

_SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
    "qmc": "QMCSampler",
    "cmaes": "CmaEsSampler",
    "grid": "BruteForceSampler",
}

_PRUNERS = {
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "threshold": "ThresholdPruner",
    "none": "NopPruner",
}

_WAITING_SECONDS = 60
"""How long to wait for another process that writes to the database."""


def import_optuna() -> Any:
    """The module `optuna`, or an error that says how to install it."""
    try:
        optuna: Any = import_module("optuna")
    except ImportError as error:
        raise RequestError(
            f"rlplug tune needs Optuna, which cannot be imported ({error}).",
            "try: pip install 'rlplug[tune]'",
        ) from error
    # What it would say is in rlplug's own progress.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def optuna_problems(section: TuneSection, ranges: Sequence[Range]) -> list[Problem]:
    """What of sampler and pruner Optuna does not know or take."""
    optuna = import_optuna()
    problems = _unknown("sampler", section.sampler, section.sampler_options, _SAMPLERS)
    problems += _unknown("pruner", section.pruner, section.pruner_options, _PRUNERS)
    if problems:
        return problems
    if section.sampler == "grid":
        problems += [
            Problem(f"tune.space.{one.name}", "sampler = 'grid' needs choices, or low, high, step")
            for one in ranges
            if one.is_float and one.step is None and not one.choices
        ]
    for make, name in ((_sampler, "sampler"), (_pruner, "pruner")):
        try:
            with _silent():
                make(optuna, section, 0)
        except ImportError as error:
            package = error.name or "a package"
            problems.append(Problem(f"tune.{name}", f"needs {package}: pip install {package}"))
        except (TypeError, ValueError) as error:
            problems.append(Problem(f"tune.{name}_options", str(error)))
    return problems


def _unknown(
    what: str, name: str, options: Mapping[str, Any], known: Mapping[str, str]
) -> list[Problem]:
    if name not in known:
        guess = did_you_mean(name, known)
        there = f"there are: {', '.join(known)}"
        return [Problem(f"tune.{what}", f"unknown {what} {name!r}, {guess or there}")]
    kind = getattr(import_module(f"optuna.{what}s"), known[name])
    arguments = [one for one in inspect.signature(kind).parameters if one != "seed"]
    return [
        Problem(
            f"tune.{what}_options.{option}",
            f"{known[name]} has no such argument, "
            f"{did_you_mean(option, arguments) or 'it has: ' + (', '.join(arguments) or 'none')}",
        )
        for option in options
        if option not in arguments
    ]


def _sampler(optuna: Any, section: TuneSection, trials: int) -> Any:
    kind = getattr(optuna.samplers, _SAMPLERS[section.sampler])
    # Of another seed after each start: what was proposed is not proposed again.
    return kind(**section.sampler_options, seed=section.seed + 1_000_003 * trials)


def _pruner(optuna: Any, section: TuneSection, trials: int) -> Any:
    return getattr(optuna.pruners, _PRUNERS[section.pruner])(**section.pruner_options)


@attrs.frozen(kw_only=True)
class Proposal:
    """A trial: the options that it is run with, and what became of it."""

    number: int
    values: Mapping[str, Any]
    status: str
    """RUNNING, COMPLETE, PRUNED or FAIL, as in Optuna."""
    score: float | None = None
    """Its result; of one that was pruned, its last evaluation."""


class Study:
    """The study of a name in the database of a runs folder; made, if there is none."""

    def __init__(
        self, name: str, root: Path, section: TuneSection, ranges: Sequence[Range]
    ) -> None:
        self._optuna = optuna = import_optuna()
        self._ranges = {one.name: one for one in ranges}
        root.mkdir(parents=True, exist_ok=True)
        with _silent():
            storage = optuna.storages.RDBStorage(
                f"sqlite:///{root / DATABASE}",
                engine_kwargs={"connect_args": {"timeout": _WAITING_SECONDS}},
            )
            self._study = optuna.create_study(
                storage=storage,
                study_name=name,
                direction="maximize" if section.maximizes else "minimize",
                pruner=_pruner(optuna, section, 0),
                load_if_exists=True,
            )
            self._study.sampler = _sampler(optuna, section, len(self._study.trials))
            self._space = {one.name: self._distribution(one) for one in ranges}
        self.maximizes = section.maximizes

    @property
    def trials(self) -> list[Proposal]:
        """All trials so far, by number."""
        return [self._proposal(one) for one in self._study.get_trials(deepcopy=False)]

    @property
    def best(self) -> Proposal | None:
        """The best of the complete trials; None without one."""
        done = [one for one in self.trials if one.status == "COMPLETE" and one.score is not None]
        sign = -1.0 if self.maximizes else 1.0
        return min(done, key=lambda one: sign * (one.score or 0.0), default=None)

    def ask(self) -> Proposal:
        """A new trial."""
        with _silent():
            trial = self._study.ask(self._space)
            return self._proposal(self._study.get_trials(deepcopy=False)[trial.number])

    def report(self, number: int, step: int, value: float) -> bool:
        """Tell of an evaluation of a trial; whether the trial is to be pruned."""
        with _silent():
            frozen = self._study.get_trials(deepcopy=False)[number]
            trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
            trial.report(value, step)
            return bool(trial.should_prune())

    def tell(self, number: int, status: str, score: float | None = None) -> None:
        """A trial has ended: COMPLETE, with its score, PRUNED or FAIL."""
        state = self._optuna.trial.TrialState[status]
        # `grid` wants to stop a loop of Optuna's own after its last combination.
        with _silent(), suppress(RuntimeError):
            self._study.tell(number, score, state=state)

    def importances(self) -> dict[str, float]:
        """How much of the differences between trials each option explains, the largest first.

        By Optuna's PED-ANOVA; the sum is 1. Empty where there is nothing to explain.
        """
        done = [one.score for one in self.trials if one.status == "COMPLETE"]
        if len(done) < 2 or len(set(done)) < 2:
            return {}
        with _silent(), suppress(ValueError, RuntimeError, ZeroDivisionError):
            importance = self._optuna.importance
            evaluator = importance.PedAnovaImportanceEvaluator()
            found = importance.get_param_importances(self._study, evaluator=evaluator)
            return {name: float(one) for name, one in found.items() if math.isfinite(one)}
        return {}

    def delete(self) -> None:
        """Forget it: nothing of it was run."""
        self._optuna.delete_study(study_name=self._study.study_name, storage=self._study._storage)

    def _distribution(self, one: Range) -> Any:
        kinds = self._optuna.distributions
        if one.choices:
            return kinds.CategoricalDistribution(list(one.labels))
        if one.is_float:
            return kinds.FloatDistribution(one.low, one.high, log=one.log, step=one.step)
        return kinds.IntDistribution(int(one.low), int(one.high), log=one.log, step=one.step or 1)

    def _proposal(self, trial: Any) -> Proposal:
        values = {
            name: self._ranges[name].value(found)
            for name, found in trial.params.items()
            if name in self._ranges
        }
        score = None if not trial.values else float(trial.values[0])
        if score is None and trial.intermediate_values:
            score = float(trial.intermediate_values[max(trial.intermediate_values)])
        return Proposal(number=trial.number, values=values, status=trial.state.name, score=score)


@contextmanager
def _silent() -> Iterator[None]:
    """Without Optuna's warnings of what is experimental, or of lists as choices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
