"""Carry out a group, or go on with one, and sum up what its runs come to."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint.trust import OF_RUN, admit
from rlplug.config.sections import ScaleSection
from rlplug.config.sources import Setting, settings_of
from rlplug.errors import FAILURES, RequestError, described
from rlplug.registry import Registry
from rlplug.review.record import BEST_RETURN
from rlplug.runs.groups.asked import Asked, search_of
from rlplug.runs.groups.carry_out import carry_out
from rlplug.runs.groups.display import GroupDisplay, MakeDisplay, SilentDisplay
from rlplug.runs.groups.group import CONFIG, Group
from rlplug.runs.groups.member import Member, all_refused
from rlplug.runs.groups.place import place_of, placed_by
from rlplug.runs.groups.plan import Plan
from rlplug.runs.groups.recording import record
from rlplug.runs.groups.result import GroupFailedError, GroupInterrupted, GroupResult, Row
from rlplug.runs.groups.seeds import check_seeds, seeds_text
from rlplug.runs.groups.study import Study
from rlplug.runs.prepare import prepare
from rlplug.runs.recorded import RecordedRun
from rlplug.runs.request import Request
from rlplug.runs.result import RunInterrupted, RunResult
from rlplug.tracking.location import RunFolder, runs_folder
from rlplug.tracking.reading import read_record
from rlplug.tracking.record import slug
from rlplug.tracking.status import name_lock

__all__ = ["Outcome", "result_of", "resume_group", "run_group", "run_in_order", "tune"]

EPISODES = 100
"""How many the best run plays once more."""

_LOG = logging.getLogger("rlplug")
_STATUSES = {"COMPLETE": "FINISHED", "PRUNED": "PRUNED", "FAIL": "FAILED", "RUNNING": "KILLED"}


@attrs.frozen(kw_only=True)
class Outcome:
    """How the runs of a group ended, and what they come to."""

    members: Sequence[Member]
    """The runs that were carried out now."""
    ended_by: int
    """The signal that ended them; 0: none."""
    result: GroupResult | None = None
    """None: no run has begun."""

    @property
    def is_complete(self) -> bool:
        """Whether all seeds have finished, or a study has a best trial."""
        if self.result is not None and self.result.kind == "trial":
            return self.result.best is not None
        return all(member.status == "finished" for member in self.members)

    @property
    def code(self) -> int:
        """The exit code of all together."""
        if self.ended_by:
            return 128 + self.ended_by
        if self.is_complete:
            return 0
        return 2 if all_refused(self.members) else 1


def run_group(
    asked: Asked, jobs: int, make_display: MakeDisplay, *, resume_existing: bool = False
) -> Outcome:
    """Carry out the runs of a group, each in a process of its own, some at a time.

    With `resume_existing`, a group of this name goes on, with seeds and trials that it lacks.
    """
    root, config = runs_folder(), asked.prepared.config.run
    if asked.search is not None and not asked.name:
        first = slug(f"{config.algorithm}-{config.env}-tune")
        names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
        free = next(name for name in names if not Group(root, name).exists)
        asked = attrs.evolve(asked, name=free)
    group = Group(root, asked.name) if asked.name else None
    with contextlib.nullcontext() if group is None else name_lock(asked.name):
        if group is not None and group.exists:
            _refuse_other(group, asked, resume_existing=resume_existing)
        resume: dict[str, Any] | None = None if asked.search is None else {}
        return _carry_out(
            asked.with_lasting_weights(),
            group,
            placed_by(asked.prepared),
            jobs,
            make_display,
            resume=resume,
            resume_existing=resume_existing,
        )


def _refuse_other(group: Group, asked: Asked, *, resume_existing: bool) -> None:
    """Refuse the name of another group, and a study with other options."""
    name, is_study = group.name, asked.search is not None
    if group.is_study != is_study or not resume_existing:
        kind = "study" if group.is_study else "group of seeds"
        hint = "--resume-existing, or " if group.is_study == is_study else ""
        raise RequestError(f"there is a {kind} {name}.", f"try: {hint}--name ANOTHER_NAME")
    before, now = group.facts.get("options", {}), asked.options
    for option in sorted({*before, *now} if is_study else ()):
        if before.get(option) != now.get(option):
            was, value = (options.get(option, "not set") for options in (before, now))
            raise RequestError(
                f"study {name} has other options: {option} was {was}, and is {value} now.",
                f"try: --name ANOTHER_NAME, or rlplug resume {name}",
            )


def resume_group(
    group: Group,
    jobs: int,
    make_display: MakeDisplay,
    *,
    settings: Sequence[Setting] = (),
    steps: int = 0,
    allow_drift: bool = False,
    trust: bool = False,
) -> Outcome:
    """Go on with all runs of a group that have not finished, and start those that never began.

    With more `steps` or other settings, go on with all of several seeds. Without `trust`, a group
    of somebody else is refused if its options name code to import.
    """
    name, facts, changed = group.name, group.facts, bool(steps or settings)
    is_own = admit(group.config.parent, OF_RUN, trust=trust)
    if group.is_study:
        if changed:
            message = f"{name} is a study, which goes on with the options that it has."
            raise RequestError(message, f"try: rlplug resume {name}")
        if not is_own:
            message = f"{group.folder} was not written by this user on this machine."
            raise RequestError(message, "try: --trust, once, if you trust who made it")
        kept = tuple(Setting(**setting) for setting in facts["settings"])
        request = Request(config=group.config, settings=kept)
        asked = search_of(request, facts["tune"], Registry.installed(), name)
        return run_group(asked, jobs, make_display, resume_existing=True)
    unfinished, begun = group.unfinished, {seed for _, seed in group.runs}
    new = [seed for seed in unfinished if seed not in begun]
    if changed and new:
        message = f"seeds {seeds_text(new)} of group {name} were never started."
        raise RequestError(message, f"try: first rlplug resume {name}")
    if not (unfinished or changed):
        message = f"all seeds of group {name} have finished: there is nothing to resume."
        raise RequestError(message, f"try: rlplug resume {name} --steps N, to train on")
    prepared = prepare(Request(config=group.config), Registry.installed())
    asked = Asked.of_seeds(prepared, group.seeds)
    how = {"steps": steps, "settings": settings, "allow_drift": allow_drift, "trust": trust}
    return _carry_out(asked, group, group.placed_by, jobs, make_display, resume=how)


def _carry_out(
    asked: Asked,
    group: Group | None,
    placed: ScaleSection | None,
    jobs: int,
    make_display: MakeDisplay,
    **how: Any,
) -> Outcome:
    root, search, study = runs_folder(), asked.search, None
    if search is not None and group is not None:
        study = Study(group.name, root, search.section, search.space)
    plan = Plan(asked, group, study, placed_by=placed, **how)
    count = asked.count if study else plan.waiting
    with place_of(asked.prepared, placed, count, jobs, root) as place:
        title = f"{_title(asked, plan, study)}: {place}"
        ended_by = carry_out(plan, place.jobs, place.launch, make_display(title))
    return _concluded(plan.members, ended_by, plan.group, asked, study)


def _title(asked: Asked, plan: Plan, study: Study | None) -> str:
    plugins = (asked.prepared.algorithm, *asked.prepared.addons)
    name = asked.name or " + ".join(plugin.name for plugin in plugins)
    if study is None or asked.search is None:
        waiting = [member.seed for member in plan.members if member.status == "waiting"]
        return f"{name}, seeds {seeds_text(waiting)}"
    section, done = asked.search.section, sum(trial.state.is_finished() for trial in study.trials)
    pruner = section.pruner if asked.evaluate_every else "none"
    trials = f"{section.trials} trials, {done} of them done" if done else f"{section.trials} trials"
    return f"{name}, {trials}, sampler {section.sampler}, pruner {pruner}"


def _concluded(
    members: Sequence[Member],
    ended_by: int,
    group: Group | None,
    asked: Asked | None = None,
    study: Study | None = None,
) -> Outcome:
    """Sum up, and record the summary, unless the runs are to go on later."""
    search = None if asked is None else asked.search
    if group is None or not group.runs:
        if study is not None:
            # What was asked for is wrong: nothing was run that a study could go on with.
            study.delete()
        return Outcome(members=members, ended_by=ended_by)
    if study is None or search is None:
        rows = _seed_rows(members, group)
        result = GroupResult(group=group.name, kind="seed", rows=rows, folder=group.folder)
    else:
        result = GroupResult(
            group=group.name,
            kind="trial",
            rows=_trial_rows(members, group, study),
            metric=search.section.metric,
            maximizes=search.section.maximizes,
            importances=study.importances(),
            folder=group.folder,
        )
    if not ended_by:
        # It takes seconds, and is done once runs that were interrupted have gone on.
        played = {} if asked is None else _played(result)
        result = record(attrs.evolve(result, played=played), group)
    return Outcome(members=members, ended_by=ended_by, result=result)


def _seed_rows(members: Sequence[Member], group: Group) -> tuple[Row, ...]:
    runs, rows = group.runs, []
    for member in members:
        run = runs.get((member.trial, member.seed))
        if member.folder is None and member.status == "finished" and run is not None:
            # It had finished before: its process had nothing to report.
            member.folder = run.path
        error = member.error[0] if member.status == "failed" else ""
        rows.append(Row.of_seed(member.record(), error))
    return tuple(rows)


def _trial_rows(members: Sequence[Member], group: Group, study: Study) -> tuple[Row, ...]:
    errors = {member.trial: member.error[0] for member in reversed(members) if member.error}
    runs = [(trial, RecordedRun.of(read_record(run))) for (trial, _), run in group.runs.items()]
    rows = []
    for trial in study.trials:
        number, status = trial.number, _STATUSES[trial.state.name]
        # Of one that was pruned, its last evaluation.
        reported = [value for _, value in sorted(trial.intermediate_values.items())]
        row = Row(
            number=number,
            status=status,
            runs=tuple(run for of, run in runs if of == number),
            score=next(iter(trial.values or reported[-1:]), None),
            options=study.values(trial),
            error=errors.get(number, "") if status == "FAILED" else "",
        )
        rows.append(row)
    return tuple(rows)


def _played(result: GroupResult) -> Mapping[str, float]:
    """What the best run does in more episodes: of several evaluations, the best one had luck."""
    best = None if result.best is None else result.best.run
    if best is None or best.folder is None or BEST_RETURN not in best.latest:
        return {}
    from rlplug.runs.evaluate import evaluate

    try:
        metrics = evaluate(best.folder, episodes=EPISODES).metrics
    except (*FAILURES, KeyboardInterrupt) as error:
        reason = described(error).splitlines()[0]
        _LOG.warning("rlplug: the best run cannot play %s more episodes: %s", EPISODES, reason)
        return {}
    return {name: metrics[f"eval/{name}"] for name in ("return_mean", "return_std", "episodes")}


# -- in Python -------------------------------------------------------------------------------------


def tune(
    algorithm: str = "",
    env: str = "",
    *,
    steps: int = 0,
    space: Mapping[str, Any] | None = None,
    trials: int = 0,
    seeds: Iterable[int] | int | None = None,
    jobs: int = 0,
    addons: Sequence[str] = (),
    config: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    study: str = "",
    show: bool = False,
) -> GroupResult:
    """Search for options: `tune("linucb", steps=2000, space={"alpha": {"low": 0.1, "high": 2}})`.

    `space` has for each option its range, `low` and `high`, or its `choices`; `options` have the
    keys of `--set`, `tune.metric` and the like among them. A `study` of this name goes on.
    """
    section: dict[str, Any] = {"algorithm": algorithm, "env": env, "steps": steps}
    section["addons"] = list(addons)
    request = Request(
        config=None if config is None else Path(config),
        flags={"run": {name: value for name, value in section.items() if value}},
        settings=settings_of(options),
        flags_origin="arguments of tune",
    )
    search: dict[str, Any] = {"space": dict(space or {})}
    search |= {"trials": trials} if trials else {}
    if seeds is not None:
        chosen = check_seeds(range(seeds) if isinstance(seeds, int) else seeds)
        search["seeds"] = seeds_text(chosen)
    asked = search_of(request, search, Registry.installed(), study)
    display = GroupDisplay if show else SilentDisplay
    return result_of(run_group(asked, jobs, display, resume_existing=bool(study)))


def run_in_order(seeds: Sequence[int], run: Callable[[int], RunResult], what: str) -> Outcome:
    """Run the seeds in this process; `what` keeps them from having processes of their own.

    A request that is wrong is raised as for one seed.
    """
    _LOG.warning("rlplug: the seeds run one after another in this process, because of %s.", what)
    members = [Member(seed=seed) for seed in seeds]
    ended_by, errors = 0, []
    for member in members:
        try:
            member.folder, member.status = run(member.seed).folder, "finished"
        except RunInterrupted as interrupted:
            member.folder, member.status = interrupted.result.folder, "interrupted"
            ended_by = interrupted.number
            break
        except FAILURES as error:
            begun = any(other.folder for other in members)
            if isinstance(error, RequestError) and not begun:
                raise
            errors.append(error)
            member.status, member.error = "failed", described(error).splitlines()
    folders = [RunFolder.read(member.folder) for member in members if member.folder]
    first = next((folder for folder in folders if folder), None)
    if first is None and errors:
        raise errors[0]
    group = None if first is None else Group(runs_folder(), first.about.group)
    if group is not None and first is not None:
        group.keep(seeds=sorted({*group.seeds, *seeds}))
        group.keep_options((first.path / CONFIG).read_bytes())
    return _concluded(members, ended_by, group)


def result_of(outcome: Outcome) -> GroupResult:
    """The result, or the exception for seeds that have not finished."""
    result = outcome.result or GroupResult(group="", kind="seed", rows=())
    if outcome.ended_by:
        raise GroupInterrupted(result, outcome.ended_by)
    if outcome.result is None:
        first, *hints = next(member.error for member in outcome.members if member.error)
        where = "runs in processes of their own know installed plugins and environments, not what "
        hints.append(f"{where}this program registers itself")
        raise RequestError(first, *(line.strip() for line in hints))
    errors = [f"seed {row.number}: {row.error}" for row in result.rows if row.error]
    if errors and result.kind == "seed":
        raise GroupFailedError(result, errors)
    return result
