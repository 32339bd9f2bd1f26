"""The files of a group: its table as JSON and Markdown, and its band."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlplug.durable import write_durably
from rlplug.runs.seeds.band import TITLES, Curves, bands_of, draw_bands
from rlplug.runs.seeds.group import Group
from rlplug.runs.seeds.summary import Summary
from rlplug.tracking.journal import read_journal

__all__ = ["draw", "write_files"]

_LOG = logging.getLogger("rlplug")


def write_files(summary: Summary, group: Group) -> list[Path]:
    """Write the files into the folder of the group; what fails is warned of."""
    folder = group.folder
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(summary.as_json(), indent=2) + "\n"
    files = {
        "summary.json": partial(write_durably, folder / "summary.json", content.encode()),
        "summary.md": partial(write_durably, folder / "summary.md", summary.markdown().encode()),
        "band.png": partial(draw, summary, folder / "band.png"),
    }
    return [folder / name for name, write in files.items() if _written(folder / name, write)]


def _written(file: Path, write: Callable[[], object]) -> bool:
    try:
        write()
    except Exception as error:
        # A full disk or a broken font takes nothing else with it.
        _LOG.warning("rlplug: %s cannot be written: %s.", file, error)
        return False
    return file.exists()


def draw(summary: Summary, file: Path) -> None:
    """Draw the curves of the seeds that have finished."""
    folders = [run.folder for run in summary.finished if run.folder is not None]
    bands = bands_of([_curves(folder / "metrics.jsonl") for folder in folders])
    if not bands:
        return
    about = summary.finished[0].about
    subtitle = (
        f"{about.algorithm} on {about.env}, {about.steps:,} environment steps, seeds "
        f"{summary.seeds}: interquartile mean, 95 % interval, and each seed"
    )
    draw_bands(bands, summary.group, subtitle, file)


def _curves(journal: Path) -> Curves:
    curves: dict[str, list[tuple[int, float]]] = {}
    with contextlib.suppress(OSError):
        for report in read_journal(journal):
            for name, value in report.metrics.items():
                if name in TITLES:
                    curves.setdefault(name, []).append((report.step, value))
    return curves
