"""Judge tracked policies by a log: what they would have earned on its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.trust import refuse_foreign_imports
from rlplug.config.data_section import DataSection
from rlplug.config.strict import structure
from rlplug.errors import ConfigError, RequestError
from rlplug.logs import Log
from rlplug.ope.judge import Choices, Judgement, judge
from rlplug.ope.reward_model import RewardModel, mrdr_weights
from rlplug.registry import Registry
from rlplug.runs.loading import Loaded, load_checkpoint
from rlplug.spaces import describe
from rlplug.tracking.console import Console, SilentConsole

__all__ = ["Judged", "Judging", "judge_runs"]

_ROWS = 8192
_FOLDS = 2


@attrs.frozen(kw_only=True)
class Judged:
    """A tracked policy, and what it would have earned."""

    run_id: str
    run_name: str
    step: int
    checkpoint: Path
    judgement: Judgement


@attrs.frozen(kw_only=True)
class Judging:
    """How policies are judged."""

    samples: int = 200
    confidence: float = 0.95
    seed: int = 0
    switch: float = 10.0
    max_weight: float = 0.0
    assume_uniform: bool = False
    """Whether actions of a log without propensities count as chosen uniformly."""


def judge_runs(
    runs: Sequence[str],
    files: Sequence[str],
    *,
    options: Mapping[str, Any] | None = None,
    checkpoint: str = "best",
    judging: Judging | None = None,
    registry: Registry | None = None,
    trust: bool = False,
    console: Console | None = None,
) -> tuple[list[Judged], Log]:
    """What the greedy policies of these runs would have earned on the rows of a log.

    `options` are those of `[data]`; they default to those of a run that learned from a log.
    """
    judging, console = judging or Judging(), console or SilentConsole()
    found = []
    for run in runs:
        path = find_checkpoint(run, checkpoint)
        refuse_foreign_imports(path, ("algorithm", "addons"), trust=trust)
        found.append(load_checkpoint(path, registry=registry))
    log = Log.open(_section(found[0], files, options or {}))
    judged = []
    for one in found:
        _check(one, log, judging)
        reading = _Reading(log)
        with console.activities.doing("judging", reading.progress):
            choices = _choices(one, log, reading)
        told = judge(
            choices,
            samples=judging.samples,
            confidence=judging.confidence,
            seed=judging.seed,
            switch=judging.switch,
            max_weight=judging.max_weight,
        )
        judged.append(
            Judged(
                run_id=one.manifest.run_id,
                run_name=one.path.absolute().parent.parent.name,
                step=one.manifest.step,
                checkpoint=one.path,
                judgement=attrs.evolve(told, warnings=(*told.warnings, *_warnings(one, log))),
            )
        )
    return judged, log


@attrs.define(eq=False)
class _Reading:
    """How far a log was read; it is read twice."""

    log: Log
    rows: int = 0

    def progress(self) -> str:
        return f"{self.rows:,}/{2 * self.log.rows:,} rows"


def _section(loaded: Loaded, files: Sequence[str], options: Mapping[str, Any]) -> DataSection:
    """Options of `[data]`: those given, else those that the run was trained with."""
    trained = loaded.prepared.config.data
    values = attrs.asdict(trained) if trained.is_used else {}
    values |= {"files": list(files), "format": "auto", **options}
    # What is of training does not matter here.
    for name in (
        "offline_evaluation",
        "max_importance_weight",
        "eval_model_update_critical_weight",
    ):
        values.pop(name, None)
    section, problems = structure(DataSection, values, "data")
    if section is None or problems:
        raise ConfigError("the options of --set", problems, "see: rlplug options data")
    return section


def _check(loaded: Loaded, log: Log, judging: Judging) -> None:
    """Refuse what cannot be judged."""
    run = loaded.manifest.run_id
    if not log.is_bandit:
        raise RequestError(
            f"log {log.name!r} has episodes of several steps; these estimates are of bandits.",
            "try: a log whose rows are episodes of their own, or rlplug eval in the environment",
        )
    if not log.num_arms:
        raise RequestError(f"the actions of log {log.name!r} are continuous, not arms.")
    policy = loaded.policy
    if describe(policy.action_space) != describe(log.action_space):
        raise RequestError(
            f"run {run} chooses among {describe(policy.action_space)}, log {log.name!r} has "
            f"{describe(log.action_space)}.",
            "try: --set num_arms=N, or the log of the same arms",
        )
    here, there = policy.observation_space, log.observation_space
    if _shapes(here) != _shapes(there):
        raise RequestError(
            f"run {run} sees {describe(here)}, log {log.name!r} has {describe(there)}.",
            "try: --set context=PATTERN for the columns that it was trained on",
        )
    if not log.has_propensities and not judging.assume_uniform:
        raise RequestError(
            f"log {log.name!r} has no propensities: with which probability its actions were chosen "
            "is not known.",
            "try: --set propensity=COLUMN, or --assume-uniform if they were chosen uniformly at "
            "random",
        )


def _shapes(space: Any) -> Any:
    if hasattr(space, "spaces"):
        return {name: _shapes(part) for name, part in space.spaces.items()}
    return space.shape


def _warnings(loaded: Loaded, log: Log) -> Iterator[str]:
    trained = loaded.prepared.config.data.files
    if set(trained) & set(log.paths):
        yield (
            "the policy learned from this very log: estimates are too high. Judge it by rows that "
            "it has not seen."
        )


def _choices(loaded: Loaded, log: Log, reading: _Reading) -> Choices:
    """What the log and the policy chose, and the predictions of models fitted to the log."""
    n = log.rows
    rewards, propensities, weights = numpy.empty(n), numpy.empty(n), numpy.ones(n)
    logged, wanted = numpy.empty(n, numpy.int64), numpy.empty(n, numpy.int64)
    impossible = numpy.zeros(n, numpy.bool_)
    featured = "arms" in log.roles
    plain = RewardModel(log.num_arms, featured=featured, folds=_FOLDS)
    robust = RewardModel(log.num_arms, featured=featured, folds=_FOLDS)
    for rows in log.read(0, _ROWS):
        part = slice(rows.first, rows.first + len(rows))
        rewards[part], logged[part] = rows["reward"], rows["action"]
        propensities[part] = rows.propensity_or_uniform(log.num_arms)
        chosen = numpy.asarray(loaded.policy.predict(rows.observations), numpy.int64)
        wanted[part] = chosen
        if "propensities" in rows.columns:
            impossible[part] = rows["propensities"][numpy.arange(len(rows)), chosen] == 0
        if "weight" in rows.columns:
            weights[part] = rows["weight"]
        folds = numpy.arange(part.start, part.stop) % _FOLDS
        matched = (wanted[part] == logged[part]).astype(numpy.float64)
        given = rows.columns, logged[part], rewards[part], folds
        plain.add(*given, weights[part])
        plain.add_policy(rows.columns, chosen, folds, weights[part])
        robust.add(*given, weights[part] * mrdr_weights(matched, propensities[part]))
        reading.rows += len(rows)
    q = {
        (model, which): numpy.empty(n)
        for model in ("plain", "robust")
        for which in ("logged", "policy")
    }
    influence = numpy.empty(n)
    models, arms = {"plain": plain, "robust": robust}, {"logged": logged, "policy": wanted}
    for rows in log.read(0, _ROWS):
        part = slice(rows.first, rows.first + len(rows))
        folds = numpy.arange(part.start, part.stop) % _FOLDS
        for model, which in q:
            q[model, which][part] = models[model].predict(rows.columns, arms[which][part], folds)
        influence[part] = plain.influence(rows.columns, logged[part], rewards[part], folds)
        reading.rows += len(rows)
    never = numpy.bincount(logged, minlength=log.num_arms) == 0
    return Choices(
        rewards=rewards,
        propensities=propensities,
        probabilities=(logged == wanted).astype(numpy.float64),
        q_logged=q["plain", "logged"],
        q_policy=q["plain", "policy"],
        mrdr_q_logged=q["robust", "logged"],
        mrdr_q_policy=q["robust", "policy"],
        unseen=impossible | never[wanted],
        weights=weights if "weight" in log.roles else None,
        influence=influence,
    )
