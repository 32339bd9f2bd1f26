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
from rlplug.tracking.details import read_details
from rlplug.tracking.location import RunFolder
from rlplug.tracking.reading import read_record
from rlplug.tracking.store import CHECKPOINTS
from rlplug.tracking.sync import RANKING

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
        file, ranking = self._folder / REPORT, self._folder / CHECKPOINTS / RANKING
        try:
            with self._writing:
                folder = RunFolder.read(self._folder)
                if folder is None:
                    return
                run, about = read_record(folder), folder.about
                details = read_details(run)
                panels = curve_panels(details.history) if draw_curve else ()
                if panels:
                    self._drawn = time.monotonic()
                    far = "in progress" if run.status == "RUNNING" else f"{about.steps:,} steps"
                    subtitle = f"{about.algorithm} on {about.env}, seed {about.seed}, {far}"
                    save(draw(panels, run.name, subtitle), self._folder / CURVE)
                write_durably(file, report_of(run, details, self._folder).encode())
                text = checkpoints_text(run, details) if details.checkpoints else ""
                # Another time would have it uploaded again.
                if text and not (ranking.is_file() and ranking.read_text() == text):
                    write_durably(ranking, text.encode())
        except Exception as error:
            # A full disk or a broken font must not keep the status from being uploaded.
            self._warn(f"{file} cannot be written: {error}.")


def report_of(run: RunRecord, details: RunDetails, folder: Path) -> str:
    """The report of a run, with the pictures in its folder."""
    provenance = read_provenance(folder)
    videos = sorted(folder.glob("videos/best-step-*")) or sorted(folder.glob("videos/last-step-*"))
    texts = {"all options": "config.toml", "what differs from the run it is like": "like.txt"}
    pictures = {"Curve": folder / CURVE}
    if videos:
        pictures[f"Video of one greedy episode, {videos[-1].name}"] = videos[-1]
    known = {title: folder / name for title, name in texts.items()}
    return render(
        run,
        details,
        machine={} if provenance is None else provenance.facts(),
        texts={title: file.read_text() for title, file in known.items() if file.is_file()},
        pictures=pictures,
    )
