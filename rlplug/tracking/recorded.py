"""The runs of a runs folder, read without asking MLflow."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rlplug.review.record import BEST_RETURN, BEST_STEP, RunRecord
from rlplug.tracking.journal import read_journal
from rlplug.tracking.location import RunFolder, runs_in
from rlplug.tracking.reap import is_stale
from rlplug.tracking.status import RUNNING, RunStatus

__all__ = ["read_record", "recorded_runs"]

TAIL_BYTES = 64_000
"""How much of the end of a journal is read for the last values."""


def recorded_runs(root: Path) -> list[RunRecord]:
    """The runs of a runs folder, newest first."""
    found = sorted(runs_in(root), key=lambda run: run.started, reverse=True)
    return [read_record(run) for run in found]


def read_record(run: RunFolder) -> RunRecord:
    """What the folder of a run says of it."""
    status = RunStatus.read(run.path) or RunStatus(status="unknown")
    step, latest = _latest(run.path / "metrics.jsonl")
    best = None
    if BEST_RETURN in latest and BEST_STEP in latest:
        best = int(latest[BEST_STEP]), latest[BEST_RETURN]
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
        best=best,
        latest=latest,
        pending=bool(status.pending),
        folder=run.path,
        uri=run.uri,
        experiment_id=run.experiment_id,
    )


def _latest(journal: Path) -> tuple[int, dict[str, float]]:
    """The highest step and the last values in a journal."""
    step, latest = 0, dict[str, float]()
    with contextlib.suppress(OSError):
        start = max(os.path.getsize(journal) - TAIL_BYTES, 0)
        for report in read_journal(journal, start):
            step = max(step, report.step)
            latest.update(report.metrics)
    return step, latest
