"""Queued reports: taken into the journal, and kept until they are in MLflow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

from rlplug.tracking.journal import NONFINITE, Journal, Recorded, Report

__all__ = ["ROWS_PER_BATCH", "QueuedReport", "QueuedReports"]

ROWS_PER_BATCH = 1000


class QueuedReport:
    """A report in the queue, and its end offset in the journal once it is written."""

    __slots__ = ("end", "report", "sent")

    def __init__(self, report: Report, end: int | None = None) -> None:
        self.report = report
        self.end = end
        self.sent = False


class QueuedReports:
    """The reports of a run on their way to the journal and, where `uploads`, to MLflow.

    Those that cannot be written to disk are kept in memory.
    """

    def __init__(
        self, journal: Journal, recorded: Recorded, warn: Callable[[str], None], *, uploads: bool
    ) -> None:
        self._journal = journal
        self._warn = warn
        self._uploads = uploads
        self._marks = recorded.marks
        self._queue: SimpleQueue[tuple[int, float, dict[str, float]]] = SimpleQueue()
        self._unwritten: list[QueuedReport] = []
        self._unsent: list[QueuedReport] = []
        if uploads:
            self._unsent += [QueuedReport(report, end) for report, end in recorded.unsent]
        self._nonfinite = recorded.nonfinite
        self.first_nonfinite_step = recorded.first_nonfinite_step
        self.disk_failed = False
        """Whether the journal could not be written the last time."""
        self._taking = threading.Lock()

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue a copy of the metrics, in microseconds."""
        self._queue.put((step, time.time(), dict(metrics)))

    def take(self, seconds: float = -1) -> None:
        """Move queued metrics to the journal and to the list of uploads; from any thread.

        Does nothing if another thread does it for longer than `seconds`, if they are given.
        """
        if self._taking.acquire(timeout=seconds):
            try:
                self._take()
            finally:
                self._taking.release()

    def next_batch(self) -> list[QueuedReport]:
        """As many of the first unsent reports as fit into one request, at least one."""
        batch: list[QueuedReport] = []
        rows = 0
        for one in self._unsent:
            rows += len(one.report.metrics)
            if batch and rows > ROWS_PER_BATCH:
                break
            batch.append(one)
        return batch

    def acknowledge(self, batch: Sequence[QueuedReport]) -> None:
        """The first unsent reports are in MLflow."""
        del self._unsent[: len(batch)]
        for one in batch:
            one.sent = True
        written = [one.end for one in batch if one.end is not None]
        if written:
            # Without it, the same points would be uploaded again, which has no effect.
            with contextlib.suppress(OSError):
                self._journal.acknowledge(written[-1])

    @property
    def points_unsent(self) -> int:
        """Number of metric values that are not in MLflow."""
        return _points(list(self._unsent))

    def points_lost(self) -> int:
        """Number of metric values that are in no place: the journal is read again for it.

        Only after the writer was closed.
        """
        if not self._uploads:
            return self._journal.points_missing() + _points(self._unwritten)
        kept = self._journal.read_lines()
        missing = [one for one in [*self._unsent, *self._unwritten] if not one.sent]
        lost = {id(one): one for one in missing if one.report.line() not in kept}
        return _points(list(lost.values()))

    def _take(self) -> None:
        taken = []
        while True:
            try:
                report = Report.of(*self._queue.get_nowait())
            except Empty:
                break
            report = self._counted(self._unknown(report))
            if report.metrics:
                taken.append(QueuedReport(report))
        if self._uploads:
            self._unsent += taken
        self._unwritten += taken
        if not self._unwritten:
            return
        try:
            ends = self._journal.append([one.report for one in self._unwritten])
        except OSError as error:
            self._on_disk_error(error)
            return
        for one, end in zip(self._unwritten, ends, strict=True):
            one.end = end
        self._unwritten = []
        if self.disk_failed:
            self.disk_failed = False
            self._warn(f"the journal {self._journal.path} is writable again; nothing is lost.")

    def _unknown(self, report: Report) -> Report:
        """The report without the values that were recorded before the run was continued."""
        known = {name for name in report.metrics if self._is_known(name, report.step)}
        if not known:
            return report
        metrics = {name: x for name, x in report.metrics.items() if name not in known}
        return Report(report.step, report.time, metrics)

    def _is_known(self, name: str, step: int) -> bool:
        return name in self._marks and step <= self._marks[name]

    def _counted(self, report: Report) -> Report:
        """The report with `train/nonfinite`, the count of non-finite values so far, if any."""
        if report.nonfinite:
            self._nonfinite += report.nonfinite
            if self.first_nonfinite_step is None:
                self.first_nonfinite_step = report.step
        if not (self._nonfinite and report.metrics) or self._is_known(NONFINITE, report.step):
            return report
        metrics = {**report.metrics, NONFINITE: float(self._nonfinite)}
        return Report(report.step, report.time, metrics)

    def _on_disk_error(self, error: OSError) -> None:
        if not self.disk_failed:
            self.disk_failed = True
            self._warn(
                f"{self._journal.path} cannot be written ({error.strerror or error}); "
                "the run continues, and its metrics are kept in memory."
            )


def _points(reports: Sequence[QueuedReport]) -> int:
    return sum(len(one.report.metrics) for one in reports)
