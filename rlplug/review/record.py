"""What is known of a recorded run, wherever it was read from."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

from rlplug.quantities import moment

PRUNED = "pruned: "
"""How the reason begins for which a trial ended before its last step."""

ABOUT = "about"
"""The part of `run.json` that holds a `RunAbout`."""


@attrs.frozen(kw_only=True)
class Trial:
    """The place of a run in a group with a name of its own: a study, or seeds."""

    study: str
    """The name."""
    number: int = -1
    """Which trial of the study it is; -1: the group differs in seeds alone."""


@attrs.frozen(kw_only=True)
class RunAbout:
    """What a run is, fixed at its start; kept in its folder and as tags in MLflow."""

    algorithm: str = ""
    env: str = ""
    seed: int = 0
    group: str = ""
    """The same for runs that differ only in their seeds, and for all trials of a study."""
    trial: str = ""
    """Its number, if the run is a trial of a study."""
    steps: int = 0
    """Total number of environment steps it was asked for."""
    options: Mapping[str, str] = attrs.field(factory=dict)
    """Those that differ from the defaults; environment, seed and tracking are left out."""

    @classmethod
    def read(cls, facts: Any) -> RunAbout:
        """Structure JSON values; what is missing or of another type gets its default."""
        facts = facts if isinstance(facts, Mapping) else {}
        kinds = {field.name: type(getattr(cls(), field.name)) for field in attrs.fields(cls)}
        values = {
            name: facts[name] for name, kind in kinds.items() if type(facts.get(name)) is kind
        }
        options = {str(name): str(value) for name, value in values.get("options", {}).items()}
        return cls(**{**values, "options": options})

    @property
    def shown_options(self) -> str:
        """The options in one line, as `--set` takes them: `alpha=2 sampling.num_envs=8`."""
        return " ".join(
            f"{path.removeprefix('algorithm.')}={value}" for path, value in self.options.items()
        )


@attrs.frozen(kw_only=True)
class RunRecord:
    """One run, as its folder or MLflow has it."""

    run_id: str
    name: str
    about: RunAbout
    status: str
    """RUNNING, FINISHED, FAILED or KILLED; `stale`: of another host, without a sign of life.

    `unreadable`: its files are damaged.
    """
    reason: str = ""
    """Why it ended: `finished`, `error`, `interrupted`, `process died`."""
    started: str = ""
    ended: str = ""
    step: int = 0
    """Environment steps so far."""
    best: tuple[int, float] | None = None
    """Step and mean return of the best evaluation; None without one."""
    latest: Mapping[str, float] = attrs.field(factory=dict)
    """The last value of each metric."""
    pending: bool = False
    """Whether something of it is not in MLflow."""
    folder: Path | None = None
    """Its folder; None if it is on another machine, or gone."""
    uri: str = ""
    """Where it is recorded, without passwords; empty: not in MLflow."""
    experiment_id: str = ""
    tracked_id: str = ""
    """Its id in MLflow, if that is another: it was started while MLflow did not answer."""

    @property
    def id_in_mlflow(self) -> str:
        return self.tracked_id or self.run_id

    @property
    def short(self) -> str:
        """The first characters of the id."""
        return self.run_id[:8]

    @property
    def shown_status(self) -> str:
        """The status, of a run that failed or cannot be read with the reason."""
        if self.status == "FINISHED" and self.reason.startswith(PRUNED):
            return "FINISHED (pruned)"
        has_reason = self.status in ("FAILED", "unreadable") and self.reason
        return f"{self.status} ({self.reason})" if has_reason else self.status

    @property
    def score(self) -> float | None:
        """What runs are ranked by: the best evaluation's return, else the training's headline."""
        if self.best is not None:
            return self.best[1]
        return None if self.headline is None else self.headline[1]

    @property
    def headline(self) -> tuple[str, float] | None:
        """Name and last value of the metric that says how good the run is; None without one."""
        name = next((name for name in HEADLINES if name in self.latest), None)
        return None if name is None else (name, self.latest[name])


@attrs.frozen(kw_only=True)
class CheckpointRecord:
    """A checkpoint of a run."""

    step: int
    score: float | None = None
    """Mean return of the evaluation at its step; None without one."""
    marks: Sequence[str] = ()
    """`best`, `last`, `not finite`."""


REWARD = "rollout/reward_mean"
"""Mean reward per step, the headline metric of bandits."""
RETURN = "rollout/return_mean"
"""Mean return per episode, the headline metric where episodes have several steps."""

REGRET = "rollout/regret_total"
"""Of bandits it says more than the reward of single steps."""

HEADLINES = ("eval/return_mean", RETURN, REWARD)
"""The metrics that say how good a run is, the first that it has."""

BEST_RETURN, BEST_STEP = "eval/best_return_mean", "eval/best_step"
"""The metrics of the best evaluation so far, reported with each evaluation."""


OF_AGENT = "eval/agents/"
"""How the names of metrics begin that an evaluation of several agents has of each of them."""


def rank(evaluation: Mapping[str, float], step: int) -> tuple[float, int]:
    """What the best of several evaluations has the largest of: its mean return, -inf without one.

    Of equal ones, the first is the best; of several agents the latest: where some win what others
    lose, all are equal.
    """
    score = float(evaluation.get(HEADLINES[0], "-inf"))
    of_agents = any(name.startswith(OF_AGENT) for name in evaluation)
    return (score if score == score else float("-inf")), step if of_agents else -step


def ranking(run: RunRecord) -> tuple[float, float, int]:
    """What the best of several runs has the largest of: its score, of equal ones its last return.

    What is not a number comes last. Of runs that are equal in both, the lowest seed is the best.
    """
    last = None if run.headline is None else run.headline[1]
    score, last = (
        -math.inf if value is None or math.isnan(value) else value for value in (run.score, last)
    )
    return score, last, -run.about.seed


def best_evaluation(latest: Mapping[str, float]) -> tuple[int, float] | None:
    """Step and mean return of the best evaluation, from the last values of the metrics."""
    if BEST_RETURN not in latest or BEST_STEP not in latest:
        return None
    return int(latest[BEST_STEP]), latest[BEST_RETURN]


def select(
    runs: Iterable[RunRecord],
    *,
    env: str = "",
    algo: str = "",
    group: str = "",
    status: Collection[str] = (),
    since: datetime | None = None,
) -> list[RunRecord]:
    """The runs that meet all conditions; texts may have `*`, and case does not matter."""
    patterns = {"env": env, "algorithm": algo, "group": group}
    statuses = {name.lower() for name in status}
    return [
        run
        for run in runs
        if all(_is_like(getattr(run.about, name), one) for name, one in patterns.items())
        and (not statuses or run.status.lower() in statuses)
        and (since is None or _started(run) >= since.timestamp())
    ]


def sort(runs: Iterable[RunRecord], by: str = "started") -> list[RunRecord]:
    """Newest, or longest first, by name, or the best first in each environment."""
    newest = sorted(runs, key=lambda run: run.started, reverse=True)
    if by == "best":
        return sorted(sorted(newest, key=ranking, reverse=True), key=lambda run: run.about.env)
    if by == "name":
        return sorted(newest, key=lambda run: run.name)
    return sorted(newest, key=lambda run: -run.step) if by == "step" else newest


def _is_like(value: str, pattern: str) -> bool:
    return not pattern or fnmatchcase(value.lower(), pattern.lower())


def _started(run: RunRecord) -> float:
    time = moment(run.started)
    return 0.0 if time is None else time.timestamp()
