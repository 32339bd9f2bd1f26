"""The thread of a run that writes metrics to the journal, and brings what is new to MLflow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue

from rlplug.tracking.client import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import NONFINITE, Journal, Recorded, Report
from rlplug.tracking.status import beat
from rlplug.tracking.store import Store
from rlplug.tracking.sync import Sync

JOURNAL_SECONDS = 1.0
UPLOAD_SECONDS = 5.0
LONGEST_WAIT = 60.0
SILENT_SECONDS = 10.0
"""How long closing waits for an answer of MLflow."""
HEARTBEAT_SECONDS = 30.0
STORE_HEARTBEAT_SECONDS = 60.0
"""The same in the store, where it costs a request."""


class Writer:
    """Takes metrics in microseconds, loses none, and never raises in the run.

    Metrics that cannot be written to disk are kept in memory, and brought to MLflow from there.
    """

    def __init__(
        self,
        journal: Journal,
        sync: Sync,
        store: Store | None,
        warn: Callable[[str], None],
        recorded: Recorded,
    ) -> None:
        self._journal = journal
        self._sync = sync
        self._store = store
        self._warn = warn
        self._marks = recorded.marks
        self._nonfinite = recorded.nonfinite
        self.first_nonfinite_step = recorded.first_nonfinite_step
        self._queue: SimpleQueue[tuple[int, float, dict[str, float]]] = SimpleQueue()
        self._taking = threading.Lock()
        self._unwritten: list[Report] = []
        self._in_mlflow = 0
        """How many of those MLflow has."""
        self._wait = 0.0
        """Seconds before the next attempt after a failure; 0 while MLflow answers."""
        self._next_upload = time.monotonic() + UPLOAD_SECONDS
        self._next_beat = 0.0
        # The run's tags have one of its start.
        self._next_store_beat = time.monotonic() + STORE_HEARTBEAT_SECONDS
        self._nudge = threading.Event()
        self._closing = threading.Event()
        self._deadline = 0.0
        self._finish: Callable[[], None] = lambda: None
        self._finishing = threading.Lock()
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
        self._take()
        with contextlib.suppress(OSError, ValueError):
            self._journal.sync()

    def upload_soon(self) -> None:
        """Write and upload now, without waiting for the interval."""
        self._next_upload = 0.0
        self._nudge.set()

    def close(self, finish: Callable[[], None], seconds: float) -> None:
        """Write the rest, call `finish`, which may write files, and bring everything to MLflow.

        Returns after at most `seconds`, and earlier if MLflow does not answer at all.
        """
        self._finish = finish
        self._sync.answered = time.monotonic()
        self._deadline = self._sync.answered + seconds
        self._end()
        while self._thread.is_alive():
            rest = min(self._deadline, self._sync.answered + SILENT_SECONDS) - time.monotonic()
            if rest <= 0:
                # The thread waits for an answer: what it has not done, this one does.
                self._sync.given_up.set()
                self._take()
                self._finish_once()
                return
            self._thread.join(rest)

    def abandon(self, last: Callable[[], None], seconds: float) -> None:
        """Write the rest to the journal, and do only this, if time is enough.

        In a thread of its own, for the writer's may be waiting for an answer.
        """
        deadline = time.monotonic() + seconds
        self._take(seconds / 2)
        # From here on, the thread may close the journal.
        self._sync.given_up.set()
        self._end()

        def do_last() -> None:
            with contextlib.suppress(StoreRefusedError, StoreUnreachableError):
                last()

        thread = threading.Thread(target=do_last, name="rlplug-ending", daemon=True)
        thread.start()
        thread.join(max(deadline - time.monotonic(), 0.1))

    @property
    def points_in_memory(self) -> int:
        """Number of metric values that are neither in the journal nor in MLflow."""
        return sum(len(report.metrics) for report in self._unwritten[self._in_mlflow :])

    @property
    def points_lost(self) -> int:
        """Number of metric values that are in no place; once it is closed."""
        written = 0 if self._journal.is_in_place else self._journal.points
        return max(written - self._sync.points, 0) + self.points_in_memory

    @property
    def has_ended(self) -> bool:
        """Whether the thread no longer uses the journal."""
        return not self._thread.is_alive()

    def _end(self) -> None:
        self._closing.set()
        self._nudge.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._nudge.wait(JOURNAL_SECONDS)
            self._nudge.clear()
            if time.monotonic() >= self._next_beat:
                self._next_beat = time.monotonic() + HEARTBEAT_SECONDS
                with contextlib.suppress(OSError):
                    beat(self._journal.path.parent)
            self._take()
            if time.monotonic() >= self._next_upload and not self._closing.is_set():
                self._bring()
        self._take()
        if not self._sync.given_up.is_set():
            self._finish_once()
            # Drawing may have taken long; nothing was asked meanwhile.
            self._sync.answered = max(self._sync.answered, time.monotonic() - SILENT_SECONDS / 2)
            # Until all is in MLflow or time is up; only once during a known outage.
            patient = self._wait == 0.0
            self._bring()
            while patient and self._wait and time.monotonic() + self._wait < self._deadline:
                if self._sync.given_up.wait(self._wait):
                    break
                self._bring()
        if self._sync.given_up.is_set():
            with contextlib.suppress(OSError):
                self._journal.close()

    def _finish_once(self) -> None:
        with self._finishing:
            finish, self._finish = self._finish, lambda: None
        finish()

    def _bring(self) -> None:
        """Bring what is new to MLflow; on failure, back off."""
        if self._store is None:
            return
        # Then what is in MLflow is in the journal, and is known when the run is continued.
        with contextlib.suppress(OSError):
            self._journal.sync()
        unwritten = list(self._unwritten)
        try:
            self._sync.bring(unwritten[self._in_mlflow :])
            with self._taking:
                if unwritten and self._unwritten[:1] == unwritten[:1]:
                    self._in_mlflow = len(unwritten)
            self._beat_in(self._store)
        except StoreUnreachableError as error:
            if not self._wait and not self._sync.given_up.is_set():
                where = "memory" if self._unwritten else str(self._journal.path)
                self._warn(
                    f"MLflow does not take metrics or files ({error}); the run continues, and its "
                    f"metrics are kept in {where}."
                )
            self._wait = min(LONGEST_WAIT, self._wait * 2 or 1.0)
            self._next_upload = time.monotonic() + self._wait
        else:
            was_away, self._wait = bool(self._wait), 0.0
            self._next_upload = time.monotonic() + UPLOAD_SECONDS
            if was_away:
                self._warn("MLflow is reachable again; all metrics are uploaded.")
                # The log has this line now.
                self._bring()

    def _beat_in(self, store: Store) -> None:
        now = time.monotonic()
        if now >= self._next_store_beat and not (self._closing.is_set() or self._sync.is_gone):
            self._next_store_beat = now + STORE_HEARTBEAT_SECONDS
            with contextlib.suppress(StoreRefusedError):
                store.beat()

    def _take(self, seconds: float = -1) -> None:
        """Write queued metrics to the journal, in any thread.

        Does nothing if another thread does it for longer than `seconds`, if they are given.
        """
        if not self._taking.acquire(timeout=seconds):
            return
        try:
            had_failed = bool(self._unwritten)
            with contextlib.suppress(Empty):
                while True:
                    report = self._counted(Report.of(*self._queue.get_nowait()))
                    if report.metrics:
                        self._unwritten.append(report)
            if self._unwritten:
                self._write(had_failed=had_failed)
        finally:
            self._taking.release()

    def _write(self, *, had_failed: bool) -> None:
        try:
            self._journal.append(self._unwritten)
        except OSError as error:
            if not had_failed:
                self._warn(
                    f"{self._journal.path} cannot be written ({error.strerror or error}); "
                    "the run continues, and its metrics are kept in memory."
                )
            return
        self._unwritten, self._in_mlflow = [], 0
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
