"""Run several seeds, or go on with those of a group, and sum up what they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from rlplug.checkpoint import lasting_name
from rlplug.config.scale_section import ScaleSection
from rlplug.errors import RequestError
from rlplug.runs.request import Request, layers_of
from rlplug.runs.seeds.arguments import arguments_of, name_of_seed, resume_arguments
from rlplug.runs.seeds.asked import seeds_text
from rlplug.runs.seeds.carry_out import SeedDisplay, carry_out_runs, exit_code
from rlplug.runs.seeds.files import write_files
from rlplug.runs.seeds.group import Group
from rlplug.runs.seeds.placement import Placement, placed, spread_by
from rlplug.runs.seeds.state import SeedState
from rlplug.runs.seeds.summary import Summary
from rlplug.runs.seeds.summary_run import record_summary, summary_of_seeds
from rlplug.tracking.location import RunFolder, runs_folder, runs_in
from rlplug.tracking.recorded import read_record

__all__ = [
    "MakeDisplay",
    "SeedsOutcome",
    "ShownSeeds",
    "concluded",
    "resume_seeds",
    "run_seeds",
]


class ShownSeeds(SeedDisplay, Protocol):
    """A display that may keep something open."""

    def close(self) -> None:
        """Leave the terminal as it was."""


MakeDisplay = Callable[[str], ShownSeeds]
"""From a title."""


@attrs.frozen(kw_only=True)
class SeedsOutcome:
    """How the seeds ended, and what is left of them."""

    states: Sequence[SeedState]
    ended_by: int
    """The signal that ended them; 0: none."""
    group: Group | None
    """None: no seed came to have a run."""
    summary: Summary | None = None
    run_id: str = ""
    """The summary run in MLflow; empty: there is none."""

    @property
    def code(self) -> int:
        """The exit code of all together."""
        return exit_code(self.states, self.ended_by)


def run_seeds(
    request: Request, seeds: Sequence[int], jobs: int, make_display: MakeDisplay
) -> SeedsOutcome:
    """Run each seed in a process of its own, some at a time."""
    request = _with_lasting_names(request)
    states = [SeedState(seed=seed, arguments=arguments_of(request, seed)) for seed in seeds]
    layers = layers_of(request)
    names = [layers.section("run", "algorithm") or "run", *(layers.section("run", "addons") or ())]
    title = f"{' + '.join(names)}, seeds {seeds_text(tuple(seeds))}"
    name = request.flags.get("tracking", {}).get("run_name", "")
    section, root = spread_by(request), runs_folder()
    plan = _SeedsPlan(states, root, alike=not name, section=section)
    with placed(request, section, len(seeds), jobs, root) as place:
        return _carry_out(plan, place, make_display, title, root, name)


def _with_lasting_names(request: Request) -> Request:
    """All seeds start from the same weights: `last` must not mean the first of them."""
    section = request.flags.get("run", {})
    if not section.get("init_from"):
        return request
    named = {**section, "init_from": lasting_name(section["init_from"])}
    return attrs.evolve(request, flags={**request.flags, "run": named})


def resume_seeds(
    group: Group,
    request: Request,
    jobs: int,
    make_display: MakeDisplay,
    *,
    steps: int = 0,
    allow_drift: bool = False,
) -> SeedsOutcome:
    """Go on with all seeds of a group that have not finished, and start those that never began.

    With more `steps` or other settings, go on with all of them.
    """
    group.refuse_in_progress()
    changed = bool(steps or request.settings)
    unfinished = group.unfinished()
    new = [seed for seed, run in unfinished.items() if run is None]
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
    chosen = dict(group.runs) if changed else unfinished
    states = [_resumed(group, seed, chosen, request, steps, allow_drift) for seed in group.asked]
    working = [state.seed for state in states if state.status == "waiting"]
    title = f"{group.name}, seeds {seeds_text(tuple(working))}"
    whole = attrs.evolve(request, config=_config(group))
    section = group.section
    plan = _SeedsPlan(states, group.root, alike=False, section=section)
    with placed(whole, section, len(working), jobs, group.root) as place:
        return _carry_out(plan, place, make_display, title, group.root)


def _resumed(
    group: Group,
    seed: int,
    chosen: dict[int, RunFolder | None] | dict[int, RunFolder],
    request: Request,
    steps: int,
    allow_drift: bool,
) -> SeedState:
    run = group.runs.get(seed)
    if run is not None and seed not in chosen:
        return _finished_before(run)
    if run is None:
        fresh = Request(config=_config(group))
        return SeedState(seed=seed, arguments=arguments_of(fresh, seed))
    arguments = resume_arguments(run.run_id, request, steps=steps, allow_drift=allow_drift)
    return SeedState(seed=seed, arguments=arguments, folder=run.path)


def _finished_before(run: RunFolder) -> SeedState:
    record = read_record(run)
    return SeedState(
        seed=run.about.seed,
        folder=run.path,
        status="finished",
        code=0,
        step=record.step,
        steps=run.about.steps,
        latest=dict(record.latest),
    )


def _config(group: Group) -> Path:
    """The options of its runs; of one whose folder was removed, those of a run."""
    if group.config.exists():
        return group.config
    return next(iter(group.runs.values())).path / group.config.name


def _carry_out(
    plan: _SeedsPlan,
    place: Placement,
    make_display: MakeDisplay,
    title: str,
    root: Path,
    name: str = "",
) -> SeedsOutcome:
    display = make_display(f"{title}: {place}")
    try:
        ended_by = carry_out_runs(plan, place.each.jobs, place.launch, display)
    finally:
        display.close()
    if name:
        _find_named(plan.states, name, root)
    for state in plan.states:
        plan.started(state)
    return concluded(plan.states, ended_by, plan.group)


class _SeedsPlan:
    """Seeds, one after another, of a group that the first to begin makes known."""

    def __init__(
        self,
        states: Sequence[SeedState],
        root: Path,
        *,
        alike: bool,
        section: ScaleSection | None,
    ) -> None:
        self.states = states
        self._section = section
        self.alike = alike
        self.group: Group | None = None
        self._root = root
        self._waiting = [one for one in states if one.status == "waiting"]

    def take(self) -> SeedState | None:
        """The next seed."""
        return self._waiting.pop(0) if self._waiting else None

    def started(self, state: SeedState) -> None:
        """Keep what the seeds have in common."""
        run = None if state.folder is None else RunFolder.read(state.folder)
        if run is not None and self.group is None:
            self.group = Group(self._root, run.about.group)
            self.group.ask([one.seed for one in self.states], run.path, self._section)

    def evaluated(self, state: SeedState, step: int, metrics: Mapping[str, float]) -> str:
        """Seeds go on to their end."""
        return ""

    def ended(self, state: SeedState) -> None:
        """What became of it is in its state."""


def concluded(states: Sequence[SeedState], ended_by: int, group: Group | None) -> SeedsOutcome:
    """Sum up, and record the summary, unless the seeds are to go on later."""
    if group is None:
        return SeedsOutcome(states=states, ended_by=ended_by, group=None)
    errors = {one.seed: one.error[0] for one in states if one.status == "failed"}
    summary = Summary(group=group.name, runs=tuple(one.record() for one in states), errors=errors)
    files: list[Path] = []
    run_id = ""
    # It takes seconds, and is written once they are resumed.
    if summary.finished and not ended_by:
        files = write_files(summary, group)
        run_id = record_summary(summary_of_seeds(summary), group, files)
    return SeedsOutcome(
        states=states, ended_by=ended_by, group=group, summary=summary, run_id=run_id
    )


def _find_named(states: Sequence[SeedState], name: str, root: Path) -> None:
    """The runs that had finished before: their processes had nothing to report."""
    named = {run.run_name: run.path for run in runs_in(root)}
    for state in states:
        if state.folder is None:
            state.folder = named.get(name_of_seed(name, state.seed))
