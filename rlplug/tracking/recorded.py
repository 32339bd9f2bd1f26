"""The runs of a runs folder, read without asking MLflow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs

from rlplug.review.record import BEST_STEP, HEADLINES, RunAbout, RunRecord, best_evaluation
from rlplug.tracking.journal import Report, read_journal
from rlplug.tracking.location import RunFolder, runs_in
from rlplug.tracking.lock import is_stale, status_now
from rlplug.tracking.status import RUNNING, RunStatus

TAIL_BYTES = 8_000
"""How much of the end of a journal is read for the last values."""

_SHOWN = (BEST_STEP, *HEADLINES)
"""The metrics that are looked for in all of a journal; others are seldom missing at its end."""


def recorded_runs(root: Path) -> list[RunRecord]:
    """The runs of a runs folder, newest first, and after them those whose `run.json` is damaged."""
    runs = runs_in(root)
    known = {run.path for run in runs}
    others = (file.parent for file in sorted(root.glob("work/*/run.json")))
    damaged = [_unreadable(path, "run.json is damaged") for path in others if path not in known]
    return [*map(read_record, runs), *damaged]


def read_record(run: RunFolder) -> RunRecord:
    """What the folder of a run says of it; of metrics, those at the end of its journal."""
    journal = run.path / "metrics.jsonl"
    try:
        step, latest = _latest(journal)
    except FileNotFoundError:
        step, latest = 0, {}
    except OSError as error:
        reason = f"{journal.name}: {error.strerror or error}"
        return attrs.evolve(_unreadable(run.path, reason), name=run.run_name, about=run.about)
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
    step, latest = 0, dict[str, float]()
    start = max(os.path.getsize(journal) - TAIL_BYTES, 0)
    for report in read_journal(journal, start):
        step = max(step, report.step)
        latest.update(report.metrics)
    missing = [name for name in _SHOWN if name not in latest]
    content = journal.read_bytes() if start and missing else b""
    for name in missing:
        last = _last_report(content, name)
        if last is not None:
            step = max(step, last.step)
            latest = {**last.metrics, **latest}
    return step, latest


def _last_report(content: bytes, name: str) -> Report | None:
    """The last report in a journal that has this metric."""
    key = f"{json.dumps(name)}:".encode()
    end = len(content)
    while (place := content.rfind(key, 0, end)) >= 0:
        end = content.rfind(b"\n", 0, place) + 1
        stop = content.find(b"\n", place)
        report = Report.parse(content[end : stop if stop >= 0 else len(content)])
        if report is not None and name in report.metrics:
            return report
    return None
