"""Run several seeds, or go on with those of a group, and sum up what they come to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplug.checkpoint import lasting_name
from rlplug.checkpoint.trust import OF_RUN, admit
from rlplug.config.sections import ScaleSection
from rlplug.config.sources import Setting
from rlplug.errors import FAILURES, RequestError, described
from rlplug.registry import Registry
from rlplug.runs.groups.carry_out import MakeDisplay, carry_out
from rlplug.runs.groups.group import Group, Outcome
from rlplug.runs.groups.member import Member
from rlplug.runs.groups.order import resume_order, run_order
from rlplug.runs.groups.place import place_of, placed_by
from rlplug.runs.groups.seed_numbers import seeds_text
from rlplug.runs.groups.seeds_summary import SeedsSummary
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request
from rlplug.runs.result import RunInterrupted, RunResult
from rlplug.tracking.location import RunFolder, runs_folder, runs_in

__all__ = ["SeedsOutcome", "resume_seeds", "run_in_order", "run_seeds"]

SeedsOutcome = Outcome[SeedsSummary]

_LOG = logging.getLogger("rlplug")


def run_seeds(
    prepared: Prepared,
    seeds: Sequence[int],
    jobs: int,
    make_display: MakeDisplay,
    *,
    resume_existing: bool = False,
) -> SeedsOutcome:
    """Run each seed in a process of its own, some at a time.

    With `resume_existing`, a seed whose run has been started goes on.
    """
    initial = prepared.config.run.init_from
    if initial:
        # All seeds start from the same weights: `last` must not mean the first of them.
        prepared = prepared.with_options(run={"init_from": lasting_name(initial)})
    members = [_new(prepared, seed, resume_existing=resume_existing) for seed in seeds]
    plugins = (prepared.algorithm, *prepared.addons)
    names = " + ".join(plugin.name for plugin in plugins)
    plan = _SeedsPlan(members, runs_folder(), placed_by(prepared), alike=not resume_existing)
    title = f"{names}, seeds {seeds_text(tuple(seeds))}"
    return _carry_out(plan, prepared, jobs, make_display, title)


def _new(prepared: Prepared, seed: int, *, resume_existing: bool = False) -> Member:
    """A seed that starts; what would be the same for all has the seed in its name."""
    sections: dict[str, Mapping[str, object]] = {"run": {"seed": seed}}
    record, name = prepared.config.sampling.record, prepared.config.tracking.run_name
    if record:
        sections["sampling"] = {"record": f"{record}/seed-{seed}"}
    if name:
        sections["tracking"] = {"run_name": f"{name}-s{seed}"}
    own = prepared.with_options(origin="--seeds", **sections)
    order = run_order(own, resume_existing=resume_existing)
    return Member(seed=seed, order=order)


def resume_seeds(
    group: Group,
    settings: Sequence[Setting],
    jobs: int,
    make_display: MakeDisplay,
    *,
    steps: int = 0,
    allow_drift: bool = False,
    trust: bool = False,
) -> SeedsOutcome:
    """Go on with all seeds of a group that have not finished, and start those that never began.

    With more `steps` or other settings, go on with all of them. Without `trust`, a group of
    somebody else is refused if its options name code to import.
    """
    group.refuse_in_progress()
    changed = bool(steps or settings)
    unfinished, runs = group.unfinished(), group.runs
    new = [seed for seed in unfinished if seed not in runs]
    if changed and new:
        raise RequestError(
            f"seeds {seeds_text(tuple(new))} of group {group.name} were never started.",
            f"try: first rlplug resume {group.name}",
        )
    if not (unfinished or changed):
        raise RequestError(
            f"all seeds of group {group.name} have finished: there is nothing to resume.",
            f"try: rlplug resume {group.name} --steps N, to train on",
        )
    admit(group.config.parent, OF_RUN, trust=trust)
    prepared = prepare(Request(config=group.config), Registry.installed())
    changes: dict[str, Any] = {"steps": steps, "settings": settings, "allow_drift": allow_drift}
    members = []
    for seed in group.asked:
        if seed in new:
            members.append(_new(prepared, seed))
            continue
        run = runs[seed]
        order = resume_order(run.run_id, trust=trust, **changes)
        member = Member(seed=seed, folder=run.path, order=order)
        if not changed and seed not in unfinished:
            member.found(run)
        members.append(member)
    plan = _SeedsPlan(members, group.root, group.placed_by, alike=False)
    working = [member.seed for member in members if member.status == "waiting"]
    title = f"{group.name}, seeds {seeds_text(tuple(working))}"
    return _carry_out(plan, prepared, jobs, make_display, title)


class _SeedsPlan:
    """Seeds, one after another, of a group that the first to begin makes known."""

    def __init__(
        self, members: list[Member], root: Path, placed_by: ScaleSection | None, *, alike: bool
    ) -> None:
        self.members = members
        self.alike = alike
        self.placed_by = placed_by
        self.root = root
        self.waiting = [member for member in members if member.status == "waiting"]
        self.group: Group | None = None
        self._upcoming = iter(self.waiting)

    def take(self) -> Member | None:
        """The next seed."""
        return next(self._upcoming, None)

    def started(self, member: Member) -> None:
        """Keep what the seeds have in common."""
        run = None if member.folder is None else RunFolder.read(member.folder)
        if run is not None and self.group is None:
            self.group = Group(self.root, run.about.group)
            self.group.ask([one.seed for one in self.members], run.path, self.placed_by)

    def evaluated(self, member: Member, step: int, metrics: Mapping[str, float]) -> str:
        """Seeds go on to their end."""
        return ""

    def ended(self, member: Member) -> None:
        """What became of it is in its state."""


def _carry_out(
    plan: _SeedsPlan, prepared: Prepared, jobs: int, make_display: MakeDisplay, title: str
) -> SeedsOutcome:
    count = len(plan.waiting)
    with place_of(prepared, plan.placed_by, count, jobs, plan.root) as place:
        ended_by = carry_out(plan, place.jobs, place.launch, make_display(f"{title}: {place}"))
    _find_finished(plan.members, plan.root)
    for member in plan.members:
        plan.started(member)
    return _concluded(plan.members, ended_by, plan.group)


def _find_finished(members: Sequence[Member], root: Path) -> None:
    """The runs that had finished before: their processes had nothing to report."""
    names = {
        member.order["config"]["tracking"]["run_name"]: member
        for member in members
        if member.folder is None and member.order.get("resume_existing")
    }
    for run in runs_in(root) if names else ():
        if run.run_name in names:
            names[run.run_name].folder = run.path


def _concluded(members: Sequence[Member], ended_by: int, group: Group | None) -> SeedsOutcome:
    """Sum up, and record the summary, unless the seeds are to go on later."""
    if group is None:
        return Outcome(members=members, ended_by=ended_by, group=None)
    errors = {one.seed: one.error[0] for one in members if one.status == "failed"}
    summary = SeedsSummary(
        group=group.name, runs=tuple(member.record() for member in members), errors=errors
    )
    # It takes seconds, and is written once they are resumed.
    written = summary.finished and not ended_by
    return Outcome(
        members=members,
        ended_by=ended_by,
        group=group,
        summary=summary,
        is_complete=all(member.status == "finished" for member in members),
        run_id=summary.record().write(group) if written else "",
    )


def run_in_order(seeds: Sequence[int], run: Callable[[int], RunResult], what: str) -> SeedsOutcome:
    """Run the seeds in this process; `what` keeps them from having processes of their own.

    A request that is wrong is raised as for one seed.
    """
    _LOG.warning("rlplug: the seeds run one after another in this process, because of %s.", what)
    members = [Member(seed=seed) for seed in seeds]
    ended_by, first_error = 0, None
    for member in members:
        try:
            result = run(member.seed)
        except RunInterrupted as interrupted:
            member.folder, member.status = interrupted.result.folder, "interrupted"
            ended_by = interrupted.number
            break
        except FAILURES as error:
            begun = any(one.folder for one in members)
            if getattr(error, "exit_code", 1) == 2 and not begun:
                raise
            first_error = first_error or error
            member.status, member.error = "failed", described(error).splitlines()
        else:
            member.folder, member.status = result.folder, "finished"
    plan = _SeedsPlan(members, runs_folder(), None, alike=False)
    for member in members:
        plan.started(member)
    if plan.group is None and first_error is not None:
        raise first_error
    return _concluded(members, ended_by, plan.group)
