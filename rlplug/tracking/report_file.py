"""What is written of a run for review: its curve, its report, and the ranking of checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from rlplug.durable import write_durably
from rlplug.review.history import RunDetails
from rlplug.review.plots import curve_panels, draw, save
from rlplug.review.provenance import read_provenance
from rlplug.review.record import RunRecord
from rlplug.review.report import REPORT, checkpoints_text, render
from rlplug.tracking.artifacts import CHECKPOINTS, RANKING
from rlplug.tracking.details import read_details
from rlplug.tracking.location import RunFolder
from rlplug.tracking.recorded import read_record

CURVE = "plots/learning_curve.png"
CURVE_SECONDS = 60.0
"""While a run is in progress, its curve is drawn at most this often: it takes time from it."""


class ReportFile:
    """Writes curve and report of a run from what is in its folder."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()
        self._drawn = time.monotonic()

    def write_soon(self, before: Callable[[], None]) -> None:
        """Write it in a thread, after a call of `before`; not while one is being written."""
        if self._thread is None or not self._thread.is_alive():

            def write() -> None:
                before()
                self.write(draw_curve=time.monotonic() - self._drawn > CURVE_SECONDS)

            self._thread = threading.Thread(target=write, name="rlplug-report", daemon=True)
            self._thread.start()

    def write(self, *, draw_curve: bool = True) -> None:
        """Write it now, with a new curve or the one that is there, or warn."""
        file = self._folder / REPORT
        try:
            with self._writing:
                folder = RunFolder.read(self._folder)
                if folder is None:
                    return
                run = read_record(folder)
                details = read_details(run)
                panels = curve_panels(details.history) if draw_curve else ()
                if panels:
                    self._drawn = time.monotonic()
                    save(draw(panels, run.name, _subtitle(run)), self._folder / CURVE)
                write_durably(file, report_of(run, details, self._folder).encode())
                self._rank(checkpoints_text(run, details) if details.checkpoints else "")
        except Exception as error:
            # A full disk or a broken font must not keep the status from being uploaded.
            self._warn(f"{file} cannot be written: {error}.")

    def _rank(self, text: str) -> None:
        """Say which checkpoint is which where they are: their folders have only steps."""
        file = self._folder / CHECKPOINTS / RANKING
        if text and not (file.is_file() and file.read_text() == text):
            write_durably(file, text.encode())


def report_of(run: RunRecord, details: RunDetails, folder: Path) -> str:
    """The report of a run, with the pictures in its folder."""
    provenance = read_provenance(folder)
    videos = sorted(folder.glob("videos/best-step-*")) or sorted(folder.glob("videos/last-step-*"))
    texts = {"all options": "config.toml", "what differs from the run it is like": "like.txt"}
    pictures = {"Curve": folder / CURVE}
    if videos:
        pictures[f"Video of one greedy episode, {videos[-1].name}"] = videos[-1]
    return render(
        run,
        details,
        machine={} if provenance is None else provenance.facts(),
        texts={
            title: (folder / name).read_text()
            for title, name in texts.items()
            if (folder / name).is_file()
        },
        pictures=pictures,
    )


def _subtitle(run: RunRecord) -> str:
    about = run.about
    how_far = "in progress" if run.status == "RUNNING" else f"{about.steps:,} environment steps"
    return f"{about.algorithm} on {about.env}, seed {about.seed}, {how_far}"
