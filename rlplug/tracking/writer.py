"""The writer thread: writes metrics to the journal, and to MLflow in batches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import Journal, Recorded, Row
from rlplug.tracking.queued import QueuedReports
from rlplug.tracking.status import Pending, beat

__all__ = ["Job", "MetricStore", "Writer"]

Job = Callable[[], None]

JOURNAL_SECONDS = 1.0
UPLOAD_SECONDS = 5.0
LONGEST_WAIT = 60.0
SILENT_SECONDS = 10.0
"""How long closing waits for an answer of MLflow."""
HEARTBEAT_SECONDS = 30.0
STORE_HEARTBEAT_SECONDS = 60.0
"""The same in the store, where it costs a request."""

_NOTHING = Recorded()


class MetricStore(Protocol):
    """Where batches of metrics are uploaded."""

    def log_rows(self, rows: Sequence[Row]) -> None:
        """Log at most 1000 rows, or raise one of the errors of `tracking.failures`."""

    def is_active(self) -> bool:
        """Whether the run still exists and accepts metrics."""

    def beat(self) -> None:
        """Say that the run is still in progress."""


class Writer:
    """Takes metrics in microseconds, loses none, and never raises in the run.

    Failed uploads are retried; metrics that cannot be written to disk are kept in memory and
    uploaded from there.
    """

    def __init__(
        self,
        journal: Journal,
        store: MetricStore | None,
        warn: Callable[[str], None],
        recorded: Recorded = _NOTHING,
    ) -> None:
        self._journal = journal
        self._store = store
        self._warn = warn
        self.reports = QueuedReports(journal, recorded, warn, uploads=store is not None)
        self._wait = 0.0
        """Seconds before the next attempt after a failure; 0 while uploads succeed."""
        self._lasts = False
        """Whether the failure is one that does not go away while a run is closed."""
        self._next_upload = 0.0
        self._gone = False
        """Whether the run was deleted in MLflow."""
        self._nudge = threading.Event()
        self._closing = threading.Event()
        self._jobs: list[tuple[Job, Sequence[Path]]] = []
        """Jobs, and the files that each of them uploads."""
        self._refused = 0
        """Number of files that MLflow refused."""
        self._finish: Callable[[], None] | None = None
        self._finishing = threading.Lock()
        self._abandoned = threading.Event()
        self._deadline = 0.0
        self._answered = 0.0
        """When a request was last answered, by the monotonic clock."""
        self._next_beat = 0.0
        # The run's tags have one of its start.
        self._next_store_beat = time.monotonic() + STORE_HEARTBEAT_SECONDS
        self._thread = threading.Thread(target=self._run, name="rlplug-tracking", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._next_upload = time.monotonic() + UPLOAD_SECONDS
        self._thread.start()

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue a copy of the metrics."""
        self.reports.put(step, metrics)

    def do(self, job: Job, *, files: Sequence[Path] = ()) -> None:
        """Queue another job for the thread, after the metrics queued so far."""
        self._jobs.append((job, files))

    def do_first(self, job: Job) -> None:
        """Queue a job before the others; only for the `finish` of `close`."""
        self._jobs.insert(0, (job, ()))

    def write_now(self) -> None:
        """Return when all metrics put so far are in the journal and synced, if the disk allows it.

        May be called from any thread; it does not wait for uploads.
        """
        self.reports.take()
        with contextlib.suppress(OSError, ValueError):
            self._journal.sync()

    def upload_soon(self) -> None:
        """Write and upload now, without waiting for the interval."""
        self._next_upload = 0.0
        self._nudge.set()

    def close(self, finish: Callable[[], None], seconds: float) -> None:
        """Write the rest, call `finish`, which may queue more jobs, and upload everything.

        Returns after at most `seconds`, and earlier if MLflow does not answer at all; `pending`
        tells what is missing.
        """
        self._finish = finish
        self._answered = time.monotonic()
        self._deadline = self._answered + seconds
        self._closing.set()
        self._nudge.set()
        while self._thread.is_alive():
            now = time.monotonic()
            rest = min(self._deadline, self._answered + SILENT_SECONDS) - now
            if rest <= 0:
                # The thread waits for an answer: what it has not done, this one does.
                self._abandoned.set()
                self.reports.take()
                self._finish_once()
                break
            self._thread.join(rest)

    def abandon(self, last: Job, seconds: float) -> None:
        """Write the rest to the journal, upload no more, and do only this job, if time is enough.

        In a thread of its own, for the writer's may be waiting for an answer.
        """
        deadline = time.monotonic() + seconds
        self.reports.take(seconds / 2)
        # From here on, the thread may close the journal.
        self._abandoned.set()
        self._closing.set()
        self._nudge.set()
        unfinished: tuple[Job, Sequence[Path]] = (last, ())
        self._jobs.append(unfinished)

        def do_last() -> None:
            with contextlib.suppress(StoreRefusedError, StoreUnreachableError):
                last()
                self._jobs.remove(unfinished)

        thread = threading.Thread(target=do_last, name="rlplug-ending", daemon=True)
        thread.start()
        thread.join(max(deadline - time.monotonic(), 0.1))

    @property
    def pending(self) -> Pending:
        """What is not in MLflow."""
        jobs = list(self._jobs)
        return Pending(
            points=self.reports.points_unsent,
            artifacts=self._refused + sum(_present(files) for _, files in jobs),
            tags=sum(not files for _, files in jobs),
        )

    @property
    def has_ended(self) -> bool:
        """Whether the thread no longer uses the journal."""
        return not self._thread.is_alive()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._nudge.wait(JOURNAL_SECONDS)
            self._nudge.clear()
            self._beat()
            self.reports.take()
            if time.monotonic() >= self._next_upload and not self._closing.is_set():
                self._upload()
        self.reports.take()
        if not self._abandoned.is_set():
            self._finish_once()
            # Drawing may have taken long; nothing was asked meanwhile.
            self._answered = max(self._answered, time.monotonic() - SILENT_SECONDS / 2)
            self._upload_rest()
        if self._abandoned.is_set():
            with contextlib.suppress(OSError):
                self._journal.close()

    def _finish_once(self) -> None:
        with self._finishing:
            finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT_SECONDS
            with contextlib.suppress(OSError):
                beat(self._journal.path.parent)

    def _beat_in_store(self) -> None:
        now = time.monotonic()
        if now < self._next_store_beat or self._store is None or self._gone:
            return
        if not self._closing.is_set():
            self._next_store_beat = now + STORE_HEARTBEAT_SECONDS
            with contextlib.suppress(StoreRefusedError):
                self._store.beat()

    def _upload_rest(self) -> None:
        """Retry until everything is uploaded or time is up; only once during a known outage."""
        patient = self._wait == 0.0
        self._upload()
        while patient and self._wait and time.monotonic() + self._wait < self._deadline:
            if self._lasts or self._abandoned.wait(self._wait):
                return
            self._upload()

    def _upload(self) -> None:
        """Upload in batches; on failure, keep the rest and back off."""
        if self.reports.points_unsent:
            # Then what is in MLflow is in the journal, and is known when the run is continued.
            # Where the disk fails, memory is what is uploaded.
            with contextlib.suppress(OSError):
                self._journal.sync()
        try:
            while self._is_open and (batch := self.reports.next_batch()):
                self._send([row for one in batch for row in one.report.rows()])
                if not self._gone:
                    self.reports.acknowledge(batch)
            self._work()
            self._beat_in_store()
        except StoreUnreachableError as error:
            if not self._wait:
                self._warn(
                    f"{error.what} ({error}); the run continues, and its metrics are kept in "
                    f"{self._kept_in}."
                )
            self._wait = min(LONGEST_WAIT, self._wait * 2 or 1.0)
            self._lasts = error.lasts
            self._next_upload = time.monotonic() + self._wait
        else:
            if self._wait:
                self._warn("MLflow is reachable again; all metrics are uploaded.")
            self._wait = 0.0
            self._next_upload = time.monotonic() + UPLOAD_SECONDS

    @property
    def _kept_in(self) -> str:
        """Where the metrics are; the journal may have been deleted."""
        on_disk = not self.reports.disk_failed and self._journal.is_in_place
        return str(self._journal.path) if on_disk else "memory"

    @property
    def _is_open(self) -> bool:
        return self._store is not None and not self._gone and not self._abandoned.is_set()

    def _work(self) -> None:
        """Do queued jobs in order; permanent failures are reported and skipped."""
        while self._jobs and self._is_open:
            done = self._jobs[0]
            try:
                done[0]()
            except StoreRefusedError as error:
                self._refused += _present(done[1])
                self._warn(f"MLflow refused a part of this run's record: {error}.")
            self._answered = time.monotonic()
            self._jobs.remove(done)

    def _send(self, rows: Sequence[Row]) -> None:
        """Upload rows; if MLflow refuses them, find the invalid ones by bisection and skip them."""
        if self._store is None:
            return
        try:
            self._store.log_rows(rows)
            self._answered = time.monotonic()
            return
        except StoreRefusedError as error:
            refused = error
        if not self._store.is_active():
            self._gone = True
            self._warn(
                f"MLflow accepts no more metrics of this run ({refused}); "
                f"they are kept in {self._kept_in}."
            )
        elif len(rows) == 1:
            name, value, _, step = rows[0]
            self._warn(f"MLflow refused {name}={value} at step {step}: {refused}")
        else:
            middle = len(rows) // 2
            self._send(rows[:middle])
            self._send(rows[middle:])


def _present(files: Sequence[Path]) -> int:
    """Number of files that are still there; old checkpoints are deleted."""
    return sum(file.exists() for file in files)
