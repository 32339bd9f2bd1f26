"""Tracking of one run: opened before its first step, closed however it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import attrs

from rlplug.config.sections import RunConfig
from rlplug.hooks.events import RunInfo
from rlplug.quantities import format_path
from rlplug.review.provenance import Provenance
from rlplug.review.record import Trial
from rlplug.tracking.location import (
    RUN,
    RunFolder,
    is_http,
    is_missing,
    runs_folder,
    without_secrets,
)
from rlplug.tracking.opening import OpenRun, continue_run, create_run
from rlplug.tracking.provenance import Likeness, record_provenance
from rlplug.tracking.reading import read_record
from rlplug.tracking.record import LONGEST_TAG, command_line, description, tags_at_start
from rlplug.tracking.report_file import ReportFile
from rlplug.tracking.server import run_link
from rlplug.tracking.status import RunLock, add_tags, now
from rlplug.tracking.sync import Sync
from rlplug.tracking.system_metrics import SystemMetrics
from rlplug.tracking.writer import Writer

Status: TypeAlias = Literal["FINISHED", "FAILED", "KILLED"]

CLOSING_SECONDS = 30.0
_REASONS = {"FINISHED": "finished", "FAILED": "error", "KILLED": "interrupted"}
_ENDINGS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "was interrupted"}
_LONGEST_ERROR = 20
"""Lines of an error that are recorded: the last ones."""


def open_tracking(
    config: RunConfig,
    *,
    environment: str,
    chosen: Mapping[str, Any] | None = None,
    provenance: Provenance | None = None,
    like: Likeness | None = None,
    root: Path | None = None,
    warn: Callable[[str], None] | None = None,
    resume: Path | None = None,
    step: int = 0,
    drift: Mapping[str, str] | None = None,
    lock: RunLock | None = None,
    before_creation: Callable[[], None] = lambda: None,
    trial: Trial | None = None,
    sign: Callable[[Path], None] = lambda folder: None,
) -> Tracking:
    """Create the MLflow run and its folder, or raise what is wrong.

    `chosen` are the options that differ from the defaults. `provenance` says where options and
    plugins come from; the rest of it is found out when the run starts. `like` is the run that this
    one is to be like, `trial` its place in a study.

    With `resume`, the folder of a run, that run goes on from `step` instead, and nothing that its
    journal holds is reported again; `drift` has the options that were changed. A caller that has
    already read from the folder has taken its `lock`. `before_creation` is called right before the
    run is in MLflow, or in progress again, `sign` with the folder of a new run with its options.
    """
    known, options = provenance or Provenance(), chosen or {}
    if resume is None:
        run = create_run(config, environment, options, known, root, before_creation, trial, sign)
    else:
        changed = drift or {}
        run = continue_run(
            config, environment, options, known, resume, step, changed, lock, before_creation
        )
    return Tracking(config, run, warn, known, like)


class TrackingListener:
    """Takes the events of a run in microseconds, never raises, and keeps the status of the run."""

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

    def run_started(self, run: RunInfo) -> None:
        self.run, self.step = run, run.step
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
        self.step, self.status = step, "FINISHED"

    def run_failed(self, step: int, error: BaseException) -> None:
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        self.step, self.status = step, "KILLED" if interrupted else "FAILED"
        self.error = error


class RunLog(logging.Handler):
    """`logs/run.log`: the warnings of rlplug; a full disk costs lines, and nothing else."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "logs" / "run.log"
        self._handlers: list[logging.Handler] = [self]
        logger = logging.getLogger("rlplug")
        if not logger.hasHandlers() and logging.lastResort is not None:
            # Python prints warnings to stderr only where a logger has no handler at all.
            self._handlers.append(logging.lastResort)
        for handler in self._handlers:
            logger.addHandler(handler)

    def write(self, level: str, message: str) -> None:
        """Append a line."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("a") as file:
                file.write(f"{now()} {level} {without_secrets(message)}\n")

    def emit(self, record: logging.LogRecord) -> None:
        self.write(record.levelname, record.getMessage())

    def close(self) -> None:
        """Stop listening."""
        for handler in self._handlers:
            logging.getLogger("rlplug").removeHandler(handler)
        super().close()


class Tracking:
    """One tracked run: its folder with the journal and, unless disabled, an MLflow run."""

    def __init__(
        self,
        config: RunConfig,
        run: OpenRun,
        warn: Callable[[str], None] | None,
        provenance: Provenance,
        like: Likeness | None = None,
    ) -> None:
        self.run_id = run.run.run_id
        self.run_name = run.run.run_name
        self.folder = run.run.path
        self._run, self._status = run, run.status
        self._log = RunLog(self.folder)
        name, status = f"run {self.run_id} ({self.run_name})", run.status
        resumed = f"continued at step {status.step:,}, attempt {status.attempt}"
        began = "started" if status.attempt == 1 else resumed
        self._log.write("INFO", f"{name} {began}: {command_line()}")
        self._given_warn = warn
        self._closing = self._closed = False
        self._ended: Status = "FAILED"
        self.missing = ""
        """What is not in MLflow, in words; known once it is closed."""
        self.lost = 0
        """Number of metric values that are in no place; known once it is closed."""
        with_replay = config.checkpoint.upload_replay
        self._sync = Sync(self.folder, run.store, self._warn, with_replay=with_replay)
        self._writer = Writer(run.journal, self._sync, self._warn, run.recorded)
        self._report = ReportFile(self.folder, self._warn)
        self._known, self._like, self._diff = provenance, like, config.tracking.git_diff
        self._system = SystemMetrics(config.tracking, self._writer.put, self._warn)
        self.listener = TrackingListener(self._writer, self.folder, self._report, self._begin)
        self._writer.start()
        if run.outage:
            self._warn(
                f"{run.outage} The run goes on without it, and is kept in {self.folder} until: "
                f"{self._command('runs sync', self.run_id)}"
            )

    @property
    def where(self) -> str:
        """The run and its folder."""
        run = f"run {self.run_id} ({self.run_name})"
        # The id and the path on lines of their own, which narrow terminals do not break.
        here = f"in {format_path(self.folder)}"
        return f"{run}\n{here}" if self._has_folder else f"{run}, whose folder is gone"

    @property
    def left(self) -> str:
        """How much is still to be uploaded, in words; also from other threads."""
        number = self._sync.files_left
        return f"{number:,} file{'' if number == 1 else 's'} to upload" if number else ""

    def describe(self) -> tuple[str, ...]:
        """Where the run is, how to look at it, and what of it is not in MLflow."""
        lines, store = [self.where], self._run.store
        if store is not None and is_http(self._run.uri):
            server = without_secrets(self._run.uri).replace("***@", "")
            lines.append(f"look at it: {run_link(server, store.experiment_id, store.run_id)}")
        elif store is not None and not is_missing(self._run.uri):
            lines.append(f"look at it: {self._command('ui')}")
        elif self._has_folder:
            lines.append(f"look at it: {format_path(self.folder / 'report.html')}")
        if self.missing:
            how = f": {self._command('runs sync', self.run_id)}" if self._has_folder else ""
            lines.append(f"not in MLflow: {self.missing}{how}")
        return tuple(lines)

    def write_journal(self) -> None:
        """Return when all metrics reported so far are on the disk; from any thread."""
        self._writer.write_now()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self._closing and self.listener.error is None:
            self.listener.run_failed(self.listener.step, error)
        self.close()

    def close(self, status: Status | None = None, seconds: float | None = None) -> None:
        """Upload the rest and end the run, with the status from its events or the given one.

        With `seconds`, nothing is drawn, and MLflow gets what it takes in this time. This call may
        follow one that was interrupted.
        """
        if self._closed or (self._closing and seconds is None):
            return
        if not self._closing:
            self._ended = status or self.listener.status
        # Else the status that was to be set when closing was interrupted.
        self._closing, ended = True, self._ended
        self._system.stop()
        # First of all, for closing may be interrupted; not everything is in MLflow then.
        is_tracked = self._run.run.is_tracked
        self._write_status(ended, pending=is_tracked)
        self._writer.write_now()
        self._write_end(ended)
        if seconds is None and self.listener.run is not None:
            self._report.write()
        self._writer.close(seconds or CLOSING_SECONDS, at_once=seconds is not None)
        self.missing = self._sync.missing() if is_tracked else ""
        self._write_status(ended, pending=bool(self.missing))
        self.lost = self._writer.points_lost
        if self.lost:
            self._warn(
                f"{self.lost:,} metric values are lost: they are not in "
                f"{self._run.journal.path}, and not in MLflow."
            )
        if self.missing:
            how = f" To upload: {self._command('runs sync', self.run_id)}"
            self._warn(f"not in MLflow: {self.missing}.{how if self._has_folder else ''}")
        self._closed = True
        self._log.close()
        # An interrupted closing is done again, and keeps it until then.
        self._run.lock.release()

    @property
    def _has_folder(self) -> bool:
        """Whether the folder is still that of the run; it may have been deleted."""
        return (self.folder / RUN).is_file()

    def _begin(self, run: RunInfo) -> None:
        record_provenance(
            run, self._known, self.folder, self._warn, diff=self._diff, like=self._like
        )
        self._system.start(run)

    def _warn(self, message: str) -> None:
        if self._given_warn is None:
            # The log listens to it.
            logging.getLogger("rlplug").warning("rlplug: %s", message)
        else:
            self._log.write("WARNING", message)
            self._given_warn(message)

    def _write_end(self, status: Status) -> None:
        """Write the traceback and the final tags."""
        listener, step = self.listener, self._writer.first_nonfinite_step
        tags = {
            "rlplug.stop_reason": self._status.stop_reason,
            "rlplug.stopped_at_step": str(listener.step),
            **({} if step is None else {"rlplug.nonfinite_step": str(step)}),
        }
        error = ""
        if listener.error is not None and status == "FAILED":
            text = f"{type(listener.error).__name__}: {listener.error}"
            error = "\n".join(without_secrets(text).strip().splitlines()[-_LONGEST_ERROR:])
            tags["rlplug.error"] = error
        ended = f"{status}: {error.splitlines()[0]}" if error else status
        self._log.write("INFO", f"run {self.run_id} ended at step {listener.step:,}: {ended}")
        try:
            if error:
                trace = "".join(traceback.format_exception(listener.error))
                (self.folder / "logs").mkdir(exist_ok=True)
                (self.folder / "logs" / "traceback.txt").write_text(without_secrets(trace))
            run = RunFolder.read(self.folder)
            if listener.run is not None and run is not None:
                latest = read_record(run).latest
                tags["mlflow.note.content"] = description(
                    listener.run, run.about, _ENDINGS[status], listener.step, latest, error
                )
            add_tags(self.folder, {name: value[:LONGEST_TAG] for name, value in tags.items()})
        except OSError as failure:
            # A full disk must not keep the status from being uploaded.
            self._warn(f"{self.folder} cannot be written: {failure.strerror or failure}.")

    def _write_status(self, status: Status, *, pending: bool) -> None:
        limit = self.listener.limit if status == "FINISHED" else ""
        self._status = attrs.evolve(
            self._status,
            status=status,
            step=self.listener.step,
            stop_reason=limit or _REASONS[status],
            ended=self._status.ended or now(),
            pending=pending,
        )
        try:
            self._status.write(self.folder)
        except OSError as error:
            self._warn(f"{self.folder} cannot be written: {error.strerror or error}.")

    def _command(self, *words: str) -> str:
        """A command line that finds this run."""
        uri, root, setting = self._run.uri, self.folder.parent.parent, ""
        if words == ("ui",) and uri != f"sqlite:///{root / 'mlflow.db'}":
            if os.environ.get("MLFLOW_TRACKING_URI") != uri:
                setting = f"MLFLOW_TRACKING_URI={shlex.quote(without_secrets(uri))} "
        elif root != runs_folder():
            setting = f"RLPLUG_HOME={shlex.quote(str(root))} "
        return f"{setting}rlplug {' '.join(words)}"
