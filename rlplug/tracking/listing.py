"""The runs of a runs folder with their status, without asking MLflow."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import attrs

from rlplug.tracking.journal import read_journal
from rlplug.tracking.location import RunFolder, runs_in
from rlplug.tracking.reap import is_stale
from rlplug.tracking.status import RUNNING, RunStatus
from rlplug.tracking.summary import RETURN, REWARD

__all__ = ["ListedRun", "listed"]

TAIL_BYTES = 64_000
"""How much of the end of a journal is read for the last values."""

_RETURNS = ("eval/return_mean", RETURN, REWARD)


@attrs.frozen(kw_only=True)
class ListedRun:
    """One line of the list."""

    run: RunFolder
    status: str
    step: int
    returned: float | None
    """The mean return of the last evaluation, else of training."""
    pending: bool
    """Whether something of it is not in MLflow."""

    @property
    def short(self) -> str:
        """The first characters of the id."""
        return self.run.run_id[:8]

    def as_text(self) -> tuple[str, ...]:
        """The cells of a table."""
        returned = "" if self.returned is None else f"{self.returned:,.4g}"
        started = self.run.started[:19].replace("T", " ")
        return (self.short, self.run.run_name, self.status, f"{self.step:,}", started, returned)

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "run_id": self.run.run_id,
            "name": self.run.run_name,
            "status": self.status,
            "step": self.step,
            "started": self.run.started,
            "return": self.returned,
            "pending": self.pending,
            "folder": str(self.run.path),
        }


def listed(root: Path) -> list[ListedRun]:
    """The runs of a runs folder, newest first."""
    found = sorted(runs_in(root), key=lambda run: run.started, reverse=True)
    return [_listed(run) for run in found]


def _listed(run: RunFolder) -> ListedRun:
    status = RunStatus.read(run.path)
    step, latest = _latest(run.path / "metrics.jsonl")
    word = "unknown" if status is None else status.status
    if word == RUNNING and is_stale(run.path):
        word = "stale"
    values = [latest[name] for name in _RETURNS if name in latest]
    return ListedRun(
        run=run,
        status=word,
        step=max(step, 0 if status is None else status.step),
        returned=values[0] if values else None,
        pending=status is not None and bool(status.pending),
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
