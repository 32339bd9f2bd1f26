"""The writer thread: what is reported goes to the journal at once and to MLflow in batches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import Journal, Report, Row

__all__ = ["Job", "MetricStore", "Writer"]

Job = Callable[[], None]

ROWS_PER_BATCH = 1000
JOURNAL_SECONDS = 1.0
UPLOAD_SECONDS = 5.0
LONGEST_WAIT = 60.0


class MetricStore(Protocol):
    """Where batches of metrics go."""

    def log_rows(self, rows: Sequence[Row]) -> None:
        """Store at most 1000 rows, or raise one of `tracking.failures`."""

    def is_active(self) -> bool:
        """Whether the run still exists and takes metrics."""


class Writer:
    """Takes metrics in microseconds, loses none, and never fails the run.

    What cannot be uploaded now is kept and tried again; what cannot be written to the disk is
    kept in memory and uploaded from there.
    """

    def __init__(
        self, journal: Journal, store: MetricStore | None, warn: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._store = store
        self._warn = warn
        self._queue: SimpleQueue[tuple[int, float, dict[str, float]]] = SimpleQueue()
        self._unwritten: list[_Item] = []
        self._unsent: list[_Item] = []
        self._nonfinite = 0
        self.first_nonfinite_step: int | None = None
        self._wait = 0.0
        """Seconds until the next attempt after a failure; 0 while uploads succeed."""
        self._next_upload = 0.0
        self._disk_failed = False
        self._nudge = threading.Event()
        self._closing = threading.Event()
        self._jobs: list[Job] = []
        self._last_words: Callable[[], None] | None = None
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="rlplug-tracking", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._next_upload = time.monotonic() + UPLOAD_SECONDS
        self._thread.start()

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take metrics: a copy and a queue, nothing else."""
        self._queue.put((step, time.time(), dict(metrics)))

    def do(self, job: Job) -> None:
        """Have the thread do something else with the store, in order and after what is queued."""
        self._jobs.append(job)

    def upload_soon(self) -> None:
        """Write and upload now instead of at the next interval."""
        self._next_upload = 0.0
        self._nudge.set()

    def close(self, last_words: Callable[[], None], seconds: float) -> None:
        """Write the rest, then call `last_words`, which may still ask to `do`; upload it all.

        Returns after `seconds` at the latest; `points_left` and `jobs_left` tell what is missing.
        """
        self._last_words = last_words
        self._deadline = time.monotonic() + seconds
        self._closing.set()
        self._nudge.set()
        self._thread.join(seconds)

    @property
    def points_left(self) -> int:
        """How many numbers are not in MLflow."""
        return sum(len(item.report.metrics) for item in list(self._unsent))

    @property
    def points_lost(self) -> int:
        """How many numbers are neither in MLflow nor in the journal."""
        lost = [item for item in list(self._unwritten) if not item.sent]
        return sum(len(item.report.metrics) for item in lost)

    @property
    def jobs_left(self) -> int:
        """How much of what the thread was asked to do has not been done."""
        return len(self._jobs)

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._nudge.wait(JOURNAL_SECONDS)
            self._nudge.clear()
            self._take()
            if time.monotonic() >= self._next_upload and not self._closing.is_set():
                self._upload()
        self._take()
        if self._last_words is not None:
            self._last_words()
        self._upload_rest()

    def _take(self) -> None:
        """Move what was reported into the journal and into the list of what to upload."""
        taken = []
        while True:
            try:
                report = Report.of(*self._queue.get_nowait())
            except Empty:
                break
            taken.append(_Item(self._counted(report)))
        if self._store is not None:
            self._unsent += taken
        self._unwritten += taken
        if not self._unwritten:
            return
        try:
            ends = self._journal.append([item.report for item in self._unwritten])
        except OSError as error:
            self._disk_broke(error)
            return
        for item, end in zip(self._unwritten, ends, strict=True):
            item.end = end
        self._unwritten = []
        if self._disk_failed:
            self._disk_failed = False
            self._warn(f"the journal {self._journal.path} can be written again; nothing is lost.")

    def _counted(self, report: Report) -> Report:
        """The report with the count of numbers so far that were not finite, once there is one."""
        if report.nonfinite:
            self._nonfinite += report.nonfinite
            if self.first_nonfinite_step is None:
                self.first_nonfinite_step = report.step
        if not self._nonfinite:
            return report
        metrics = {**report.metrics, "train/nonfinite": float(self._nonfinite)}
        return Report(report.step, report.time, metrics)

    def _upload_rest(self) -> None:
        """Try until everything is uploaded or the time is over; a known outage is tried once."""
        patient = self._wait == 0.0
        self._upload()
        while patient and self._wait and time.monotonic() + self._wait < self._deadline:
            time.sleep(self._wait)
            self._upload()

    def _upload(self) -> None:
        """Send what is there in batches; on failure keep it and wait longer."""
        try:
            while self._unsent and self._store is not None:
                batch = _batch(self._unsent)
                self._send([row for item in batch for row in item.report.rows()])
                self._sent(batch)
            self._work()
        except StoreUnreachableError as error:
            if not self._wait:
                kept = "memory" if self._disk_failed else self._journal.path
                self._warn(
                    f"MLflow cannot be reached ({error}); the run goes on, and its metrics are "
                    f"kept in {kept}."
                )
            self._wait = min(LONGEST_WAIT, self._wait * 2 or 1.0)
            self._next_upload = time.monotonic() + self._wait
        else:
            if self._wait:
                self._warn("MLflow can be reached again; all metrics are uploaded.")
            self._wait = 0.0
            self._next_upload = time.monotonic() + UPLOAD_SECONDS

    def _work(self) -> None:
        """Do what was asked for, in order; what fails for good is said and left out."""
        while self._jobs:
            if self._store is not None:
                try:
                    self._jobs[0]()
                except StoreRefusedError as error:
                    self._warn(f"MLflow refused a part of this run's record: {error}.")
            del self._jobs[0]

    def _send(self, rows: Sequence[Row]) -> None:
        """Send rows; of those that MLflow refuses, find the bad ones and leave them out."""
        if self._store is None:
            return
        try:
            self._store.log_rows(rows)
            return
        except StoreRefusedError as error:
            refused = error
        if not self._store.is_active():
            self._store = None
            self._warn(
                f"MLflow takes no more metrics of this run ({refused}); "
                f"they are kept in {self._journal.path}."
            )
        elif len(rows) == 1:
            name, value, _, step = rows[0]
            self._warn(f"MLflow refused {name}={value} at step {step}: {refused}")
        else:
            middle = len(rows) // 2
            self._send(rows[:middle])
            self._send(rows[middle:])

    def _sent(self, batch: list[_Item]) -> None:
        if self._store is None:
            self._unsent = []
            return
        del self._unsent[: len(batch)]
        for item in batch:
            item.sent = True
        written = [item.end for item in batch if item.end is not None]
        if written:
            # Without the note, the same points would be sent again and stored once.
            with contextlib.suppress(OSError):
                self._journal.acknowledge(written[-1])

    def _disk_broke(self, error: OSError) -> None:
        if not self._disk_failed:
            self._disk_failed = True
            self._warn(
                f"{self._journal.path} cannot be written ({error.strerror or error}); "
                "the run goes on, and its metrics are kept in memory."
            )


class _Item:
    """A report on its way, and where it ends in the journal once it is there."""

    __slots__ = ("end", "report", "sent")

    def __init__(self, report: Report) -> None:
        self.report = report
        self.end: int | None = None
        self.sent = False


def _batch(items: Sequence[_Item]) -> list[_Item]:
    """The first items, as many as fit into one request, and at least one."""
    batch: list[_Item] = []
    rows = 0
    for item in items:
        rows += len(item.report.metrics)
        if batch and rows > ROWS_PER_BATCH:
            break
        batch.append(item)
    return batch
