"""The listener for run events: takes microseconds per event and never raises."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from rlplug.hooks.events import RunInfo
from rlplug.tracking.location import without_secrets
from rlplug.tracking.record import tags_at_start
from rlplug.tracking.report_file import ReportFile
from rlplug.tracking.status import add_tags
from rlplug.tracking.writer import Writer

__all__ = ["Status", "TrackingListener"]

Status: TypeAlias = Literal["FINISHED", "FAILED", "KILLED"]

_REASONS = {"FINISHED": "finished", "FAILED": "error", "KILLED": "interrupted"}


class TrackingListener:
    """Passes metrics to the writer, and keeps the status of the run."""

    def __init__(
        self,
        writer: Writer,
        folder: Path,
        report: ReportFile,
        started: Callable[[RunInfo], None],
    ) -> None:
        self._writer = writer
        self._folder = folder
        self._report = report
        self._started = started
        self.run: RunInfo | None = None
        self.step = 0
        self.status: Status = "FAILED"
        """FAILED until the run reports its end."""
        self.limit = ""
        """The limit that ended training before its last step, if one did."""
        self.error: BaseException | None = None
        self.traceback = ""

    def stop_reason(self, status: Status) -> str:
        """Why a run with this status ended."""
        return self.limit if status == "FINISHED" and self.limit else _REASONS[status]

    def run_started(self, run: RunInfo) -> None:
        self.run = run
        self.step = run.step
        # A full disk costs these tags only.
        with contextlib.suppress(OSError):
            add_tags(self._folder, tags_at_start(run))
        self._started(run)

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        self.step = step
        self._writer.put(step, metrics)

    def evaluation_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        self._writer.put(step, metrics)
        self._report.write_soon(self._writer.write_now)

    def checkpoint_saved(self, step: int) -> None:
        # What is uploaded before a crash need not be uploaded again after a resume.
        self._writer.upload_soon()

    def run_finished(self, step: int) -> None:
        self.step = step
        self.status = "FINISHED"

    def run_failed(self, step: int, error: BaseException) -> None:
        self.step = step
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        self.status = "KILLED" if interrupted else "FAILED"
        self.error = error
        self.traceback = without_secrets("".join(traceback.format_exception(error)))
