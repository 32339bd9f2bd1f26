"""Judge tracked policies by a log: what they would have earned on its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint import find_checkpoint
from rlplug.config.sections import DataSection
from rlplug.config.strict import structure
from rlplug.errors import ConfigError
from rlplug.logs import Log
from rlplug.logs.encoding import said_of
from rlplug.ope.choices import Policies, bandit_choices, episode_choices
from rlplug.ope.judge import Judgement, judge
from rlplug.registry import Registry
from rlplug.runs.loading import Loaded, load_checkpoint
from rlplug.serving.policy import ESTIMATING_DRAWS
from rlplug.tracking.console import Console

__all__ = ["Judged", "Judging", "judge_runs"]


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

    def of(self, policies: Policies, log: Log, progress: Callable[[int], None]) -> Judgement:
        """What the policy would have earned on the rows, or in the episodes, of the log."""
        options: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("samples", "confidence", "seed", "switch", "max_weight")
        }
        if log.is_bandit and log.num_arms:
            return judge(bandit_choices(policies, log, progress), **options)
        choices, said = episode_choices(policies, log, self.gamma, progress)
        judgement = judge(choices, **options)
        return attrs.evolve(judgement, warnings=(*judgement.warnings, *said))


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
    judging, console = judging or Judging(), console or Console()

    def loaded(run: str) -> Loaded:
        path = find_checkpoint(run, checkpoint)
        return load_checkpoint(path, seed=judging.seed, registry=registry, trust=trust)

    targets = [loaded(run) for run in runs]
    behavior = loaded(logged_by).policy if logged_by else None
    judged = []
    for one in targets:
        # Each policy reads the rows with the features, levels and arms that it knows.
        log = Log.open(_section(one, files, options or {}), one.policy.encoder)
        whole = (2 if log.is_bandit else 1) * log.rows
        policies = Policies(
            target=one.policy,
            explores=judging.explores,
            num_arms=log.num_arms,
            logged_by=behavior,
        )
        run_id = one.manifest.run_id
        policies.refuse(log, f"run {run_id}", assume_uniform=judging.assume_uniform)
        parts: list[int] = []
        with console.activities.doing("judging", lambda: f"{sum(parts):,}/{whole:,} rows"):  # noqa: B023
            judgement = judging.of(policies, log, parts.append)
        warnings = (*judgement.warnings, *_warnings(one, log, judging, logged_by))
        judged.append(
            Judged(
                run_id=run_id,
                run_name=one.path.absolute().parent.parent.name,
                step=one.manifest.step,
                checkpoint=one.path,
                explores=judging.explores,
                judgement=attrs.evolve(judgement, warnings=warnings),
            )
        )
    return judged, log


def _section(loaded: Loaded, files: Sequence[str], options: Mapping[str, Any]) -> DataSection:
    """Options of `[data]`: those given, else those that the run was trained with."""
    trained = loaded.prepared.config.data
    values = attrs.asdict(trained) if trained.is_used else {}
    values |= {"context": loaded.policy.features} if loaded.policy.features else {}
    values |= {"files": list(files), "format": "auto", **options}
    section, problems = structure(DataSection, values, "data")
    if section is None:
        raise ConfigError("the options of --set", problems, "see: rlplug plugins show data")
    return section


def _warnings(loaded: Loaded, log: Log, judging: Judging, logged_by: str) -> Iterator[str]:
    if set(loaded.prepared.config.data.files) & set(log.paths):
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
    if log.unseen:
        yield said_of(log.unseen)
    if logged_by:
        yield (
            f"propensities are those of {logged_by}: estimates are as good as it tells what chose "
            "the actions."
        )
