"""What is written at the end of a run: learning curve, report, traceback and final tags."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlplug.hooks.events import RunInfo
from rlplug.review.curve import draw_curve, panels_of
from rlplug.review.history import history_of
from rlplug.review.record import RunAbout
from rlplug.tracking.journal import JOURNAL, Report, read_journal
from rlplug.tracking.listener import Status, TrackingListener
from rlplug.tracking.location import RunFolder, without_secrets
from rlplug.tracking.record import LONGEST_TAG
from rlplug.tracking.status import TAGS, add_tags, kept_tags
from rlplug.tracking.summary import summary

__all__ = ["write_curve", "write_end"]

_LONGEST_ERROR = 20
"""Lines of an error that are recorded: the last ones."""


def write_end(
    folder: Path,
    listener: TrackingListener,
    status: Status,
    nonfinite_step: int | None,
    warn: Callable[[str], None],
) -> dict[str, str]:
    """Write the traceback and the final tags, and return all tags."""
    tags = {
        "rlplug.stop_reason": listener.stop_reason(status)[:LONGEST_TAG],
        "rlplug.stopped_at_step": str(listener.step),
    }
    error = ""
    if listener.error is not None and status == "FAILED":
        text = f"{type(listener.error).__name__}: {listener.error}"
        error = "\n".join(without_secrets(text).strip().splitlines()[-_LONGEST_ERROR:])
        tags["rlplug.error"] = error[:LONGEST_TAG]
        _try(warn, folder / "logs", partial(_write_traceback, folder, listener.traceback))
    if nonfinite_step is not None:
        tags["rlplug.nonfinite_step"] = str(nonfinite_step)
    if listener.run is not None:
        latest = {name: x for report in _reports(folder) for name, x in report.metrics.items()}
        run = RunFolder.read(folder)
        about = RunAbout() if run is None else run.about
        note = summary(listener.run, about, status, listener.step, latest, error)
        tags["mlflow.note.content"] = note[:LONGEST_TAG]
    _try(warn, folder / TAGS, partial(add_tags, folder, tags))
    return {**kept_tags(folder), **tags}


def write_curve(folder: Path, name: str, run: RunInfo, warn: Callable[[str], None]) -> None:
    """Draw the learning curve, or warn."""

    def draw() -> None:
        panels = panels_of(history_of((one.step, one.metrics) for one in _reports(folder)))
        options = run.config.run
        subtitle = (
            f"{options.algorithm} on {run.environment}, seed {options.seed}, "
            f"{run.steps:,} environment steps"
        )
        if panels:
            draw_curve(panels, name, subtitle, folder / "plots" / "learning_curve.png")

    _try(warn, folder / "plots", draw)


def _reports(folder: Path) -> list[Report]:
    try:
        return list(read_journal(folder / JOURNAL))
    except OSError:
        return []


def _write_traceback(folder: Path, text: str) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "traceback.txt").write_text(text)


def _try(warn: Callable[[str], None], place: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except Exception as error:
        # A full disk or a broken font must not keep the status from being uploaded.
        warn(f"{place} cannot be written: {error}.")
