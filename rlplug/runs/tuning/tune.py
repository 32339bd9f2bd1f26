"""Carry out a study, or the rest of one, and sum up what it comes to."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import tomli_w

from rlplug.config.secrets import masked
from rlplug.config.sources import Setting
from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.registry import Registry
from rlplug.runs.request import Request, layers_of
from rlplug.runs.seeds.carry_out import carry_out_runs
from rlplug.runs.seeds.files import write_each
from rlplug.runs.seeds.group import CONFIG, STUDY, Group
from rlplug.runs.seeds.placement import Placement, placed, spread_by
from rlplug.runs.seeds.several import MakeDisplay
from rlplug.runs.seeds.state import SeedState
from rlplug.runs.seeds.summary_run import SummaryRun, record_summary
from rlplug.runs.tuning.asked import TuneRequest
from rlplug.runs.tuning.figures import draw_history, draw_importance
from rlplug.runs.tuning.plan import TrialsPlan, trial_runs
from rlplug.runs.tuning.study import Study
from rlplug.runs.tuning.summary import StudySummary, TrialRow, best_file
from rlplug.tracking.location import runs_folder
from rlplug.tracking.lock import name_lock
from rlplug.tracking.recorded import read_record

__all__ = ["TuneOutcome", "kept_study", "tune"]


@attrs.frozen(kw_only=True)
class TuneOutcome:
    """How a study ended, and what it comes to."""

    states: Sequence[SeedState]
    """Of the runs that were carried out now."""
    ended_by: int
    """The signal that ended them; 0: none."""
    group: Group
    """Its folder."""
    summary: StudySummary | None
    """None: nothing was run."""
    run_id: str = ""
    """The summary run in MLflow; empty: there is none."""

    @property
    def code(self) -> int:
        """The exit code: 0 if there is a best trial."""
        if self.ended_by:
            return 128 + self.ended_by
        if self.summary is None:
            return 2
        return 0 if self.summary.best is not None else 1


def tune(asked: TuneRequest, jobs: int, make_display: MakeDisplay, name: str = "") -> TuneOutcome:
    """Carry out the trials of a study that it does not have yet."""
    root = runs_folder()
    group = Group(root, name or asked.default_name)
    count = asked.section.trials * len(asked.seeds)
    with name_lock(group.name), placed(asked.run, spread_by(asked.run), count, jobs, root) as place:
        _refuse_others(group, asked)
        is_new = not (group.folder / STUDY).exists()
        study = Study(group.name, root, asked.section, asked.ranges)
        _keep(group, asked)
        plan = TrialsPlan(study, asked, group.name, root)
        display = make_display(_title(group, asked, study, place))
        try:
            ended_by = carry_out_runs(plan, place.each.jobs, place.launch, display)
        finally:
            display.close()
    if is_new and not ended_by and not trial_runs(root, group.name):
        # What was asked for is wrong: nothing was run that a study could go on with.
        study.delete()
        shutil.rmtree(group.folder, ignore_errors=True)
        return TuneOutcome(states=plan.states, ended_by=0, group=group, summary=None)
    return _concluded(asked, study, plan.states, ended_by, group)


def kept_study(root: Path, name: str, registry: Registry) -> TuneRequest:
    """The study of this name, as it was asked for."""
    group = Group(root, name)
    kept = _read(group)
    if not kept:
        raise RequestError(
            f"{group.folder / STUDY} cannot be read.", "try: the command that started the study"
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
    content = {
        "settings": [{"key": one.key, "value": masked(one.value)} for one in asked.run.settings],
        "tune": dict(asked.given),
        "options": dict(asked.options),
    }
    write_durably(group.folder / STUDY, (json.dumps(content, indent=2) + "\n").encode())


def _refuse_others(group: Group, asked: TuneRequest) -> None:
    """Refuse a name that another study has."""
    before = _read(group).get("options", {})
    if not before:
        if group.folder.exists():
            raise RequestError(f"{group.name} is a group of seeds.", "try: --study ANOTHER_NAME")
        return
    names = sorted({*before, *asked.options})
    other = [name for name in names if before.get(name) != asked.options.get(name)]
    if other:
        was, now = before.get(other[0], "not set"), asked.options.get(other[0], "not set")
        more = f", and {len(other) - 1} more" if other[1:] else ""
        raise RequestError(
            f"study {group.name} was started with other options: {other[0]} was {was}, and is "
            f"{now} now{more}.",
            "try: --study ANOTHER_NAME, or the options that it was started with",
        )


def _title(group: Group, asked: TuneRequest, study: Study, place: Placement) -> str:
    done = sum(one.status != "RUNNING" for one in study.trials)
    before = f"{done} of them done, " if done else ""
    section = asked.section
    pruner = section.pruner if asked.evaluate_every and section.pruner != "none" else "none"
    return (
        f"{group.name}: {section.trials} trials, {before}{place}; sampler {section.sampler}, "
        f"pruner {pruner}"
    )


def _concluded(
    asked: TuneRequest, study: Study, states: Sequence[SeedState], ended_by: int, group: Group
) -> TuneOutcome:
    errors = {one.part["trial"]["number"]: one.error[0] for one in reversed(states) if one.error}
    runs = trial_runs(group.root, group.name)
    rows = [
        TrialRow(
            proposal=one,
            runs=tuple(read_record(run) for _, run in sorted(runs.get(one.number, {}).items())),
            error=errors.get(one.number, "") if one.status == "FAIL" else "",
        )
        for one in study.trials
    ]
    summary = StudySummary(
        study=group.name,
        metric=asked.section.metric,
        maximizes=study.maximizes,
        trials=tuple(rows),
        importances=study.importances(),
    )
    run_id = ""
    # It takes seconds, and is written once the study has gone on.
    if not ended_by:
        files = _write_files(summary, group)
        run_id = record_summary(_summary_run(summary, asked), group, files)
    return TuneOutcome(
        states=states, ended_by=ended_by, group=group, summary=summary, run_id=run_id
    )


def _write_files(summary: StudySummary, group: Group) -> list[Path]:
    folder = group.folder
    content = json.dumps(summary.as_json(), indent=2) + "\n"
    written = write_each(
        folder,
        {
            "summary.json": partial(write_durably, folder / "summary.json", content.encode()),
            "summary.md": partial(
                write_durably, folder / "summary.md", summary.markdown().encode()
            ),
            "importance.png": partial(draw_importance, summary, folder / "importance.png"),
            "history.png": partial(draw_history, summary, folder / "history.png"),
            "best.toml": partial(_write_best, summary, best_file(folder)),
        },
    )
    return [*written, *(folder / name for name in (CONFIG, STUDY) if (folder / name).exists())]


def _write_best(summary: StudySummary, file: Path) -> None:
    run = summary.best_run
    if run is not None and run.folder is not None:
        write_durably(file, (run.folder / CONFIG).read_bytes())


def _summary_run(summary: StudySummary, asked: TuneRequest) -> SummaryRun:
    best = summary.best
    shown = "" if best is None else " ".join(_pairs(best.proposal.values))
    return SummaryRun(
        runs=summary.runs,
        metrics=summary.metrics,
        markdown=summary.markdown(),
        params={name: value for name, value in asked.options.items() if name.startswith("tune.")},
        tags={"rlplug.options": shown, "rlplug.trials": str(len(summary.trials))},
        series={"trials/score": summary.scores, "trials/best_so_far": summary.best_so_far},
    )


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name}={value}"
