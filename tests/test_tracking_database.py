"""The database of a store is created whole or not at all, whenever the process is killed."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest

from rlplug.config.sections import RunConfig, RunSection
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking
from tests.warm import Warm

OPEN = """
import sys
from pathlib import Path
from rlplug.config.sections import RunConfig, RunSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
config = RunConfig(run=RunSection(algorithm="none"), algorithm=NoOptions())
open_tracking(config, environment="Nowhere-v0", root=Path(sys.argv[1])).close("FINISHED")
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "all runs"


def start(root: Path) -> Tracking:
    config = RunConfig(run=RunSection(algorithm="none"), algorithm=NoOptions())
    return open_tracking(config, environment="Nowhere-v0", root=root)


def test_a_process_that_is_killed_while_it_creates_the_database_breaks_nothing(
    root: Path, empty_store: Path, warm: Warm
) -> None:
    child = warm.start(str(root), code=OPEN)
    try:
        # Amid the migrations: the file has half of its final size.
        half = empty_store.stat().st_size / 2
        while max((one.stat().st_size for one in _unfinished(root)), default=0) < half:
            assert child.poll() is None, "the child was to be killed before it was done"
            time.sleep(0.002)
    finally:
        child.kill()
        child.wait()
    assert _unfinished(root)
    assert not (root / "mlflow.db").exists()
    tracking = start(root)
    tracking.close("FINISHED")
    assert _unfinished(root) == []
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        assert database.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)]


def _unfinished(root: Path) -> list[Path]:
    """Databases that are being created, without SQLite's journals."""
    found = root.glob("mlflow.db.creating-*")
    return [one for one in found if not one.name.endswith("journal")]


def test_processes_that_start_together_in_an_empty_folder_all_succeed(
    root: Path, warm: Warm
) -> None:
    children = [warm.start(str(root), code=OPEN) for _ in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        names = {name for (name,) in database.execute("SELECT name FROM runs")}
    assert names == {f"none-Nowhere-v0-s0{end}" for end in ("", "-2", "-3", "-4")}
