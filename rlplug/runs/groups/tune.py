"""Carry out a study, or the rest of one: `rlplug.tune(...)`, and what it gives back."""

from __future__ import annotations

import contextlib
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
from rlplug.runs.groups.place import Place, place_of, placed_by
from rlplug.runs.groups.seed_numbers import check_seeds
from rlplug.runs.groups.study import Study
from rlplug.runs.groups.study_summary import StudySummary, TrialRow
from rlplug.runs.groups.trials import TrialsPlan, trial_runs
from rlplug.runs.groups.tune_request import TuneRequest
from rlplug.runs.recorded import RecordedRun
from rlplug.runs.request import Request, layers_of
from rlplug.tracking.location import runs_folder
from rlplug.tracking.reading import read_record
from rlplug.tracking.status import name_lock

__all__ = [
    "StudyInterrupted",
    "StudyOutcome",
    "StudyResult",
    "TrialResult",
    "carry_out_study",
    "kept_study",
    "tune",
]

StudyOutcome = Outcome[StudySummary]


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


class StudyInterrupted(KeyboardInterrupt):
    """A study was ended by a signal; the same call goes on with it."""

    def __init__(self, result: StudyResult, number: int) -> None:
        super().__init__(f"interrupted; to go on: rlplug resume {result.study}")
        self.result = result
        self.number = number
        """The signal."""
        self.exit_code = 128 + number


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
    processes of their own, which know installed plugins and environments. The same call goes on
    with the study; `show=True` prints progress.
    """
    run = {"algorithm": algorithm, "env": env, "steps": steps}
    flags: dict[str, Any] = {"run": {name: value for name, value in run.items() if value}}
    request = Request(
        config=None if config is None else Path(config),
        flags=flags,
        settings=settings_of(options),
        flags_origin="arguments of tune",
    )
    section: dict[str, Any] = {"space": dict(space or {})}
    section |= {"trials": trials} if trials else {}
    if seeds is not None:
        chosen = check_seeds(range(seeds) if isinstance(seeds, int) else seeds)
        section["seeds"] = ",".join(map(str, chosen)) if chosen[1:] else f"{chosen[0]}-{chosen[0]}"
    asked = TuneRequest.of(request, section, Registry.installed())
    outcome = carry_out_study(asked, jobs, GroupDisplay if show else SilentDisplay, study)
    if outcome.summary is None or outcome.group is None:
        failed = next(member for member in outcome.members if member.error)
        raise RequestError(failed.error[0], *(line.strip() for line in failed.error[1:]))
    result = StudyResult(outcome.summary, outcome.group.folder, outcome.run_id)
    if outcome.ended_by:
        raise StudyInterrupted(result, outcome.ended_by)
    return result


def carry_out_study(
    asked: TuneRequest, jobs: int, make_display: MakeDisplay, name: str = ""
) -> StudyOutcome:
    """Carry out the trials of a study that it does not have yet."""
    root = runs_folder()
    group = Group(root, name or asked.default_name)
    count = asked.section.trials * len(asked.seeds)
    placed = place_of(asked.prepared, placed_by(asked.prepared), count, jobs, root)
    with name_lock(group.name), placed as place:
        _refuse_others(group, asked)
        is_new = not (group.folder / STUDY).exists()
        study = Study(group.name, root, asked.section, asked.ranges)
        _keep(group, asked)
        plan = TrialsPlan(study, asked, group)
        display = make_display(_title(group, asked, study, place))
        ended_by = carry_out(plan, place.jobs, place.launch, display)
    if is_new and not ended_by and not trial_runs(group):
        # What was asked for is wrong: nothing was run that a study could go on with.
        study.delete()
        shutil.rmtree(group.folder, ignore_errors=True)
        return Outcome(members=plan.members, ended_by=0, group=None)
    return _concluded(asked, study, plan.members, ended_by, group)


def kept_study(root: Path, name: str, registry: Registry, *, trust: bool = False) -> TuneRequest:
    """The study of this name, as it was asked for; that of somebody else needs `trust`."""
    group = Group(root, name)
    kept = _read(group)
    if not kept:
        raise RequestError(
            f"{group.folder / STUDY} cannot be read.", "try: the command that started the study"
        )
    if not admit(group.config.parent, OF_RUN, trust=trust):
        raise RequestError(
            f"{group.folder} was not written by this user on this machine.",
            "try: --trust, once, if you trust who made it",
        )
    settings = tuple(Setting(one["key"], one["value"]) for one in kept["settings"])
    request = Request(config=group.config, settings=settings)
    return TuneRequest.of(request, kept["tune"], registry)


def _read(group: Group) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found: Mapping[str, Any] = json.loads((group.folder / STUDY).read_text())
        return found
    return {}


def _keep(group: Group, asked: TuneRequest) -> None:
    """Keep what a study needs to go on: the options of its runs, and how they are searched."""
    group.folder.mkdir(parents=True, exist_ok=True)
    config = masked(dict(layers_of(attrs.evolve(asked.run, settings=())).values))
    write_durably(group.folder / CONFIG, tomli_w.dumps(config).encode())
    sign_options(group.folder)
    settings = asked.run.settings
    content = {
        "settings": [{"key": one.key, "value": masked(one.value, one.key)} for one in settings],
        "tune": dict(asked.given),
        "options": asked.options,
    }
    write_durably(group.folder / STUDY, (json.dumps(content, indent=2) + "\n").encode())


def _refuse_others(group: Group, asked: TuneRequest) -> None:
    """Refuse a name that another study has."""
    before, now = _read(group).get("options", {}), asked.options
    if not before:
        if group.folder.exists():
            raise RequestError(f"{group.name} is a group of seeds.", "try: --study ANOTHER_NAME")
        return
    other = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if other:
        was, value = (options.get(other[0], "not set") for options in (before, now))
        more = f", and {len(other) - 1} more" if other[1:] else ""
        raise RequestError(
            f"study {group.name} was started with other options: {other[0]} was {was}, and is "
            f"{value} now{more}.",
            "try: --study ANOTHER_NAME, or the options that it was started with",
        )


def _title(group: Group, asked: TuneRequest, study: Study, place: Place) -> str:
    done = sum(trial.status != "RUNNING" for trial in study.trials)
    before = f"{done} of them done, " if done else ""
    section = asked.section
    pruner = section.pruner if asked.evaluate_every else "none"
    return (
        f"{group.name}: {section.trials} trials, {before}{place}; sampler {section.sampler}, "
        f"pruner {pruner}"
    )


def _concluded(
    asked: TuneRequest, study: Study, members: Sequence[Member], ended_by: int, group: Group
) -> StudyOutcome:
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
    summary = StudySummary(
        study=group.name,
        metric=asked.section.metric,
        maximizes=study.maximizes,
        trials=tuple(rows),
        importances=study.importances(),
        options=asked.options,
    )
    return Outcome(
        members=members,
        ended_by=ended_by,
        group=group,
        summary=summary,
        is_complete=summary.best is not None,
        # It takes seconds, and is written once the study has gone on.
        run_id="" if ended_by else summary.record().write(group),
    )
