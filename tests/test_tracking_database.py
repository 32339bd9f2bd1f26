"""The database of a store is created whole or not at all, whenever the process is killed."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from rlplug.config.sections import RunConfig, RunSection
from rlplug.errors import RequestError
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


def change(database: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute(statement)
        connection.commit()


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
    assert not (root / "mlflow.db").stat().st_size
    tracking = start(root)
    tracking.close("FINISHED")
    assert _unfinished(root) == []
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        assert database.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)]


def _unfinished(root: Path) -> list[Path]:
    """Databases that are being created, without SQLite's journals."""
    found = root.glob("mlflow.db.creating-*")
    return [one for one in found if not one.name.endswith("journal")]


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE _alembic_tmp_metrics (a)", "DELETE FROM alembic_version"]
)
def test_a_database_whose_creation_was_interrupted_is_known_and_the_advice_helps(
    statement: str, root: Path, empty_store: Path
) -> None:
    root.mkdir()
    shutil.copy(empty_store, root / "mlflow.db")
    change(root / "mlflow.db", statement)
    with pytest.raises(RequestError, match="its creation was interrupted") as told:
        start(root)
    assert told.value.message.endswith("It holds no runs.")
    (hint,) = told.value.hints
    subprocess.run(shlex.split(hint.removeprefix("try: ")), check=True)
    shutil.copy(empty_store, root / "mlflow.db")
    start(root).close("FINISHED")


def test_a_database_with_runs_is_not_to_be_moved_away(root: Path, empty_store: Path) -> None:
    root.mkdir()
    shutil.copy(empty_store, root / "mlflow.db")
    start(root).close("FINISHED")
    change(root / "mlflow.db", "CREATE TABLE _alembic_tmp_metrics (a)")
    with pytest.raises(RequestError, match="its upgrade was interrupted") as told:
        start(root)
    assert "mv " not in told.value.hints[0]
