"""Artifacts for reviewing a run: learning curve, summary, traceback and final status."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlplug.hooks.events import RunInfo
from rlplug.review.curve import draw_curve, panels_of
from rlplug.review.history import history_of
from rlplug.review.record import RunAbout
from rlplug.tracking.artifacts import files_in, upload_file
from rlplug.tracking.journal import Report, read_journal
from rlplug.tracking.listener import Status, TrackingListener
from rlplug.tracking.location import RunFolder, without_secrets
from rlplug.tracking.record import LONGEST_TAG
from rlplug.tracking.report_file import ReportFile
from rlplug.tracking.status import TAGS, add_tags
from rlplug.tracking.store import PENDING_TAG, Store
from rlplug.tracking.summary import summary
from rlplug.tracking.writer import Writer

__all__ = ["Review"]


class Review:
    """Writes the final files of a run and has the writer upload them."""

    def __init__(
        self,
        run_name: str,
        folder: Path,
        store: Store | None,
        writer: Writer,
        report: ReportFile,
        warn: Callable[[str], None],
    ) -> None:
        self._run_name = run_name
        self._folder = folder
        self._store = store
        self._writer = writer
        self._report = report
        self._warn = warn

    def end(self, listener: TrackingListener, status: Status) -> None:
        """Set the final status at once, with the tags that tell of it."""
        tags = self._tags_at_end(listener, status, self._reports())
        if self._store is not None:
            self._store.terminate(status)
            # The log, plots and the last checkpoint, at least, are not uploaded.
            self._store.set_tags({**tags, PENDING_TAG: "true"})

    def conclude(self, listener: TrackingListener, status: Status) -> None:
        """Write the files for reviewing the run, and queue the upload of all that is left.

        The status comes before the files, which may take long.
        """
        reports = self._reports()
        tags = self._tags_at_end(listener, status, reports)
        if listener.run is not None:
            self._write("plots", partial(self._draw, reports, listener.run))
            self._report.write()
        store = self._store
        if store is None:
            return
        self._writer.do_first(partial(store.terminate, status))
        self._writer.do_first(partial(store.set_tags, {**tags, PENDING_TAG: "true"}))
        for folder in ("plots", "logs"):
            for file in files_in(self._folder / folder):
                self._writer.do(partial(upload_file, store.log_file, file, folder), files=[file])
        self._writer.do(partial(self._complete, store))

    def _complete(self, store: Store) -> None:
        if not self._writer.pending.artifacts:
            store.delete_tag(PENDING_TAG)

    def _tags_at_end(
        self, listener: TrackingListener, status: Status, reports: list[Report]
    ) -> dict[str, str]:
        """The final tags, which are kept in the folder, too."""
        tags = self._tags(listener, status, reports)
        self._write(TAGS, partial(add_tags, self._folder, tags))
        if status == "FAILED" and listener.traceback:
            self._write("logs", partial(self._write_traceback, listener.traceback))
        return tags

    def _reports(self) -> list[Report]:
        try:
            return list(read_journal(self._folder / "metrics.jsonl"))
        except OSError as error:
            self._warn(f"the journal cannot be read: {error.strerror or error}.")
            return []

    def _write(self, what: str, write: Callable[[], object]) -> None:
        """Write one file, or warn."""
        try:
            write()
        except Exception as error:
            # A full disk or a broken font must not keep the status from being uploaded.
            self._warn(f"{self._folder / what} cannot be written: {error}.")

    def _draw(self, reports: list[Report], run: RunInfo) -> None:
        panels = panels_of(history_of((one.step, one.metrics) for one in reports))
        if not panels:
            return
        file = self._folder / "plots" / "learning_curve.png"
        options = run.config.run
        subtitle = (
            f"{options.algorithm} on {run.environment}, seed {options.seed}, "
            f"{run.steps:,} environment steps"
        )
        draw_curve(panels, self._run_name, subtitle, file)

    def _write_traceback(self, text: str) -> None:
        file = self._folder / "logs" / "traceback.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def _tags(
        self, listener: TrackingListener, status: Status, reports: list[Report]
    ) -> dict[str, str]:
        tags = {
            "rlplug.stop_reason": listener.stop_reason(status)[:LONGEST_TAG],
            "rlplug.stopped_at_step": str(listener.step),
        }
        error = ""
        if listener.error is not None and status == "FAILED":
            text = f"{type(listener.error).__name__}: {listener.error}"
            error = "\n".join(without_secrets(text).strip().splitlines()[-20:])
            tags["rlplug.error"] = error[:LONGEST_TAG]
        if self._writer.reports.first_nonfinite_step is not None:
            tags["rlplug.nonfinite_step"] = str(self._writer.reports.first_nonfinite_step)
        if listener.run is not None:
            latest = {name: x for report in reports for name, x in report.metrics.items()}
            run = RunFolder.read(self._folder)
            about = RunAbout() if run is None else run.about
            note = summary(listener.run, about, status, listener.step, latest, error)
            tags["mlflow.note.content"] = note[:LONGEST_TAG]
        return tags
