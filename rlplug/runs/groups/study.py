"""A study of Optuna, in a database beside that of MLflow: it proposes trials and prunes them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.sections import TuneSection
from rlplug.config.toml import toml_value
from rlplug.errors import Problem, RequestError, did_you_mean

__all__ = ["DATABASE", "Proposal", "Range", "Study", "import_optuna", "optuna_problems"]

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

_KEYS = ("low", "high", "log", "step", "choices")

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


@attrs.frozen
class Range:
    """What an option is searched in: numbers, or choices."""

    name: str
    """The option, as it was written."""
    given: Mapping[str, Any]
    """As in TOML: `low` and `high`, maybe `log` or `step`; or `choices`."""
    distribution: Any
    """Optuna's."""
    labels: Mapping[Any, Any] = attrs.field(factory=dict)
    """Label → choice: lists and tables, which no database holds, by their text."""

    @classmethod
    def of(cls, name: str, given: Any, *, is_float: bool) -> Range:
        """A range as it was written; ValueError or TypeError says what is wrong with it."""
        if not isinstance(given, Mapping) or not given:
            raise TypeError(f"expected {{ low = 0.1, high = 1.0 }} or choices, got {given!r}")
        for key in given:
            if key not in _KEYS:
                known = did_you_mean(key, _KEYS) or f"there are {', '.join(_KEYS)}"
                raise ValueError(f"unknown key {key!r}, {known}")
        optuna = import_optuna()
        with _silent():
            if "choices" in given:
                return cls._of_choices(name, given, optuna)
            numbers = [given.get(key) for key in ("low", "high", "step")]
            if not all(type(number) in (int, float) for number in numbers[:2]):
                raise TypeError(f"low and high must be numbers, got {numbers[0]!r}, {numbers[1]!r}")
            if not all(math.isfinite(number or 0) for number in numbers):
                raise ValueError("low, high and step must be finite")
            if is_float or any(isinstance(number, float) for number in numbers):
                distribution = optuna.distributions.FloatDistribution(**given)
            else:
                distribution = optuna.distributions.IntDistribution(**given)
        if distribution.single():
            raise ValueError("has a single value: set the option, or another end")
        return cls(name, given, distribution)

    @classmethod
    def _of_choices(cls, name: str, given: Mapping[str, Any], optuna: Any) -> Range:
        choices = given["choices"]
        if not isinstance(choices, list | tuple) or len(given) > 1:
            raise TypeError(f"expected only a list of choices, got {dict(given)!r}")
        plain = (bool, int, float, str)
        labels = {
            choice if type(choice) in plain else toml_value(choice): choice for choice in choices
        }
        if len(labels) < len(choices):
            raise ValueError("a choice is given twice")
        return cls(name, given, optuna.distributions.CategoricalDistribution([*labels]), labels)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that must be valid: all choices, or both ends."""
        low_and_high = () if self.labels else (self.distribution.low, self.distribution.high)
        return (*self.labels.values(), *low_and_high)

    @property
    def is_continuous(self) -> bool:
        """Whether there is no end of values."""
        is_float = isinstance(self.distribution, import_optuna().distributions.FloatDistribution)
        return is_float and self.distribution.step is None

    @property
    def combinations(self) -> int:
        """How many values there are."""
        if self.labels:
            return len(self.labels)
        low, high = self.ends
        step = float(self.distribution.step or 1)
        return math.floor(float(high - low) / step + 1e-9) + 1

    def value(self, found: Any) -> Any:
        """The value of the option where the search has found this."""
        return self.labels[found] if self.labels else found


def optuna_problems(section: TuneSection, ranges: Sequence[Range]) -> list[Problem]:
    """What of sampler and pruner Optuna does not know or take."""
    problems = []
    kinds = (("sampler", _SAMPLERS, _sampler), ("pruner", _PRUNERS, _pruner))
    for kind, known, make in kinds:
        name = getattr(section, kind)
        if name not in known:
            guess = did_you_mean(name, known) or f"there are: {', '.join(known)}"
            problems.append(Problem(f"tune.{kind}", f"unknown {kind} {name!r}, {guess}"))
            continue
        try:
            with _silent():
                make(import_optuna(), section)
        except ImportError as error:
            package = error.name or "a package"
            problems.append(Problem(f"tune.{kind}", f"needs {package}: pip install {package}"))
        except (TypeError, ValueError) as error:
            problems.append(Problem(f"tune.{kind}_options", str(error)))
    if section.sampler == "grid":
        message = "sampler = 'grid' needs choices, or low, high, step"
        problems += [
            Problem(f"tune.space.{each.name}", message) for each in ranges if each.is_continuous
        ]
    return problems


def _sampler(optuna: Any, section: TuneSection, trials: int = 0) -> Any:
    kind = getattr(optuna.samplers, _SAMPLERS[section.sampler])
    # Of another seed after each start: what was proposed is not proposed again.
    return kind(**section.sampler_options, seed=section.seed + 1_000_003 * trials)


def _pruner(optuna: Any, section: TuneSection) -> Any:
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
        self._ranges = {each.name: each for each in ranges}
        self.maximizes = section.maximizes
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
                pruner=_pruner(optuna, section),
                load_if_exists=True,
            )
            self._study.sampler = _sampler(optuna, section, len(self._study.trials))

    @property
    def trials(self) -> list[Proposal]:
        """All trials so far, by number."""
        return [self._proposal(trial) for trial in self._study.get_trials(deepcopy=False)]

    def ask(self) -> Proposal:
        """A new trial."""
        with _silent():
            space = {name: each.distribution for name, each in self._ranges.items()}
            trial = self._study.ask(space)
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
        scores = [trial.score for trial in self.trials if trial.status == "COMPLETE"]
        if len(set(scores)) < 2:
            return {}
        with _silent(), suppress(ValueError, RuntimeError, ZeroDivisionError):
            importance = self._optuna.importance
            evaluator = importance.PedAnovaImportanceEvaluator()
            shares = importance.get_param_importances(self._study, evaluator=evaluator)
            return {name: float(one) for name, one in shares.items() if math.isfinite(one)}
        return {}

    def delete(self) -> None:
        """Forget it: nothing of it was run."""
        self._optuna.delete_study(study_name=self._study.study_name, storage=self._study._storage)

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
