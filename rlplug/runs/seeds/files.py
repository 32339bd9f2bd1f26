"""The files of a group: its table as JSON and Markdown, its band, its report."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlplug.durable import write_durably
from rlplug.review.band import band_figure, draw_band
from rlplug.review.history import Series
from rlplug.review.metrics_text import curve_metric
from rlplug.review.record import REGRET
from rlplug.review.report import REPORT, render
from rlplug.runs.seeds.group import Group
from rlplug.runs.seeds.summary import Summary
from rlplug.tracking.details import read_history
from rlplug.tracking.location import RunFolder
from rlplug.tracking.report_file import reported_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot", "write_each", "write_files"]

BAND = "band.png"

_LOG = logging.getLogger("rlplug")


def write_files(summary: Summary, group: Group) -> list[Path]:
    """Write the files into the folder of the group; what fails is warned of."""
    folder = group.folder
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(summary.as_json(), indent=2) + "\n"
    files = {
        "summary.json": partial(write_durably, folder / "summary.json", content.encode()),
        "summary.md": partial(write_durably, folder / "summary.md", summary.markdown().encode()),
        BAND: partial(_draw, summary, folder / BAND),
        REPORT: partial(_report, summary, folder / REPORT),
    }
    return write_each(folder, files)


def write_each(folder: Path, files: Mapping[str, Callable[[], object]]) -> list[Path]:
    """Write the files of these names; what fails is warned of. Those that are there then."""
    return [folder / name for name, write in files.items() if _written(folder / name, write)]


def _written(file: Path, write: Callable[[], object]) -> bool:
    try:
        write()
    except Exception as error:
        # A full disk or a broken font takes nothing else with it.
        _LOG.warning("rlplug: %s cannot be written: %s.", file, error)
        return False
    return file.exists()


def plot(summary: Summary) -> Figure:
    """The mean curve of the seeds that have finished, with its interval."""
    name, curves = _curves(summary)
    return band_figure(curves, summary.group, _subtitle(summary), name=name)


def _draw(summary: Summary, file: Path) -> None:
    name, curves = _curves(summary)
    draw_band(curves, summary.group, _subtitle(summary), file, name=name)


def _report(summary: Summary, file: Path) -> None:
    found = [RunFolder.read(run.folder) for run in summary.finished if run.folder is not None]
    runs = [reported_run(run) for run in found if run is not None]
    pictures = {"Curve": file.with_name(BAND)}
    page = render(runs, title=summary.group, table=summary.html(), pictures=pictures)
    write_durably(file, page.encode())


def _curves(summary: Summary) -> tuple[str, dict[str, list[Series]]]:
    """The metric that tells how the runs went, and its curve in each."""
    histories = [read_history(run) for run in summary.finished]
    names = {name for one in histories for name in one}
    name = REGRET if REGRET in names else curve_metric(histories[0])
    algorithm = summary.finished[0].about.algorithm
    return name, {algorithm: [one[name] for one in histories if name in one]}


def _subtitle(summary: Summary) -> str:
    about = summary.finished[0].about
    return (
        f"{about.algorithm} on {about.env}, {about.steps:,} environment steps, "
        f"seeds {summary.seeds}, 95% intervals"
    )
