"""The writer thread: writes metrics to the journal, and to MLflow in batches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import NONFINITE, Journal, Recorded, Report, Row
from rlplug.tracking.status import Pending, beat

__all__ = ["Job", "MetricStore", "Writer"]

Job = Callable[[], None]

ROWS_PER_BATCH = 1000
JOURNAL_SECONDS = 1.0
UPLOAD_SECONDS = 5.0
LONGEST_WAIT = 60.0
SILENT_SECONDS = 10.0
"""How long closing waits for an answer of MLflow."""
HEARTBEAT_SECONDS = 30.0

_NOTHING = Recorded()


class MetricStore(Protocol):
    """Where batches of metrics are uploaded."""

    def log_rows(self, rows: Sequence[Row]) -> None:
        """Log at most 1000 rows, or raise one of the errors of `tracking.failures`."""

    def is_active(self) -> bool:
        """Whether the run still exists and accepts metrics."""


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
        self._marks = recorded.marks
        self._queue: SimpleQueue[tuple[int, float, dict[str, float]]] = SimpleQueue()
        self._unwritten: list[_Item] = []
        self._unsent: list[_Item] = []
        if store is not None:
            self._unsent += [_Item(report, end) for report, end in recorded.unsent]
        self._nonfinite = recorded.nonfinite
        self.first_nonfinite_step = recorded.first_nonfinite_step
        self._wait = 0.0
        """Seconds before the next attempt after a failure; 0 while uploads succeed."""
        self._next_upload = 0.0
        self._gone = False
        """Whether the run was deleted in MLflow."""
        self._disk_failed = False
        self._nudge = threading.Event()
        self._closing = threading.Event()
        self._jobs: list[tuple[Job, Sequence[Path]]] = []
        """Jobs, and the files that each of them uploads."""
        self._refused = 0
        """Number of files that MLflow refused."""
        self._finish: Callable[[], None] | None = None
        self._abandoned = threading.Event()
        self._taking = threading.Lock()
        self._deadline = 0.0
        self._answered = 0.0
        """When a request was last answered, by the monotonic clock."""
        self._next_beat = 0.0
        self._thread = threading.Thread(target=self._run, name="rlplug-tracking", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._next_upload = time.monotonic() + UPLOAD_SECONDS
        self._thread.start()

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue a copy of the metrics."""
        self._queue.put((step, time.time(), dict(metrics)))

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
        self._take()
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
                self._take()
                self._finish_once()
                break
            self._thread.join(rest)

    def abandon(self, last: Job, seconds: float) -> None:
        """Write the rest to the journal, upload no more, and do only this job, if time is enough.

        In a thread of its own, for the writer's may be waiting for an answer.
        """
        deadline = time.monotonic() + seconds
        if self._taking.acquire(timeout=seconds / 2):
            try:
                self._take_all()
            finally:
                self._taking.release()
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
        items, jobs = list(self._unsent), list(self._jobs)
        return Pending(
            points=_points(items),
            artifacts=self._refused + sum(_present(files) for _, files in jobs),
            tags=sum(not files for _, files in jobs),
        )

    @property
    def has_ended(self) -> bool:
        """Whether the thread no longer uses the journal."""
        return not self._thread.is_alive()

    def points_lost(self) -> int:
        """Number of metric values that are in no place: the journal is read again for it.

        Only after `close`.
        """
        if self._store is None:
            return self._journal.points_missing() + _points(self._unwritten)
        kept = self._journal.read_lines()
        missing = [item for item in [*self._unsent, *self._unwritten] if not item.sent]
        lost = {id(item): item for item in missing if item.report.line() not in kept}
        return _points(list(lost.values()))

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._nudge.wait(JOURNAL_SECONDS)
            self._nudge.clear()
            self._beat()
            self._take()
            if time.monotonic() >= self._next_upload and not self._closing.is_set():
                self._upload()
        self._take()
        if not self._abandoned.is_set():
            self._finish_once()
            # Drawing may have taken long; nothing was asked meanwhile.
            self._answered = max(self._answered, time.monotonic() - SILENT_SECONDS / 2)
            self._upload_rest()
        if self._abandoned.is_set():
            with contextlib.suppress(OSError):
                self._journal.close()

    def _finish_once(self) -> None:
        with self._taking:
            finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT_SECONDS
            with contextlib.suppress(OSError):
                beat(self._journal.path.parent)

    def _take(self) -> None:
        """Move queued metrics to the journal and to the list of uploads."""
        with self._taking:
            self._take_all()

    def _take_all(self) -> None:
        taken = []
        while True:
            try:
                report = Report.of(*self._queue.get_nowait())
            except Empty:
                break
            report = self._counted(self._unknown(report))
            if report.metrics:
                taken.append(_Item(report))
        if self._store is not None:
            self._unsent += taken
        self._unwritten += taken
        if not self._unwritten:
            return
        try:
            ends = self._journal.append([item.report for item in self._unwritten])
        except OSError as error:
            self._on_disk_error(error)
            return
        for item, end in zip(self._unwritten, ends, strict=True):
            item.end = end
        self._unwritten = []
        if self._disk_failed:
            self._disk_failed = False
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

    def _upload_rest(self) -> None:
        """Retry until everything is uploaded or time is up; only once during a known outage."""
        patient = self._wait == 0.0
        self._upload()
        while patient and self._wait and time.monotonic() + self._wait < self._deadline:
            if self._abandoned.wait(self._wait):
                return
            self._upload()

    def _upload(self) -> None:
        """Upload in batches; on failure, keep the rest and back off."""
        if self._unsent:
            # Then what is in MLflow is in the journal, and is known when the run is continued.
            # Where the disk fails, memory is what is uploaded.
            with contextlib.suppress(OSError):
                self._journal.sync()
        try:
            while self._unsent and self._is_open:
                batch = _batch(self._unsent)
                self._send([row for item in batch for row in item.report.rows()])
                self._sent(batch)
            self._work()
        except StoreUnreachableError as error:
            if not self._wait:
                kept = "memory" if self._disk_failed else self._journal.path
                self._warn(
                    f"{error.what} ({error}); the run continues, and its metrics are kept in "
                    f"{kept}."
                )
            self._wait = min(LONGEST_WAIT, self._wait * 2 or 1.0)
            self._next_upload = time.monotonic() + self._wait
        else:
            if self._wait:
                self._warn("MLflow is reachable again; all metrics are uploaded.")
            self._wait = 0.0
            self._next_upload = time.monotonic() + UPLOAD_SECONDS

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
        if self._gone:
            return
        del self._unsent[: len(batch)]
        for item in batch:
            item.sent = True
        written = [item.end for item in batch if item.end is not None]
        if written:
            # Without it, the same points would be uploaded again, which has no effect.
            with contextlib.suppress(OSError):
                self._journal.acknowledge(written[-1])

    def _on_disk_error(self, error: OSError) -> None:
        if not self._disk_failed:
            self._disk_failed = True
            self._warn(
                f"{self._journal.path} cannot be written ({error.strerror or error}); "
                "the run continues, and its metrics are kept in memory."
            )


def _present(files: Sequence[Path]) -> int:
    """Number of files that are still there; old checkpoints are deleted."""
    return sum(file.exists() for file in files)


def _points(items: Sequence[_Item]) -> int:
    return sum(len(item.report.metrics) for item in items)


class _Item:
    """A report in the queue, and its end offset in the journal once it is written."""

    __slots__ = ("end", "report", "sent")

    def __init__(self, report: Report, end: int | None = None) -> None:
        self.report = report
        self.end = end
        self.sent = False


def _batch(items: Sequence[_Item]) -> list[_Item]:
    """As many of the first items as fit into one request, at least one."""
    batch: list[_Item] = []
    rows = 0
    for item in items:
        rows += len(item.report.metrics)
        if batch and rows > ROWS_PER_BATCH:
            break
        batch.append(item)
    return batch
