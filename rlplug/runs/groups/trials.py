"""Which run of a study is next, and what becomes of a trial when its runs have ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy

from rlplug.errors import RlplugError
from rlplug.quantities import format_number
from rlplug.review.record import PRUNED, REWARD, RunRecord
from rlplug.runs.groups.child import resume_order, run_order
from rlplug.runs.groups.group import Group
from rlplug.runs.groups.member import Member
from rlplug.runs.groups.study import Proposal, Study
from rlplug.runs.groups.tune_request import TuneRequest
from rlplug.tracking.details import read_history
from rlplug.tracking.location import RunFolder

__all__ = ["TrialsPlan", "score_of", "trial_runs"]

_EVALUATED = "eval/return_mean"


@attrs.define(kw_only=True, eq=False)
class _Trial:
    """A trial in progress, with a run for each of its seeds."""

    proposal: Proposal
    members: dict[int, Member] = attrs.field(factory=dict)
    """Seed → its run, once there is one."""
    is_pruned: bool = False

    @property
    def in_progress(self) -> bool:
        return any(one.status in ("waiting", "running") for one in self.members.values())

    def all_finished(self, seeds: Sequence[int]) -> bool:
        finished = [seed for seed, one in self.members.items() if one.status == "finished"]
        return set(seeds) <= set(finished)


class TrialsPlan:
    """Trials as Optuna proposes them; those that were interrupted go on first.

    Of several seeds, the first one decides whether a trial is pruned: the others start after it.
    """

    def __init__(self, study: Study, asked: TuneRequest, group: Group) -> None:
        self.members: list[Member] = []
        self._study = study
        self._asked = asked
        self._name = group.name
        self._open: dict[int, _Trial] = {}
        self._ready: deque[Member] = deque()
        before = study.trials
        self.alike = all(proposal.status in ("RUNNING", "FAIL") for proposal in before)
        self._count = len(before)
        runs = trial_runs(group) if before else {}
        for proposal in before:
            if proposal.status == "RUNNING":
                self._go_on(proposal, runs.get(proposal.number, {}))

    def take(self) -> Member | None:
        """A further run of a trial in progress, or the first one of a new trial."""
        if not self._ready and self._count < self._asked.section.trials:
            self._count += 1
            proposal = self._study.ask()
            trial = self._open[proposal.number] = _Trial(proposal=proposal)
            self._add(trial, self._asked.seeds[0])
        return self._ready.popleft() if self._ready else None

    def started(self, member: Member) -> None:
        """Its trial is known by the run's folder."""

    def evaluated(self, member: Member, step: int, metrics: Mapping[str, float]) -> str:
        """Ask Optuna whether the trial is worth going on with."""
        trial, section = self._trial_of(member), self._asked.section
        metric = section.metric or _EVALUATED
        if metric not in metrics:
            return ""
        # Where evaluations were due: those of other rollout lengths came somewhat later.
        every = self._asked.evaluate_every or 1
        if not self._study.report(trial.proposal.number, step // every * every, metrics[metric]):
            return ""
        trial.is_pruned = True
        value, pruner = format_number(metrics[metric]), section.pruner.replace("_", " ")
        return f"{PRUNED}{metric} = {value} at step {step:,}, by Optuna's {pruner} pruner"

    def ended(self, member: Member) -> None:
        """Go on with the trial's other seeds, or tell Optuna how it went."""
        trial = self._trial_of(member)
        if member.status == "finished":
            self._first_finished(trial, member)
        self._conclude(trial)

    def _trial_of(self, member: Member) -> _Trial:
        return self._open[member.order["trial"]["number"]]

    def _go_on(self, proposal: Proposal, runs: Mapping[int, RunFolder]) -> None:
        """A trial that was interrupted, with the runs that it had."""
        trial = self._open[proposal.number] = _Trial(proposal=proposal)
        first = self._asked.seeds[0]
        for seed in self._asked.seeds:
            if seed in runs or seed == first:
                self._add(trial, seed, runs.get(seed))
        member = trial.members[first]
        if member.status == "finished":
            # It may have been pruned, and nobody was left to tell the study.
            trial.is_pruned = member.record().reason.startswith(PRUNED)
            self._first_finished(trial, member)
        self._conclude(trial)

    def _first_finished(self, trial: _Trial, member: Member) -> None:
        if trial.is_pruned:
            member.status = "pruned"
            return
        for seed in self._asked.seeds:
            if seed not in trial.members:
                self._add(trial, seed)

    def _add(self, trial: _Trial, seed: int, run: RunFolder | None = None) -> None:
        number, seeds = trial.proposal.number, self._asked.seeds
        more: dict[str, Any] = {
            "trial": {"study": self._name, "number": number},
            "asks": seed == seeds[0] and self._asked.section.pruner != "none",
        }
        suffix = f"-s{seed}" if len(seeds) > 1 else ""
        member = Member(seed=seed, name=f"trial {number}{suffix}", order=more)
        if run is not None:
            member.order = resume_order(run.run_id, **more)
            member.found(run)
        else:
            try:
                prepared = self._asked.trial(trial.proposal.values, seed)
                member.order = run_order(prepared, **more)
            except RlplugError as error:
                # Its values contradict each other; those of other trials may not.
                member.refusal = str(error)
        trial.members[seed] = member
        self.members.append(member)
        if member.status == "waiting":
            self._ready.append(member)

    def _conclude(self, trial: _Trial) -> None:
        number, members = trial.proposal.number, trial.members.values()
        if trial.in_progress or any(one.status == "interrupted" for one in members):
            return
        scores = [score_of(one.record(), self._asked.section.metric) for one in members]
        known = [score for score in scores if score is not None]
        if trial.is_pruned:
            self._study.tell(number, "PRUNED")
        elif len(known) == len(scores) and trial.all_finished(self._asked.seeds):
            self._study.tell(number, "COMPLETE", sum(known) / len(known))
        else:
            self._study.tell(number, "FAIL")
        del self._open[number]


def score_of(run: RunRecord, metric: str) -> float | None:
    """What a run is optimized for; None without it."""
    value = run.latest.get(metric) if metric else run.score
    if not metric and run.headline is not None and run.headline[0] == REWARD:
        value = _mean_reward(run)
    return value if value is not None and math.isfinite(value) else None


def _mean_reward(run: RunRecord) -> float:
    """Over all steps of a bandit: the last report is of a few, and does not tell how it learned."""
    steps, rewards = read_history(run, [REWARD])[REWARD]
    return float(numpy.average(rewards, weights=numpy.diff(steps, prepend=0)))


def trial_runs(group: Group) -> dict[int, dict[int, RunFolder]]:
    """The newest run of each seed of each trial."""
    found: dict[int, dict[int, RunFolder]] = {}
    for run in group.all_runs:
        if run.about.trial.isdecimal():
            found.setdefault(int(run.about.trial), {})[run.about.seed] = run
    return found
