"""Carry out a study, or the rest of one: `rlplug.tune(...)`, and what it gives back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import tomli_w

from rlplug.checkpoint.trust import OF_RUN, admit, sign_options
from rlplug.config.secrets import masked
from rlplug.config.sources import Setting, settings_of
from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.registry import Registry
from rlplug.runs.groups.carry_out import MakeDisplay, carry_out
from rlplug.runs.groups.display import GroupDisplay, SilentDisplay
from rlplug.runs.groups.group import CONFIG, STUDY, Group, Outcome
from rlplug.runs.groups.member import Member
from rlplug.runs.groups.place import place_of, placed_by
from rlplug.runs.groups.results import GroupInterrupted, refused
from rlplug.runs.groups.seed_numbers import check_seeds
from rlplug.runs.groups.study import Study
from rlplug.runs.groups.study_summary import StudySummary, TrialRow
from rlplug.runs.groups.trials import TrialsPlan, trial_runs
from rlplug.runs.groups.tune_request import TuneRequest
from rlplug.runs.recorded import RecordedRun
from rlplug.runs.request import Request, layers_of
from rlplug.tracking.location import read_object, runs_folder
from rlplug.tracking.reading import read_record
from rlplug.tracking.record import slug
from rlplug.tracking.status import name_lock

__all__ = ["StudyResult", "TrialResult", "carry_out_study", "kept_study", "tune"]


@attrs.frozen(kw_only=True)
class TrialResult:
    """One trial: the options that it was run with, and its score."""

    number: int
    status: str
    """`finished`, `pruned` or `failed`."""
    score: float | None
    options: Mapping[str, Any]
    runs: tuple[RecordedRun, ...]
    """The run of each seed."""

    @classmethod
    def of(cls, row: TrialRow) -> TrialResult:
        """Of a row of the summary."""
        return cls(
            number=row.proposal.number,
            status=row.status,
            score=row.proposal.score,
            options=dict(row.proposal.values),
            runs=tuple(RecordedRun.of(run) for run in row.runs),
        )


class StudyResult:
    """What a study came to: `best.options`, `trials`, `importances`."""

    def __init__(self, summary: StudySummary, folder: Path, run_id: str) -> None:
        self.study = summary.study
        """Its name."""
        self.folder = folder
        """The folder with its files."""
        self.run_id = run_id
        """The summary run in MLflow; empty: there is none."""
        self.trials = tuple(map(TrialResult.of, summary.trials))
        """All trials, by number."""
        self.best = None if summary.best is None else TrialResult.of(summary.best)
        """The best of those that have finished; None without one."""
        self.importances = dict(summary.importances)
        """Option → its share of what makes trials good."""
        self._summary = summary

    def _repr_markdown_(self) -> str:
        return self._summary.markdown()

    def __repr__(self) -> str:
        return "\n".join([f"StudyResult of {self.study}:", *self._summary.lines(100)])


def tune(
    algorithm: str = "",
    env: str = "",
    *,
    space: Mapping[str, Any] | None = None,
    trials: int = 0,
    steps: int = 0,
    seeds: Iterable[int] | int | None = None,
    jobs: int = 0,
    study: str = "",
    config: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    show: bool = False,
) -> StudyResult:
    """Search for options: `tune("ppo", space={"learning_rate": {"low": 1e-5, "high": 1e-2}})`.

    `options` have the keys of `--set`, those of the study among them: `tune.pruner`. Trials have
    processes of their own, which know installed plugins and environments. With the name of a
    `study` that exists, it goes on; `show=True` prints progress.
    """
    run = {"algorithm": algorithm, "env": env, "steps": steps}
    request = Request(
        config=None if config is None else Path(config),
        flags={"run": {name: value for name, value in run.items() if value}},
        settings=settings_of(options),
        flags_origin="arguments of tune",
    )
    section: dict[str, Any] = {"space": dict(space or {})}
    section |= {"trials": trials} if trials else {}
    if seeds is not None:
        chosen = check_seeds(range(seeds) if isinstance(seeds, int) else seeds)
        section["seeds"] = ",".join(f"{seed}-{seed}" for seed in chosen)
    asked = TuneRequest.of(request, section, Registry.installed())
    outcome = carry_out_study(
        asked, jobs, GroupDisplay if show else SilentDisplay, study, resume_existing=bool(study)
    )
    if outcome.summary is None or outcome.group is None:
        raise refused(outcome.members)
    result = StudyResult(outcome.summary, outcome.group.folder, outcome.run_id)
    if outcome.ended_by:
        raise GroupInterrupted(result, result.study, outcome.ended_by)
    return result


def carry_out_study(
    asked: TuneRequest,
    jobs: int,
    make_display: MakeDisplay,
    name: str = "",
    *,
    resume_existing: bool = True,
) -> Outcome[StudySummary]:
    """Carry out the trials of a study that it does not have yet.

    Without `resume_existing`, the study is new.
    """
    root, config = runs_folder(), asked.prepared.config
    group = Group(root, name or _free_name(root, slug(f"{config.run.algorithm}-{config.run.env}")))
    count = asked.section.trials * len(asked.seeds)
    placed = place_of(asked.prepared, placed_by(asked.prepared), count, jobs, root)
    with name_lock(group.name), placed as place:
        is_new = not group.folder.exists()
        if not is_new:
            _refuse_other(group, asked, resume_existing=resume_existing)
        study = Study(group.name, root, asked.section, asked.ranges)
        _keep(group, asked)
        plan = TrialsPlan(study, asked, group)
        done = sum(trial.status != "RUNNING" for trial in study.trials)
        before = f"{done} of them done, " if done else ""
        pruner = asked.section.pruner if asked.evaluate_every else "none"
        how = f"sampler {asked.section.sampler}, pruner {pruner}"
        title = f"{group.name}: {asked.section.trials} trials, {before}{place}; {how}"
        ended_by = carry_out(plan, place.jobs, place.launch, make_display(title))
    if is_new and not ended_by and not trial_runs(group):
        # What was asked for is wrong: nothing was run that a study could go on with.
        study.delete()
        shutil.rmtree(group.folder, ignore_errors=True)
        return Outcome(members=plan.members, ended_by=0, group=None)
    summary = _summary(asked, study, plan.members, group)
    return Outcome(
        members=plan.members,
        ended_by=ended_by,
        group=group,
        summary=summary,
        is_complete=summary.best is not None,
        # It takes seconds, and is written once the study has gone on.
        run_id="" if ended_by else summary.record().write(group),
    )


def _free_name(root: Path, run: str) -> str:
    """A name that no other study has."""
    numbers = ("", *(f"-{number}" for number in range(2, 10_000)))
    names = (f"{run}-tune{number}" for number in numbers)
    return next(name for name in names if not Group(root, name).folder.exists())


def kept_study(root: Path, name: str, registry: Registry, *, trust: bool = False) -> TuneRequest:
    """The study of this name, as it was asked for; that of somebody else needs `trust`."""
    group = Group(root, name)
    kept = read_object(group.folder / STUDY)
    if not kept:
        raise RequestError(f"{group.folder / STUDY} cannot be read.", "try: a new study")
    if not admit(group.config.parent, OF_RUN, trust=trust):
        message = f"{group.folder} was not written by this user on this machine."
        raise RequestError(message, "try: --trust, once, if you trust who made it")
    settings = tuple(Setting(one["key"], one["value"]) for one in kept["settings"])
    request = Request(config=group.config, settings=settings)
    return TuneRequest.of(request, kept["tune"], registry)


def _keep(group: Group, asked: TuneRequest) -> None:
    """Keep what a study needs to go on: the options of its runs, and how they are searched."""
    group.folder.mkdir(parents=True, exist_ok=True)
    config = masked(dict(layers_of(attrs.evolve(asked.run, settings=())).values))
    write_durably(group.folder / CONFIG, tomli_w.dumps(config).encode())
    settings = asked.run.settings
    content = {
        "settings": [{"key": one.key, "value": masked(one.value, one.key)} for one in settings],
        "tune": dict(asked.given),
        "options": asked.options,
    }
    write_durably(group.folder / STUDY, (json.dumps(content, indent=2) + "\n").encode())
    sign_options(group.folder)


def _refuse_other(group: Group, asked: TuneRequest, *, resume_existing: bool) -> None:
    """Refuse the name of a group, and of a study with other options."""
    if not group.is_study or not resume_existing:
        kind = "study" if group.is_study else "group of seeds"
        hint = "--resume-existing, or " if group.is_study else ""
        raise RequestError(f"there is a {kind} {group.name}.", f"try: {hint}--name ANOTHER_NAME")
    before, now = read_object(group.folder / STUDY).get("options", {}), asked.options
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            was, value = (options.get(name, "not set") for options in (before, now))
            raise RequestError(
                f"study {group.name} has other options: {name} was {was}, and is {value} now.",
                f"try: --name ANOTHER_NAME, or rlplug resume {group.name}",
            )


def _summary(
    asked: TuneRequest, study: Study, members: Sequence[Member], group: Group
) -> StudySummary:
    errors = {one.order["trial"]["number"]: one.error[0] for one in reversed(members) if one.error}
    runs = trial_runs(group)
    rows = [
        TrialRow(
            proposal=trial,
            runs=tuple(read_record(run) for _, run in sorted(runs.get(trial.number, {}).items())),
            error=errors.get(trial.number, "") if trial.status == "FAIL" else "",
        )
        for trial in study.trials
    ]
    return StudySummary(
        study=group.name,
        metric=asked.section.metric,
        maximizes=study.maximizes,
        trials=tuple(rows),
        importances=study.importances(),
        options=asked.options,
    )
