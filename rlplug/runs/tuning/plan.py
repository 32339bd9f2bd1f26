"""Which run of a study is next, and what becomes of a trial when its runs have ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import numpy

from rlplug.quantities import format_number
from rlplug.review.record import PRUNED, REWARD, RunRecord
from rlplug.runs.request import Request
from rlplug.runs.seeds.arguments import arguments_of, resume_arguments
from rlplug.runs.seeds.state import SeedState
from rlplug.runs.tuning.asked import TuneRequest
from rlplug.runs.tuning.study import Proposal, Study
from rlplug.tracking.details import read_history
from rlplug.tracking.location import RunFolder, runs_in
from rlplug.tracking.recorded import read_record

__all__ = ["TrialsPlan", "score_of", "trial_runs"]

_EVALUATED = "eval/return_mean"


@attrs.define(kw_only=True, eq=False)
class _Trial:
    """A trial in progress, with a run for each of its seeds."""

    proposal: Proposal
    runs: dict[int, SeedState] = attrs.field(factory=dict)
    """Seed → its run, once it was started."""
    is_pruned: bool = False

    @property
    def in_progress(self) -> bool:
        return any(one.status in ("waiting", "running") for one in self.runs.values())

    def all_finished(self, seeds: Sequence[int]) -> bool:
        return all(seed in self.runs and self.runs[seed].status == "finished" for seed in seeds)


class TrialsPlan:
    """Trials as Optuna proposes them; those that were interrupted go on first.

    Of several seeds, the first one decides whether a trial is pruned: the others start after it.
    """

    def __init__(self, study: Study, asked: TuneRequest, name: str, root: Path) -> None:
        self.states: list[SeedState] = []
        self._study = study
        self._asked = asked
        self._name = name
        self._open: dict[int, _Trial] = {}
        self._ready: deque[SeedState] = deque()
        before = study.trials
        self.alike = all(one.status in ("RUNNING", "FAIL") for one in before)
        self._count = len(before)
        runs = trial_runs(root, name) if before else {}
        for proposal in before:
            if proposal.status == "RUNNING":
                self._go_on(proposal, runs.get(proposal.number, {}))

    def take(self) -> SeedState | None:
        """A further run of a trial in progress, or the first one of a new trial."""
        if not self._ready and self._count < self._asked.section.trials:
            self._count += 1
            proposal = self._study.ask()
            trial = self._open[proposal.number] = _Trial(proposal=proposal)
            self._add(trial, self._asked.seeds[0])
        return self._ready.popleft() if self._ready else None

    def started(self, state: SeedState) -> None:
        """Its trial is known by the run's folder."""

    def evaluated(self, state: SeedState, step: int, metrics: Mapping[str, float]) -> str:
        """Ask Optuna whether the trial is worth going on with."""
        trial = self._open[state.part["trial"]["number"]]
        metric = self._asked.section.metric or _EVALUATED
        if metric not in metrics:
            return ""
        # Where evaluations were due: those of other rollout lengths came somewhat later.
        every = self._asked.evaluate_every or 1
        if not self._study.report(trial.proposal.number, step // every * every, metrics[metric]):
            return ""
        trial.is_pruned = True
        value = format_number(metrics[metric])
        return f"{PRUNED}{metric} = {value} at step {step:,}, by Optuna's {self._pruner} pruner"

    def ended(self, state: SeedState) -> None:
        """Go on with the trial's other seeds, or tell Optuna how it went."""
        trial = self._open[state.part["trial"]["number"]]
        if state.status == "finished" and trial.is_pruned:
            state.status = "pruned"
        elif state.status == "finished":
            self._start_others(trial)
        self._conclude(trial)

    @property
    def _pruner(self) -> str:
        return self._asked.section.pruner.replace("_", " ")

    def _go_on(self, proposal: Proposal, runs: Mapping[int, RunFolder]) -> None:
        """A trial that was interrupted, with the runs that it had."""
        trial = self._open[proposal.number] = _Trial(proposal=proposal)
        for seed in self._asked.seeds:
            if seed in runs:
                self._add(trial, seed, runs[seed])
        first = self._asked.seeds[0]
        if first not in trial.runs:
            self._add(trial, first)
        elif trial.runs[first].status == "finished":
            # It may have been pruned, and nobody was left to tell it.
            trial.is_pruned = _was_pruned(trial.runs[first])
            if trial.is_pruned:
                trial.runs[first].status = "pruned"
            else:
                self._start_others(trial)
        self._conclude(trial)

    def _start_others(self, trial: _Trial) -> None:
        for seed in self._asked.seeds:
            if seed not in trial.runs:
                self._add(trial, seed)

    def _add(self, trial: _Trial, seed: int, run: RunFolder | None = None) -> None:
        number, several = trial.proposal.number, len(self._asked.seeds) > 1
        first = seed == self._asked.seeds[0]
        request = self._asked.trial(trial.proposal.values)
        asks = first and self._asked.section.pruner != "none"
        state = SeedState(
            seed=seed,
            name=f"trial {number}" + (f"-s{seed}" if several else ""),
            arguments=arguments_of(request, seed)
            if run is None
            else resume_arguments(run.run_id, Request()),
            part={"trial": {"study": self._name, "number": number}, "asks": asks},
        )
        if run is not None:
            _continue(state, run)
        trial.runs[seed] = state
        self.states.append(state)
        if state.status == "waiting":
            self._ready.append(state)

    def _conclude(self, trial: _Trial) -> None:
        number, runs = trial.proposal.number, trial.runs.values()
        if trial.in_progress or any(one.status == "interrupted" for one in runs):
            return
        if trial.is_pruned:
            self._study.tell(number, "PRUNED")
        elif not trial.all_finished(self._asked.seeds):
            self._study.tell(number, "FAIL")
        else:
            scores = [score_of(one.record(), self._asked.section.metric) for one in runs]
            found = [one for one in scores if one is not None]
            if len(found) == len(scores):
                self._study.tell(number, "COMPLETE", sum(found) / len(found))
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


def trial_runs(root: Path, study: str) -> dict[int, dict[int, RunFolder]]:
    """The newest run of each seed of each trial."""
    found: dict[int, dict[int, RunFolder]] = {}
    for run in _oldest_first(root):
        if run.about.group == study and run.about.trial.isdecimal():
            found.setdefault(int(run.about.trial), {})[run.about.seed] = run
    return found


def _oldest_first(root: Path) -> Iterator[RunFolder]:
    return iter(sorted(runs_in(root), key=lambda run: run.started))


def _continue(state: SeedState, run: RunFolder) -> None:
    record = read_record(run)
    state.folder = run.path
    if record.status == "FINISHED":
        state.status, state.code = "finished", 0
        state.step, state.steps = record.step, run.about.steps
        state.latest = dict(record.latest)


def _was_pruned(state: SeedState) -> bool:
    return state.record().reason.startswith(PRUNED)
