"""`report.html` of a run, and the ranking beside its checkpoints; written after evaluations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlplug.durable import write_durably
from rlplug.review.provenance import Provenance, read_provenance
from rlplug.review.report import REPORT, ReportedRun, checkpoints_text, write_report
from rlplug.tracking.artifacts import CHECKPOINTS, RANKING
from rlplug.tracking.details import read_details
from rlplug.tracking.location import RunFolder
from rlplug.tracking.recorded import read_record

__all__ = ["ReportFile", "reported_run"]


class ReportFile:
    """Writes the report of a run from what is in its folder."""

    def __init__(
        self, folder: Path, written: Callable[[Path, str], None], warn: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._written = written
        self._warn = warn
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()

    def write_soon(self, before: Callable[[], None]) -> None:
        """Write it in a thread, after a call of `before`; not while one is being written."""
        if self._thread is None or not self._thread.is_alive():
            job = partial(self._write_after, before)
            self._thread = threading.Thread(target=job, name="rlplug-report", daemon=True)
            self._thread.start()

    def write(self) -> None:
        """Write it now, or warn."""
        file = self._folder / REPORT
        try:
            with self._writing:
                run = RunFolder.read(self._folder)
                if run is not None:
                    reported = reported_run(run)
                    write_report(file, [reported])
                    self._rank(reported)
        except Exception as error:
            # A full disk must not keep the status from being uploaded.
            self._warn(f"{file} cannot be written: {error}.")
        else:
            self._written(file, "")

    def _rank(self, reported: ReportedRun) -> None:
        """Say which checkpoint is which where they are: their folders have only steps."""
        file = self._folder / CHECKPOINTS / RANKING
        text = checkpoints_text(reported)
        known = file.read_text() if file.is_file() else ""
        if reported.checkpoints and text != known:
            write_durably(file, text.encode())
            self._written(file, CHECKPOINTS)

    def _write_after(self, before: Callable[[], None]) -> None:
        before()
        self.write()


def reported_run(folder: RunFolder) -> ReportedRun:
    """What the folder of a run says of it, for its report."""
    run = read_record(folder)
    details = read_details(run)
    videos = folder.path / "videos"
    recorded = sorted(videos.glob("best-step-*")) or sorted(videos.glob("last-step-*"))
    league = folder.path / "plots" / "league.png"
    config = folder.path / "config.toml"
    made_of = read_provenance(folder.path)
    return ReportedRun(
        run=run,
        history=details.history,
        plugins=details.plugins,
        checkpoints=details.checkpoints,
        machine={} if made_of is None else _machine(made_of),
        command=details.command,
        config=config.read_text() if config.is_file() else "",
        video=recorded[-1] if recorded else None,
        league=league if league.is_file() else None,
    )


def _machine(made_of: Provenance) -> dict[str, str]:
    """The machine, the versions of what results depend on, and the commit of the code."""
    versions = (f"{name} {text}" for name, text in made_of.versions.items() if "source" not in name)
    facts = {
        **made_of.machine,
        "versions": ", ".join(one for one in versions if not one.endswith(" ")),
        "git commit": made_of.code.get("commit", ""),
    }
    return {name: text for name, text in facts.items() if text}
