"""Runs as they were recorded: in a runs folder, without asking MLflow, and in MLflow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.errors import RequestError
from rlplug.review.record import BEST_STEP, HEADLINES, RunAbout, RunRecord, best_evaluation
from rlplug.tracking.journal import JOURNAL, Report
from rlplug.tracking.location import (
    RUN,
    RunFolder,
    is_missing,
    runs_in,
    sqlite_file,
    tracking_uri,
    without_secrets,
)
from rlplug.tracking.record import ABOUT_TAG, LOCAL_ID
from rlplug.tracking.status import RUNNING, STALE_SECONDS, RunStatus, is_stale, now, status_now
from rlplug.tracking.store import PENDING_TAG, asking

if TYPE_CHECKING:
    from mlflow.entities import Run

TAIL_BYTES = 8_000
"""How much of the end of a journal is read for the last values."""
_SHOWN = (BEST_STEP, *HEADLINES)
"""The metrics that are looked for in all of a journal; others are seldom missing at its end."""
_PAGE = 1000


def known_runs(root: Path, warn: Callable[[str], None]) -> list[RunRecord]:
    """The runs of a runs folder, and those of a tracking server, newest first.

    Warns if the server does not answer.
    """
    return with_tracked(recorded_runs(root), root, "", warn)


def with_tracked(
    here: Sequence[RunRecord], root: Path, condition: str, warn: Callable[[str], None]
) -> list[RunRecord]:
    """Runs of a folder, and those of MLflow that meet a condition and are not in it, newest first.

    A database in a file has no others, and is opened only if the folder has none.
    """
    uri = tracking_uri("", root)
    if sqlite_file(uri) is not None and (here or not condition):
        return [*here]
    try:
        tracked = tracked_runs(uri, condition)
    except RequestError as error:
        if not here:
            raise
        warn(f"{error.message}\n  These are the runs in {root} alone.")
        return [*here]
    known = {id_ for run in here for id_ in (run.run_id, run.tracked_id)}
    both = [*here, *(run for run in tracked if run.run_id not in known)]
    return sorted(both, key=lambda run: run.started, reverse=True)


def recorded_runs(root: Path) -> list[RunRecord]:
    """The runs of a runs folder, newest first, and after them those whose `run.json` is damaged."""
    runs = runs_in(root)
    known = {run.path for run in runs}
    others = (file.parent for file in sorted(root.glob(f"work/*/{RUN}")))
    damaged = [_unreadable(path, f"{RUN} is damaged") for path in others if path not in known]
    return [*map(read_record, runs), *damaged]


def read_record(run: RunFolder) -> RunRecord:
    """What the folder of a run says of it; of metrics, those at the end of its journal."""
    try:
        step, latest = _latest(run.path / JOURNAL)
    except FileNotFoundError:
        step, latest = 0, {}
    except OSError as error:
        damaged = _unreadable(run.path, f"{JOURNAL}: {error.strerror or error}")
        return attrs.evolve(damaged, name=run.run_name, about=run.about)
    status = status_now(run.path) or RunStatus(status="unknown")
    stale = status.status == RUNNING and is_stale(run.path)
    return RunRecord(
        run_id=run.run_id,
        name=run.run_name,
        about=run.about,
        status="stale" if stale else status.status,
        reason=status.stop_reason,
        started=run.started,
        ended=status.ended,
        step=max(step, status.step),
        best=best_evaluation(latest),
        latest=latest,
        pending=status.pending and run.is_tracked,
        folder=run.path,
        uri=run.uri,
        experiment_id=run.experiment_id,
        tracked_id=run.tracked_id,
    )


def tracked_runs(uri: str, condition: str = "", *, most: int = 5000) -> list[RunRecord]:
    """The runs at a tracking URI that meet a condition of MLflow's, newest first."""
    if is_missing(uri):
        return []
    wanted = " and ".join(filter(None, ("tags.`rlplug.kind` = 'run'", condition)))
    failed = f"MLflow at {without_secrets(uri)} cannot be asked for runs"
    hint = "try: again later, or unset MLFLOW_TRACKING_URI to see the runs in the runs folder"
    with asking(uri, failed, hint) as client:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs: list[Run] = []
        token: str | None = ""
        while experiments and token is not None and len(runs) < most:
            page = client.search_runs(
                experiments, wanted, max_results=min(_PAGE, most), page_token=token or None
            )
            runs += page
            token = page.token or None
        return [_tracked(run, uri) for run in runs]


def _tracked(run: Run, uri: str) -> RunRecord:
    info, data = run.info, run.data
    metrics, tags = data.to_proto().metrics, data.tags
    steps = [metric.step for metric in metrics]
    heard = max([info.start_time, *(metric.timestamp for metric in metrics)])
    is_stale = info.status == RUNNING and time.time() - heard / 1000 > STALE_SECONDS
    folder = Path(tags.get("rlplug.root", ""), "work", tags.get(LOCAL_ID, info.run_id))
    try:
        about = RunAbout.read(json.loads(tags.get(ABOUT_TAG, "")))
    except ValueError:
        about = RunAbout()
    stopped = tags.get("rlplug.stopped_at_step", "")
    return RunRecord(
        run_id=info.run_id,
        name=info.run_name or info.run_id,
        about=about,
        status="stale" if is_stale else info.status,
        reason=tags.get("rlplug.stop_reason", ""),
        started=_moment(info.start_time),
        ended=_moment(info.end_time),
        step=max([*steps, int(stopped) if stopped.isdecimal() else 0]),
        best=best_evaluation(data.metrics),
        latest=dict(data.metrics),
        pending=PENDING_TAG in tags,
        # If it is on this machine.
        folder=folder if (folder / RUN).is_file() else None,
        uri=without_secrets(uri),
        experiment_id=info.experiment_id,
    )


def _moment(since_epoch: Any) -> str:
    return now(since_epoch / 1000) if since_epoch else ""


def _unreadable(path: Path, reason: str) -> RunRecord:
    return RunRecord(
        run_id=path.name,
        name="",
        about=RunAbout(),
        status="unreadable",
        reason=reason,
        folder=path,
    )


def _latest(journal: Path) -> tuple[int, dict[str, float]]:
    """The highest step and the last values in a journal."""
    content = journal.read_bytes()
    tail = content[content.rfind(b"\n", 0, max(len(content) - TAIL_BYTES, 0)) + 1 :]
    reports = [report for line in tail.splitlines() if (report := Report.parse(line))]
    latest = {name: value for report in reports for name, value in report.metrics.items()}
    for name in _SHOWN:
        last = None if name in latest else _last_report(content, name)
        if last is not None:
            reports.append(last)
            latest = {**last.metrics, **latest}
    return max((report.step for report in reports), default=0), latest


def _last_report(content: bytes, name: str) -> Report | None:
    """The last report in a journal that has this metric."""
    place = len(content)
    while (place := content.rfind(f"{json.dumps(name)}:".encode(), 0, place)) >= 0:
        start, stop = content.rfind(b"\n", 0, place) + 1, content.find(b"\n", place)
        report = Report.parse(content[start:stop])
        if report is not None and name in report.metrics:
            return report
    return None
