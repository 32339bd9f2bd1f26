"""Judge tracked policies by a log: what they would have earned on its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint import find_checkpoint
from rlplug.config.data_section import DataSection
from rlplug.config.strict import structure
from rlplug.errors import ConfigError, Problem, RequestError
from rlplug.logs import Log
from rlplug.ope.judge import Judgement, judge, judge_episodes
from rlplug.registry import Registry
from rlplug.runs.loading import Loaded, load_checkpoint
from rlplug.runs.log_choices import LoggedBy, Target, bandit_choices
from rlplug.runs.log_episodes import episode_choices
from rlplug.serving.policy import ESTIMATING_DRAWS
from rlplug.spaces import describe, outline
from rlplug.tracking.console import Console, SilentConsole

__all__ = ["Judged", "Judging", "judge_runs"]

_OF_TRAINING = (
    "rows_per_update",
    "shuffle_rows",
    "offline_evaluation",
    "max_importance_weight",
    "eval_model_update_critical_weight",
)


@attrs.frozen(kw_only=True)
class Judged:
    """A tracked policy, and what it would have earned."""

    run_id: str
    run_name: str
    step: int
    checkpoint: Path
    explores: bool
    judgement: Judgement


@attrs.frozen(kw_only=True)
class Judging:
    """How policies are judged."""

    samples: int = 200
    confidence: float = 0.95
    seed: int = 0
    switch: float = 10.0
    max_weight: float = 0.0
    explores: bool = False
    """Whether policies are judged as they explore in training, not greedily."""
    gamma: float = 1.0
    """The discount of returns, for logs of episodes."""
    assume_uniform: bool = False
    """Whether actions of a log without propensities count as chosen uniformly."""


def judge_runs(
    runs: Sequence[str],
    files: Sequence[str],
    *,
    options: Mapping[str, Any] | None = None,
    checkpoint: str | int | Path = "best",
    judging: Judging | None = None,
    logged_by: str = "",
    registry: Registry | None = None,
    trust: bool = False,
    console: Console | None = None,
) -> tuple[list[Judged], Log]:
    """What the policies of these runs would have earned on the rows, or in the episodes, of a log.

    `options` are those of `[data]`; they default to those of a run that learned from a log.
    `logged_by` is a run whose exploring policy chose the actions of a log without propensities, or
    imitates who did.
    """
    judging, console = judging or Judging(), console or SilentConsole()
    found = []
    for run in (*runs, *([logged_by] if logged_by else [])):
        path = find_checkpoint(run, checkpoint)
        found.append(load_checkpoint(path, seed=judging.seed, registry=registry, trust=trust))
    log = Log.open(_section(found[0], files, options or {}))
    for one in found:
        _check_spaces(one, log)
    behavior = found.pop().policy if logged_by else None
    _check(log, judging, behavior is not None)
    logged = LoggedBy(num_arms=log.num_arms, policy=behavior)
    judged = []
    for one in found:
        reading = _Reading(log)
        with console.activities.doing("judging", reading.progress):
            told = _judge(
                Target(policy=one.policy, explores=judging.explores), log, logged, judging, reading
            )
        warnings = (*told.warnings, *_warnings(one, log, judging, logged_by))
        judged.append(
            Judged(
                run_id=one.manifest.run_id,
                run_name=one.path.absolute().parent.parent.name,
                step=one.manifest.step,
                checkpoint=one.path,
                explores=judging.explores,
                judgement=attrs.evolve(told, warnings=warnings),
            )
        )
    return judged, log


@attrs.define(eq=False)
class _Reading:
    """How far a log was read; single choices are read twice."""

    log: Log
    rows: int = 0

    def progress(self) -> str:
        return f"{self.rows:,}/{(2 if self.log.is_bandit else 1) * self.log.rows:,} rows"

    def add(self, rows: int) -> None:
        """So many more rows were read."""
        self.rows += rows


def _judge(
    target: Target, log: Log, logged: LoggedBy, judging: Judging, reading: _Reading
) -> Judgement:
    shared: dict[str, Any] = {
        "samples": judging.samples,
        "confidence": judging.confidence,
        "seed": judging.seed,
        "max_weight": judging.max_weight,
    }
    if log.is_bandit and log.num_arms:
        choices = bandit_choices(target, log, logged, reading.add)
        return judge(choices, switch=judging.switch, **shared)
    episodes, said = episode_choices(target, log, logged, judging.gamma, reading.add)
    told = judge_episodes(episodes, **shared)
    return attrs.evolve(told, warnings=(*told.warnings, *said))


def _section(loaded: Loaded, files: Sequence[str], options: Mapping[str, Any]) -> DataSection:
    """Options of `[data]`: those given, else those that the run was trained with."""
    trained = loaded.prepared.config.data
    values = attrs.asdict(trained) if trained.is_used else {}
    values |= {"files": list(files), "format": "auto"}
    values |= {name: value for name, value in options.items() if name not in _OF_TRAINING}
    section, problems = structure(DataSection, values, "data")
    why = "matters in training alone: estimates do not depend on it"
    problems += [Problem(f"data.{name}", why) for name in options if name in _OF_TRAINING]
    if section is None or problems:
        raise ConfigError("the options of --set", problems, "see: rlplug options data")
    return section


def _check_spaces(loaded: Loaded, log: Log) -> None:
    """Refuse a policy of other observations or actions."""
    run, policy = loaded.manifest.run_id, loaded.policy
    if outline(policy.action_space) != outline(log.action_space):
        raise RequestError(
            f"run {run} chooses among {describe(policy.action_space)}, log {log.name!r} has "
            f"{describe(log.action_space)}.",
            "try: --set num_arms=N, or the log of the same arms",
        )
    here, there = policy.observation_space, log.observation_space
    if outline(here) != outline(there):
        raise RequestError(
            f"run {run} sees {describe(here)}, log {log.name!r} has {describe(there)}.",
            "try: --set context=PATTERN for the columns that it was trained on",
        )


def _check(log: Log, judging: Judging, has_behavior: bool) -> None:
    """Refuse what has no estimate."""
    if not log.num_arms and not judging.explores:
        raise RequestError(
            f"the actions of log {log.name!r} are continuous: a greedy policy takes exactly the "
            "logged ones with probability 0.",
            "try: --explore, which judges the policy as it explores in training",
        )
    if log.has_propensities or has_behavior:
        return
    hints = [
        "try: --set propensity=COLUMN, or --assume-uniform if they were chosen uniformly at random",
        "or: --logged-by RUN, of the policy that chose them, or of bc that was trained on the log",
    ]
    if not judging.assume_uniform:
        raise RequestError(
            f"log {log.name!r} has no propensities: with which probability its actions were chosen "
            "is not known.",
            *hints,
        )
    if not log.num_arms:
        raise RequestError(
            f"the actions of log {log.name!r} are continuous: they cannot be assumed to be "
            "uniform.",
            hints[1].replace("or: ", "try: "),
        )


def _warnings(loaded: Loaded, log: Log, judging: Judging, logged_by: str) -> Iterator[str]:
    trained = loaded.prepared.config.data.files
    if set(trained) & set(log.paths):
        yield (
            "the policy learned from this very log: estimates are too high. Judge it by rows that "
            "it has not seen."
        )
    policy = loaded.policy
    if judging.explores and log.num_arms and not policy.tells_probabilities:
        yield (
            f"{type(policy.module).__name__} does not tell its probabilities: they are shares of "
            f"{ESTIMATING_DRAWS} draws."
        )
    if logged_by:
        yield (
            f"propensities are those of {logged_by}: estimates are as good as it tells what chose "
            "the actions."
        )
