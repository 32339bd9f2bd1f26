"""Artifacts for reviewing a run: learning curve, summary, traceback and final status."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlplug.hooks.events import RunInfo
from rlplug.tracking.curve import draw_curve, panels_of
from rlplug.tracking.journal import Report, read_journal
from rlplug.tracking.listener import TrackingListener
from rlplug.tracking.location import without_secrets
from rlplug.tracking.record import LONGEST_TAG
from rlplug.tracking.store import Store
from rlplug.tracking.summary import summary
from rlplug.tracking.writer import Writer

__all__ = ["REASONS", "Review"]

REASONS = {"FINISHED": "finished", "FAILED": "error", "KILLED": "interrupted"}


class Review:
    """Writes the final files of a run and has the writer upload them."""

    def __init__(
        self,
        run_name: str,
        folder: Path,
        store: Store | None,
        writer: Writer,
        warn: Callable[[str], None],
    ) -> None:
        self._run_name = run_name
        self._folder = folder
        self._store = store
        self._writer = writer
        self._warn = warn

    def conclude(self, listener: TrackingListener, status: str) -> None:
        """Write the files and queue their upload, the run's final status last."""
        reports = self._reports()
        files = []
        if listener.run is not None:
            files += self._write("plots", partial(self._draw, reports, listener.run))
        if status == "FAILED" and listener.traceback:
            files += self._write("logs", partial(self._write_traceback, listener.traceback))
        store = self._store
        if store is None:
            return
        for file in files:
            self._writer.do(partial(store.log_file, file, file.parent.name))
        self._writer.do(partial(store.set_tags, self._tags(listener, status, reports)))
        self._writer.do(partial(store.terminate, status))

    def _reports(self) -> list[Report]:
        try:
            return list(read_journal(self._folder / "metrics.jsonl"))
        except OSError as error:
            self._warn(f"the journal cannot be read: {error.strerror or error}.")
            return []

    def _write(self, what: str, write: Callable[[], Path | None]) -> list[Path]:
        """Write one file; a list of it, empty if there is none."""
        try:
            file = write()
        except Exception as error:
            # A full disk or a broken font must not keep the status from being uploaded.
            self._warn(f"{self._folder / what} cannot be written: {error}.")
            return []
        return [] if file is None else [file]

    def _draw(self, reports: list[Report], run: RunInfo) -> Path | None:
        panels = panels_of(reports)
        if not panels:
            return None
        file = self._folder / "plots" / "learning_curve.png"
        options = run.config.run
        subtitle = (
            f"{options.algorithm} on {run.environment}, seed {options.seed}, "
            f"{run.steps:,} environment steps"
        )
        draw_curve(panels, self._run_name, subtitle, file)
        return file

    def _write_traceback(self, text: str) -> Path:
        file = self._folder / "logs" / "traceback.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    def _tags(
        self, listener: TrackingListener, status: str, reports: list[Report]
    ) -> dict[str, str]:
        tags = {
            "rlplug.stop_reason": REASONS[status],
            "rlplug.stopped_at_step": str(listener.step),
        }
        error = ""
        if listener.error is not None and status == "FAILED":
            text = f"{type(listener.error).__name__}: {listener.error}"
            error = "\n".join(without_secrets(text).strip().splitlines()[-20:])
            tags["rlplug.error"] = error[:LONGEST_TAG]
        if self._writer.first_nonfinite_step is not None:
            tags["rlplug.nonfinite_step"] = str(self._writer.first_nonfinite_step)
        if listener.run is not None:
            latest = {name: x for report in reports for name, x in report.metrics.items()}
            note = summary(listener.run, status, listener.step, latest, error)
            tags["mlflow.note.content"] = note[:LONGEST_TAG]
        return tags
