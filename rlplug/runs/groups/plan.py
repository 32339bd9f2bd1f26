"""Which run of a group is next, and what becomes of a trial when its runs have ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs
import numpy

from rlplug.config.secrets import masked_toml
from rlplug.config.sections import ScaleSection
from rlplug.errors import RlplugError
from rlplug.quantities import format_number
from rlplug.review.record import PRUNED, REWARD, RunRecord
from rlplug.runs.groups.asked import Asked
from rlplug.runs.groups.child import resume_order, run_order
from rlplug.runs.groups.group import NO_TRIAL, Group
from rlplug.runs.groups.member import Member
from rlplug.runs.groups.study import Study
from rlplug.tracking.details import read_history
from rlplug.tracking.location import RunFolder

__all__ = ["Plan", "score_of"]

_EVALUATED = "eval/return_mean"


@attrs.define(eq=False)
class _Trial:
    """Runs with the same options, one for each seed, in progress."""

    number: int = NO_TRIAL
    values: Mapping[str, Any] = attrs.field(factory=dict)
    members: dict[int, Member] = attrs.field(factory=dict)
    """Seed → its run, once there is one."""
    is_pruned: bool = False


class Plan:
    """The runs of a group: all seeds of one trial, or of trials as Optuna proposes them.

    Of a study, trials that were interrupted go on first. If they may be pruned, the first seed
    decides, and the others start after it.
    """

    def __init__(
        self,
        asked: Asked,
        group: Group | None,
        study: Study | None = None,
        *,
        placed_by: ScaleSection | None = None,
        resume: Mapping[str, Any] | None = None,
        resume_existing: bool = False,
    ) -> None:
        """`resume` says how runs of the group go on; None: they start.

        With `resume_existing`, a run that has the name of one that starts goes on.
        """
        self.group = group
        """Of seeds without a name of their own, known once a run has begun."""
        self.members: list[Member] = []
        """The runs so far, in the order in which they are shown."""
        self._asked = asked
        self._study = study
        self._placed_by = placed_by
        self._resume = resume
        self._resume_existing = resume_existing
        self._open: dict[int, _Trial] = {}
        self._ready: deque[Member] = deque()
        runs = {} if group is None or resume is None else group.runs
        before = [] if study is None else study.trials
        self.alike = not runs and all(trial.state.name in ("RUNNING", "FAIL") for trial in before)
        """Whether what is refused for the first run would be refused for the others."""
        self._proposed = len(before)
        if study is None:
            self._open[NO_TRIAL] = trial = _Trial()
            for seed in asked.seeds:
                self._add(trial, seed, runs.get((NO_TRIAL, seed)))
            return
        for proposed in before:
            if proposed.state.name == "RUNNING":
                values = study.values(proposed)
                self._go_on(_Trial(proposed.number, values), runs)

    @property
    def waiting(self) -> int:
        """How many runs are ready to start."""
        return len(self._ready)

    def take(self) -> Member | None:
        """The next run to start; None if there is none now."""
        search = self._asked.search
        if self._study and search and not self._ready and self._proposed < search.section.trials:
            self._proposed += 1
            proposed = self._study.ask()
            trial = _Trial(proposed.number, self._study.values(proposed))
            self._open[trial.number] = trial
            self._add(trial, self._asked.seeds[0])
        return self._ready.popleft() if self._ready else None

    def started(self, member: Member) -> None:
        """A run has begun, or goes on, in its folder: keep what the group needs to go on."""
        run = None if member.folder is None else RunFolder.read(member.folder)
        if run is None:
            return
        self.group = group = self.group or Group(run.path.parent.parent, run.about.group)
        asked, search, placed = self._asked, self._asked.search, self._placed_by
        if search is None:
            scale = None if placed is None else attrs.asdict(placed)
            group.keep(seeds=sorted({*group.seeds, *asked.seeds}), scale=scale)
            group.keep_options(masked_toml(asked.prepared.config).encode())
        else:
            settings = search.masked_settings
            group.keep(tune=dict(search.given), settings=settings, options=asked.options)
            group.keep_options(search.as_toml())

    def evaluated(self, member: Member, step: int, metrics: Mapping[str, float]) -> str:
        """Ask Optuna whether the trial is to go on: why it is to end now, or an empty string."""
        search = self._asked.search
        metric = (search.section.metric if search else "") or _EVALUATED
        if search is None or self._study is None or metric not in metrics:
            return ""
        # Where evaluations were due: those of other rollout lengths came somewhat later.
        every = self._asked.evaluate_every or 1
        if not self._study.report(member.trial, step // every * every, metrics[metric]):
            return ""
        self._open[member.trial].is_pruned = True
        value, pruner = format_number(metrics[metric]), search.section.pruner.replace("_", " ")
        return f"{PRUNED}{metric} = {value} at step {step:,}, by Optuna's {pruner} pruner"

    def ended(self, member: Member) -> None:
        """Go on with the other seeds of its trial, or tell Optuna how it went."""
        trial = self._open[member.trial]
        if member.status == "finished":
            self._finished(trial, member)
        self._conclude(trial)

    def _go_on(self, trial: _Trial, runs: Mapping[tuple[int, int], RunFolder]) -> None:
        """A trial that was interrupted, with the runs that it had."""
        self._open[trial.number] = trial
        first, *_ = seeds = self._asked.seeds
        for seed in seeds:
            run = runs.get((trial.number, seed))
            if run is not None or seed == first:
                self._add(trial, seed, run)
        member = trial.members[first]
        if member.status == "finished":
            # It may have been pruned, and the study was not told.
            trial.is_pruned = member.record().reason.startswith(PRUNED)
            self._finished(trial, member)
        self._conclude(trial)

    def _finished(self, trial: _Trial, member: Member) -> None:
        if trial.is_pruned:
            member.status = "pruned"
            return
        for seed in self._asked.seeds:
            if seed not in trial.members:
                self._add(trial, seed)

    def _add(self, trial: _Trial, seed: int, run: RunFolder | None = None) -> None:
        seeds, search = self._asked.seeds, self._asked.search
        more: dict[str, Any] = {}
        member = Member(seed=seed, trial=trial.number)
        if self.group is not None and (search or self._asked.name):
            more["trial"] = {"study": self.group.name, "number": trial.number}
        if search is not None:
            more["asks"] = seed == seeds[0] and search.section.pruner != "none"
            member.name = f"trial {trial.number}{f'-s{seed}' if seeds[1:] else ''}"
        if run is not None:
            changes = self._resume or {}
            member.order = resume_order(run.run_id, **changes, **more)
            if not (changes.get("steps") or changes.get("settings")):
                member.found(run)
        else:
            try:
                prepared = self._asked.run(member.name, seed, trial.values)
                more["resume_existing"] = self._resume_existing
                member.order = run_order(prepared, **more)
            except RlplugError as error:
                # Its values contradict each other; those of other trials may not.
                member.refusal = str(error)
        trial.members[seed] = member
        self.members.append(member)
        if member.status == "waiting":
            self._ready.append(member)

    def _conclude(self, trial: _Trial) -> None:
        members, search = list(trial.members.values()), self._asked.search
        statuses = {member.status for member in members}
        if self._study is None or search is None:
            return
        if statuses & {"waiting", "running", "interrupted"}:
            return
        scores = [score_of(member.record(), search.section.metric) for member in members]
        known = [score for score in scores if score is not None]
        if trial.is_pruned:
            self._study.tell(trial.number, "PRUNED")
        elif statuses == {"finished"} and len(known) == len(self._asked.seeds):
            self._study.tell(trial.number, "COMPLETE", sum(known) / len(known))
        else:
            self._study.tell(trial.number, "FAIL")
        del self._open[trial.number]


def score_of(run: RunRecord, metric: str) -> float | None:
    """What a run is optimized for; None without it."""
    value = run.latest.get(metric) if metric else run.score
    if not metric and run.headline is not None and run.headline[0] == REWARD:
        # Over all steps of a bandit: the last report is of a few of them.
        steps, rewards = read_history(run, [REWARD])[REWARD]
        value = float(numpy.average(rewards, weights=numpy.diff(steps, prepend=0)))
    return value if value is not None and math.isfinite(value) else None
