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
from rlplug.tracking.location import RunFolder, default_folder, is_http, is_missing, without_secrets
from rlplug.tracking.lock import RunLock
from rlplug.tracking.opening import RUN, OpenRun, continue_run, create_run
from rlplug.tracking.provenance import Likeness, record_provenance
from rlplug.tracking.record import LONGEST_TAG, about_run, command_line, tags_at_start
from rlplug.tracking.recorded import read_record
from rlplug.tracking.report_file import ReportFile
from rlplug.tracking.run_log import RunLog
from rlplug.tracking.server import FIRST_PORT, serves_one_of, without_assistant
from rlplug.tracking.status import add_tags, end_heartbeat, kept_tags, now
from rlplug.tracking.summary import summary
from rlplug.tracking.sync import Sync
from rlplug.tracking.system_metrics import SystemMetrics, check_system_metrics
from rlplug.tracking.views import run_link
from rlplug.tracking.writer import Writer

Status: TypeAlias = Literal["FINISHED", "FAILED", "KILLED"]

CLOSING_SECONDS = 30.0
_REASONS = {"FINISHED": "finished", "FAILED": "error", "KILLED": "interrupted"}
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
    journal holds is reported again; `drift` tells which options were changed. A caller that has
    already read from the folder has taken its `lock`. `before_creation` is called right before the
    run is in MLflow, or in progress again, `sign` with the folder of a new run with its options.
    """
    check_system_metrics(config.tracking)
    known = Provenance() if provenance is None else provenance
    if resume is None:
        options = chosen or {}
        run = create_run(config, environment, options, known, root, before_creation, trial, sign)
    else:
        about = about_run(config, environment, chosen or {})
        run = continue_run(config, about, known, resume, step, drift or {}, lock, before_creation)
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

    def stop_reason(self, status: Status) -> str:
        """Why a run with this status ended."""
        return self.limit if status == "FINISHED" and self.limit else _REASONS[status]

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
        self.experiment = run.run.experiment
        self.uri = run.uri
        self.folder = run.run.path
        self.root = self.folder.parent.parent
        self._is_tracked = run.run.is_tracked
        self._tracked_id = run.store.run_id if run.store is not None else ""
        self._experiment_id = run.run.experiment_id
        self._lock = run.lock
        self._status = run.status
        self._log = RunLog(self.folder)
        self._log.write("INFO", f"{self._beginning()}: {command_line()}")
        self._given_warn = warn
        self._closing = self._closed = False
        self._ended: Status = "FAILED"
        self.missing = ""
        """What is not in MLflow, in words; known once it is closed."""
        self.lost = 0
        """Number of metric values that are in no place; known once it is closed."""
        self._journal = run.journal
        self._sync = Sync(
            self.folder,
            run.store,
            self._warn,
            with_replay=config.checkpoint.upload_replay,
            resumed_at=run.status.step if run.status.attempt > 1 else None,
        )
        self._writer = Writer(run.journal, self._sync, run.store, self._warn, run.recorded)
        self._report = ReportFile(self.folder, self._warn)
        self._known, self._like, self._diff = provenance, like, config.tracking.git_diff
        self._system = SystemMetrics(config.tracking, self._writer.put, self._warn)
        self.listener = TrackingListener(self._writer, self.folder, self._report, self._begin)
        self._writer.start()
        if run.outage:
            self._warn(
                f"{run.outage} The run goes on without it, and is kept in {self.folder} until: "
                f"{self._sync_command()}"
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
        lines = self._look()
        if self.missing:
            how = f": {self._sync_command()}" if self._has_folder else ""
            lines = (*lines, f"not in MLflow: {self.missing}{how}")
        return lines

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

        With `seconds`, only the status is set: on disk, and in MLflow if it answers in time. This
        call may follow one that was interrupted.
        """
        if self._closed or (self._closing and seconds is None):
            return
        if not self._closing:
            self._ended = status or self.listener.status
        # Else the status that was to be set when closing was interrupted.
        self._closing, ended = True, self._ended
        self._system.stop()
        # First of all, for closing may be interrupted; not everything is in MLflow then.
        self._write_status(ended, pending=self._is_tracked)
        error = self.listener.error if ended == "FAILED" else None
        why = "" if error is None else f": {type(error).__name__}: {error}"
        self._log.write(
            "INFO", f"run {self.run_id} ended at step {self._status.step:,}: {ended}{why}"
        )
        if seconds is None:
            self._writer.close(lambda: self._review(ended), CLOSING_SECONDS)
        else:
            self._writer.abandon(lambda: self._sync.end(self._write_end(ended)), seconds)
        if self._is_tracked:
            self.missing = self._sync.missing(self._writer.points_in_memory)
        self._write_status(ended, pending=bool(self.missing))
        end_heartbeat(self.folder)
        self._warn_of_missing()
        # Otherwise the writer's thread, which waits for an answer, closes it.
        if self._writer.has_ended:
            self._close_journal()
        self._closed = True
        self._log.close()
        # An interrupted closing is done again, and keeps it until then.
        self._lock.release()

    @property
    def _has_folder(self) -> bool:
        """Whether the folder is still that of the run; it may have been deleted."""
        return (self.folder / RUN).is_file()

    def _beginning(self) -> str:
        run = f"run {self.run_id} ({self.run_name})"
        status = self._status
        if status.attempt == 1:
            return f"{run} started"
        return f"{run} continued at step {status.step:,}, attempt {status.attempt}"

    def _begin(self, run: RunInfo) -> None:
        record_provenance(
            run, self._known, self.folder, self._warn, diff=self._diff, like=self._like
        )
        self._system.start(run)

    def _warn(self, message: str) -> None:
        if self._given_warn is None:
            # The log listens to it; Python prints warnings of unconfigured loggers to stderr.
            logging.getLogger("rlplug").warning("rlplug: %s", message)
        else:
            self._log.write("WARNING", message)
            self._given_warn(message)

    def _look(self) -> tuple[str, ...]:
        where = self.where
        if not (self._has_folder if not self._tracked_id else not is_missing(self.uri)):
            return (where,)
        if not self._tracked_id:
            picture = format_path(self.folder / "plots" / "learning_curve.png")
            return where, f"look at it: {picture}"
        server = f"http://127.0.0.1:{FIRST_PORT}"
        if is_http(self.uri):
            shown = without_secrets(self.uri).replace("***@", "")
        elif serves_one_of(server, [self._tracked_id]):
            shown = without_assistant(server)
        else:
            return where, f"look at it: {self._ui_command()}"
        return where, f"look at it: {run_link(shown, self._experiment_id, self._tracked_id)}"

    def _write_end(self, status: Status) -> dict[str, str]:
        """Write the traceback and the final tags, and return all tags."""
        listener, step = self.listener, self._writer.first_nonfinite_step
        tags = {
            "rlplug.stop_reason": listener.stop_reason(status),
            "rlplug.stopped_at_step": str(listener.step),
            **({} if step is None else {"rlplug.nonfinite_step": str(step)}),
        }
        error = ""
        try:
            if listener.error is not None and status == "FAILED":
                text = f"{type(listener.error).__name__}: {listener.error}"
                error = "\n".join(without_secrets(text).strip().splitlines()[-_LONGEST_ERROR:])
                trace = "".join(traceback.format_exception(listener.error))
                tags["rlplug.error"] = error
                (self.folder / "logs").mkdir(exist_ok=True)
                (self.folder / "logs" / "traceback.txt").write_text(without_secrets(trace))
            run = RunFolder.read(self.folder)
            if listener.run is not None and run is not None:
                latest = read_record(run).latest
                note = summary(listener.run, run.about, status, listener.step, latest, error)
                tags["mlflow.note.content"] = note
            tags = {name: value[:LONGEST_TAG] for name, value in tags.items()}
            add_tags(self.folder, tags)
        except OSError as failure:
            # A full disk must not keep the status from being uploaded.
            self._warn(f"{self.folder} cannot be written: {failure.strerror or failure}.")
        return {**kept_tags(self.folder), **tags}

    def _review(self, status: Status) -> None:
        self._write_end(status)
        if self.listener.run is not None:
            self._report.write()

    def _close_journal(self) -> None:
        try:
            self._journal.close()
        except OSError as error:
            self._warn(f"{self._journal.path} is incomplete: {error.strerror or error}.")

    def _write_status(self, status: Status, *, pending: bool) -> None:
        self._status = attrs.evolve(
            self._status,
            status=status,
            step=self.listener.step,
            stop_reason=self.listener.stop_reason(status),
            ended=self._status.ended or now(),
            pending=pending,
        )
        try:
            self._status.write(self.folder)
        except OSError as error:
            self._warn(f"{self.folder} cannot be written: {error.strerror or error}.")

    def _warn_of_missing(self) -> None:
        self.lost = lost = self._writer.points_lost
        if lost:
            self._warn(
                f"{lost:,} metric values are lost: they are not in {self._journal.path}, and not "
                "in MLflow."
            )
        if self.missing:
            how = f" To upload: {self._sync_command()}" if self._has_folder else ""
            self._warn(f"not in MLflow: {self.missing}.{how}")

    def _sync_command(self) -> str:
        home = (
            "" if self.root == default_folder() else f"RLPLUG_HOME={shlex.quote(str(self.root))} "
        )
        return f"{home}rlplug runs sync {self.run_id}"

    def _ui_command(self) -> str:
        """The command that opens the UI on this store."""
        settings = []
        if self.uri != f"sqlite:///{self.root / 'mlflow.db'}":
            if os.environ.get("MLFLOW_TRACKING_URI") != self.uri:
                uri = shlex.quote(without_secrets(self.uri))
                settings.append(f"MLFLOW_TRACKING_URI={uri} ")
        elif self.root != default_folder():
            settings.append(f"RLPLUG_HOME={shlex.quote(str(self.root))} ")
        return "".join([*settings, "rlplug ui"])
