"""Optuna: the distributions that options are drawn from, and the study that draws them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from rlplug.config.sections import TuneSection
from rlplug.config.toml import toml_value
from rlplug.errors import Problem, RequestError, did_you_mean

__all__ = [
    "DATABASE",
    "Study",
    "combinations",
    "distribution",
    "ends",
    "import_optuna",
    "optuna_problems",
]

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


def import_optuna() -> Any:
    """The module `optuna`, or an error that says how to install it."""
    try:
        optuna: Any = import_module("optuna")
    except ImportError as error:
        message = f"rlplug tune needs Optuna, which cannot be imported ({error})."
        raise RequestError(message, "try: pip install 'rlplug[tune]'") from error
    # What it would say is in rlplug's own progress.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def distribution(given: Any, *, is_float: bool) -> Any:
    """Optuna's distribution of a range; ValueError or TypeError says what is wrong with it."""
    distributions = import_optuna().distributions
    numbers = [given.get(key) for key in ("low", "high", "step")]
    is_float = is_float or any(isinstance(number, float) for number in numbers)
    kind = distributions.FloatDistribution if is_float else distributions.IntDistribution
    values = dict(given)
    if "choices" in given:
        kind, values["choices"] = distributions.CategoricalDistribution, [*_labels(given)]
    with _silent():
        found = kind(**values)
    if not all(isinstance(end, int | float) and math.isfinite(end) for end in numbers[:2] if end):
        raise ValueError("low and high must be finite numbers")
    return found


def ends(given: Mapping[str, Any]) -> tuple[Any, Any]:
    """The first and the last value of a range."""
    if "choices" in given:
        return given["choices"][0], given["choices"][-1]
    return given["low"], given["high"]


def combinations(found: Any) -> int | None:
    """How many values a distribution has; None: without end."""
    if hasattr(found, "choices"):
        return len(found.choices)
    return None if found.step is None else round((found.high - found.low) / found.step) + 1


def _labels(given: Mapping[str, Any]) -> dict[Any, Any]:
    """Choices by what Optuna keeps of them: of lists and tables their text."""
    plain = (bool, int, float, str)
    choices = given["choices"]
    return {each if type(each) in plain else toml_value(each): each for each in choices}


def optuna_problems(section: TuneSection, space: Mapping[str, Any]) -> list[Problem]:
    """What of sampler and pruner Optuna does not know or take."""
    problems = []
    for kind, known, make in (("sampler", _SAMPLERS, _sampler), ("pruner", _PRUNERS, _pruner)):
        name = getattr(section, kind)
        if name not in known:
            guess = did_you_mean(name, known) or f"there are: {', '.join(known)}"
            problems.append(Problem(f"tune.{kind}", f"unknown {kind} {name!r}, {guess}"))
            continue
        try:
            make(section)
        except (ImportError, TypeError, ValueError) as error:
            problems.append(Problem(f"tune.{kind}", str(error)))
    endless = [name for name, found in space.items() if combinations(found) is None]
    if section.sampler == "grid" and endless:
        message = f"'grid' needs choices, or low, high and step, for {', '.join(endless)}"
        problems.append(Problem("tune.sampler", message))
    return problems


def _sampler(section: TuneSection, trials: int = 0) -> Any:
    kind = getattr(import_optuna().samplers, _SAMPLERS[section.sampler])
    with _silent():
        # Of another seed after each start: what was proposed is not proposed again.
        return kind(**section.sampler_options, seed=section.seed + 1_000_003 * trials)


def _pruner(section: TuneSection) -> Any:
    with _silent():
        return getattr(import_optuna().pruners, _PRUNERS[section.pruner])(**section.pruner_options)


class Study:
    """The study of a name in the database of a runs folder; made, if there is none."""

    def __init__(
        self,
        name: str,
        root: Path,
        section: TuneSection,
        space: Mapping[str, Any],
    ) -> None:
        self._optuna = optuna = import_optuna()
        self._ranges = section.space
        self._space = dict(space)
        root.mkdir(parents=True, exist_ok=True)
        with _silent():
            self._storage = optuna.storages.RDBStorage(f"sqlite:///{root / DATABASE}?timeout=60")
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=name,
                direction="maximize" if section.maximizes else "minimize",
                pruner=_pruner(section),
                load_if_exists=True,
            )
        self._study.sampler = _sampler(section, len(self.trials))

    @property
    def trials(self) -> Sequence[Any]:
        """Optuna's trials so far, by number."""
        found: Sequence[Any] = self._study.get_trials(deepcopy=False)
        return found

    def ask(self) -> Any:
        """A new trial."""
        with _silent():
            number = self._study.ask(self._space).number
        return self.trials[number]

    def values(self, trial: Any) -> dict[str, Any]:
        """The options that a trial is run with."""
        ranges = {name: self._ranges[name] for name in trial.params}
        return {
            name: _labels(ranges[name])[value] if "choices" in ranges[name] else value
            for name, value in trial.params.items()
        }

    def report(self, number: int, step: int, value: float) -> bool:
        """Report an evaluation of a trial; whether the trial is to be pruned."""
        with _silent():
            trial = self._optuna.trial.Trial(self._study, self.trials[number]._trial_id)
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
        importance = self._optuna.importance
        with _silent(), suppress(ValueError, RuntimeError, ZeroDivisionError):
            shares = importance.get_param_importances(
                self._study, evaluator=importance.PedAnovaImportanceEvaluator()
            )
            return {name: float(share) for name, share in shares.items() if math.isfinite(share)}
        return {}

    def delete(self) -> None:
        """Remove it from the database: nothing of it was run."""
        self._optuna.delete_study(study_name=self._study.study_name, storage=self._storage)


@contextmanager
def _silent() -> Iterator[None]:
    """Without Optuna's warnings of what is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
