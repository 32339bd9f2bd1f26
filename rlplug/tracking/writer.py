"""The thread of a run that writes metrics to the journal, and brings what is new to MLflow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue

from rlplug.tracking.journal import NONFINITE, Journal, Recorded, Report
from rlplug.tracking.status import beat
from rlplug.tracking.store import StoreError
from rlplug.tracking.sync import Sync

JOURNAL_SECONDS = 1.0
UPLOAD_SECONDS = 5.0
LONGEST_WAIT = 60.0
SILENT_SECONDS = 10.0
"""How long closing waits for an answer of MLflow."""


class Writer:
    """Takes metrics in microseconds, and never raises in the run.

    Metrics that cannot be written to disk are kept in memory until they can.
    """

    def __init__(
        self, journal: Journal, sync: Sync, warn: Callable[[str], None], recorded: Recorded
    ) -> None:
        self._journal, self._sync, self._warn = journal, sync, warn
        self._marks = recorded.marks
        self._nonfinite = recorded.nonfinite
        self.first_nonfinite_step = recorded.first_nonfinite_step
        self._queue: SimpleQueue[tuple[int, float, dict[str, float]]] = SimpleQueue()
        self._writing = threading.Lock()
        self._unwritten: list[Report] = []
        self._wait = 0.0
        """Seconds before the next attempt after a failure; 0 while MLflow answers."""
        self._next_upload = time.monotonic() + UPLOAD_SECONDS
        self._nudge = threading.Event()
        self._closing = threading.Event()
        self._deadline = 0.0
        self._at_once = False
        self._thread = threading.Thread(target=self._run, name="rlplug-tracking", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue a copy of the metrics."""
        self._queue.put((step, time.time(), dict(metrics)))

    def write_now(self) -> None:
        """Return when all metrics put so far are in the journal and synced, if the disk allows it.

        May be called from any thread; it does not wait for uploads.
        """
        self._write()
        self._journal.sync()

    def upload_soon(self) -> None:
        """Write and upload now, without waiting for the interval."""
        self._next_upload = 0.0
        self._nudge.set()

    def close(self, seconds: float, *, at_once: bool = False) -> None:
        """Bring everything to MLflow, for at most `seconds`, or until it does not answer at all.

        `at_once`, only how the run has ended.
        """
        self._at_once = at_once
        if at_once:
            self._sync.given_up.set()
        self._sync.answered = time.monotonic()
        self._deadline = self._sync.answered + seconds
        self._closing.set()
        self._nudge.set()
        while self._thread.is_alive():
            rest = min(self._deadline, self._sync.answered + SILENT_SECONDS) - time.monotonic()
            if rest <= 0:
                self._sync.given_up.set()
                break
            self._thread.join(rest)
        # What was put during the last upload.
        self.write_now()
        self._journal.close()

    @property
    def points_lost(self) -> int:
        """Number of metric values that are in no place; once it is closed."""
        written = 0 if self._journal.path.exists() else self._journal.points
        kept = written + sum(len(report.metrics) for report in self._unwritten)
        known = self._sync.rescued + (self._sync.points if written else 0)
        return max(kept - known, 0)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._nudge.wait(JOURNAL_SECONDS)
            self._nudge.clear()
            beat(self._journal.path.parent)
            self._write()
            if time.monotonic() >= self._next_upload and not self._closing.is_set():
                self._bring()
        # Until all is in MLflow or time is up; only once during a known outage.
        patient = self._wait == 0.0
        self._bring()
        while patient and self._wait and time.monotonic() + self._wait < self._deadline:
            if self._sync.given_up.wait(self._wait):
                break
            self._bring()
        if self._at_once:
            with contextlib.suppress(StoreError):
                self._sync.end()

    def _bring(self) -> None:
        """Bring what is new to MLflow; on failure, back off."""
        # Then what is in MLflow is in the journal, and is known when the run is continued.
        self._journal.sync()
        was_away = bool(self._wait)
        try:
            # At the end, what the disk does not take is in MLflow at least.
            rest = self._unwritten if self._closing.is_set() else ()
            self._sync.bring([row for report in rest for row in report.rows()])
        except StoreError as error:
            if not was_away and not self._sync.given_up.is_set():
                where = self._journal.path if self._journal.path.exists() else "memory"
                self._warn(
                    f"MLflow does not take metrics or files ({error}); the run continues, and its "
                    f"metrics are kept in {where}."
                )
            self._wait = LONGEST_WAIT if error.refused else min(LONGEST_WAIT, self._wait * 2 or 1.0)
            self._next_upload = time.monotonic() + self._wait
        else:
            self._wait, self._next_upload = 0.0, time.monotonic() + UPLOAD_SECONDS
            if was_away:
                self._warn("MLflow is reachable again; all metrics are uploaded.")
                # The log has this line now.
                self._bring()

    def _write(self) -> None:
        """Write queued metrics to the journal, in any thread."""
        with self._writing:
            had_failed = bool(self._unwritten)
            with contextlib.suppress(Empty):
                while True:
                    report = self._counted(Report.of(*self._queue.get_nowait()))
                    if report.metrics:
                        self._unwritten.append(report)
            if not self._unwritten:
                return
            try:
                self._journal.append(self._unwritten)
            except OSError as error:
                if not had_failed:
                    self._warn(
                        f"{self._journal.path} cannot be written ({error.strerror or error}); "
                        "the run continues, and its metrics are kept in memory."
                    )
                return
            self._unwritten = []
            if had_failed:
                self._warn(f"the journal {self._journal.path} is writable again; nothing is lost.")

    def _counted(self, report: Report) -> Report:
        """The report without the values that were recorded before the run was continued.

        With `train/nonfinite`, the count of values that are not finite so far, if there are any.
        """
        step = report.step
        metrics = {
            name: value
            for name, value in report.metrics.items()
            if step > self._marks.get(name, step - 1)
        }
        report = Report(step, report.time, metrics)
        if report.nonfinite:
            self._nonfinite += report.nonfinite
            if self.first_nonfinite_step is None:
                self.first_nonfinite_step = step
        if self._nonfinite and metrics and step > self._marks.get(NONFINITE, step - 1):
            metrics[NONFINITE] = float(self._nonfinite)
        return report
