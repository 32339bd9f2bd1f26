"""The files of a group: its table as JSON and Markdown, and its band."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlplug.durable import write_durably
from rlplug.review.band import draw_band
from rlplug.review.metrics_text import curve_metric
from rlplug.runs.seeds.group import Group
from rlplug.runs.seeds.summary import Summary
from rlplug.tracking.details import read_history

__all__ = ["draw", "write_files"]

REGRET = "rollout/regret_total"
"""Of bandits it says more than the reward of single steps."""

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
    """Draw the mean curve of the seeds that have finished, with its interval."""
    histories = [read_history(run) for run in summary.finished]
    names = {name for one in histories for name in one}
    name = REGRET if REGRET in names else curve_metric(histories[0])
    about = summary.finished[0].about
    subtitle = (
        f"{about.algorithm} on {about.env}, {about.steps:,} environment steps, "
        f"seeds {summary.seeds}, 95% intervals"
    )
    curves = [one[name] for one in histories if name in one]
    draw_band({about.algorithm: curves}, summary.group, subtitle, file, name=name)
