"""`logs/run.log`: what a run said is kept with it, and still shown where it was shown before."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.run_log import RunLog

QUIET = """
import logging, sys
from pathlib import Path
from rlplug.tracking.run_log import RunLog
first, second = RunLog(Path(sys.argv[1])), RunLog(Path(sys.argv[1]) / "other")
logging.getLogger("rlplug").warning("shown %d time", 1)
logging.getLogger("rlplug").info("not shown")
first.close()
second.close()
"""


def start(root: Path, **more: object) -> Tracking:
    config = RunConfig(
        run=RunSection(algorithm="none"),
        algorithm=NoOptions(),
        tracking=TrackingSection(enabled=False),
    )
    return open_tracking(config, environment="Nowhere-v0", root=root, **more)  # type: ignore[arg-type]


def words(folder: Path) -> list[str]:
    """The lines of the log, without the time."""
    lines = (folder / "logs" / "run.log").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines]


def test_the_log_has_the_start_the_warnings_the_end_and_what_followed(tmp_path: Path) -> None:
    tracking = start(tmp_path)
    logging.getLogger("rlplug").warning("rlplug: no %s", "video")
    tracking.listener.run_finished(40)
    tracking.close()
    run = f"run {tracking.run_id}"
    started, warning, ended = words(tracking.folder)
    assert started.startswith(f"INFO {run} (none-Nowhere-v0-s0) started: ")
    assert warning == "WARNING rlplug: no video"
    assert ended == f"INFO {run} ended at step 40: FINISHED"
    start(tmp_path, resume=tracking.folder, step=40).close("KILLED")
    _, _, _, again, _ = words(tracking.folder)
    assert " continued at step 40, attempt 2: " in again
    # A log that is closed hears nothing more.
    logging.getLogger("rlplug").warning("later")
    assert len(words(tracking.folder)) == 5


def test_a_warning_is_still_printed_once_where_nothing_else_shows_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    command = [sys.executable, "-c", QUIET, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "shown 1 time\n"
    assert words(tmp_path) == words(tmp_path / "other") == ["WARNING shown 1 time"]


def test_a_log_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.log").symlink_to("/dev/full")
    log = RunLog(tmp_path)
    log.write("INFO", "lost")
    log.close()
