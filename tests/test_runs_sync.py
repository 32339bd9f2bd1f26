"""Runs whose process died are shown as such, and ended by `rlplug runs sync`; others are not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rlplug.config.sections import RunConfig, RunSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
from rlplug.tracking.status import RunStatus

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tests.conftest import Outcome
    from tests.warm import Warm

Command = Callable[..., "Outcome"]
Kill = Callable[..., Path]


@pytest.fixture
def client(store_root: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")


def config() -> RunConfig:
    return RunConfig(run=RunSection(algorithm="none", steps=40), algorithm=NoOptions())


def elsewhere(folder: Path, seconds_ago: float) -> None:
    """Make a run one of another host, which was last heard of that long ago."""
    (folder / "run.lock.json").write_text('{"host": "another-host", "pid": 7}')
    moment = time.time() - seconds_ago
    for name in ("run.lock.json", "metrics.jsonl"):
        os.utime(folder / name, (moment, moment))


def test_a_killed_run_is_ended_and_what_its_journal_holds_is_uploaded(
    rlplug: Command, killed: Kill, client: MlflowClient
) -> None:
    folder = killed()
    (folder / "checkpoints" / ".unfinished-step-000000000040-7").mkdir(parents=True)
    whole = folder / "checkpoints" / "step-000000000020"
    whole.mkdir()
    (whole / "manifest.json").write_text("{}")
    (folder / "status.json.new-7").write_text("{")
    assert client.get_run(folder.name).info.status == "RUNNING"

    told = rlplug("runs", "sync")
    assert told.code == 0
    assert f"run {folder.name} (none-Nowhere-v0-s0) died at step 40: it is FAILED." in told.out
    # Two values of "a", each with the count of values that are not finite.
    assert "4 metric values and 1 file uploaded." in told.out
    run = client.get_run(folder.name)
    assert run.info.status == "FAILED"
    assert run.data.tags["rlplug.stop_reason"] == "process died"
    assert run.data.tags["rlplug.stopped_at_step"] == "40"
    assert "rlplug.pending_upload" not in run.data.tags
    points = client.get_metric_history(folder.name, "a")
    assert [(one.step, one.value) for one in points] == [(s, float(s)) for s in (10, 20, 30, 40)]
    there = client.list_artifacts(folder.name, "checkpoints")
    assert [one.path for one in there] == ["checkpoints/step-000000000020"]
    status = RunStatus.read(folder)
    assert status is not None
    assert (status.status, status.stop_reason, status.step) == ("FAILED", "process died", 40)
    assert [one.name for one in (folder / "checkpoints").iterdir()] == [whole.name]
    assert not list(folder.glob("*.new-*"))
    again = rlplug("runs", "sync")
    assert again.out == f"everything in {folder.parent.parent} is in MLflow.\n"


def test_that_a_run_has_died_is_read_from_its_lock_and_not_written(
    rlplug: Command, killed: Kill, client: MlflowClient
) -> None:
    folder = killed()
    before = (folder / "status.json").read_text()
    _, row, hint = rlplug("runs").out.splitlines()
    assert row.split("  ")[2] == "FAILED (process died)"
    short = folder.name[:8]
    assert hint == f"{short} is not complete in MLflow: rlplug runs sync {short}"
    told = rlplug("runs", "--json")
    assert told.err == ""
    (facts,) = [json.loads(line) for line in told.out.splitlines()]
    assert (facts["run_id"], facts["status"], facts["step"]) == (folder.name, "FAILED", 40)
    assert (facts["reason"], facts["pending"]) == ("process died", True)
    assert "FAILED (process died)" in rlplug("show", short).out
    assert (folder / "status.json").read_text() == before
    assert client.get_run(folder.name).info.status == "RUNNING"


def test_a_run_of_another_host_is_stale_after_a_quarter_of_an_hour_and_changed_by_force_only(
    rlplug: Command, killed: Kill
) -> None:
    folder = killed()
    for seconds_ago, word in ((10 * 60, "RUNNING"), (20 * 60, "stale")):
        elsewhere(folder, seconds_ago)
        assert rlplug("runs").out.splitlines()[1].split()[2] == word
        assert "everything" in rlplug("runs", "sync").out
    elsewhere(folder, 10 * 60)
    assert "everything" in rlplug("runs", "sync", "--force").out
    elsewhere(folder, 20 * 60)
    assert f"run {folder.name}" in rlplug("runs", "sync", "--force").out


def test_a_run_that_was_killed_while_it_closed_keeps_the_status_that_it_had_set(
    rlplug: Command, store_root: Path, client: MlflowClient, warm: Warm
) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from rlplug.config.sections import RunConfig, RunSection\n"
        "from rlplug.plugin import NoOptions\n"
        "from rlplug.tracking import open_tracking\n"
        "config = RunConfig(run=RunSection(algorithm='none'), algorithm=NoOptions())\n"
        "tracking = open_tracking(config, environment='N-v0', root=Path(sys.argv[1]))\n"
        "print(tracking.run_id, flush=True)\n"
        "while not (tracking.folder / 'close').exists():\n"
        "    time.sleep(0.01)\n"
        "tracking.close('FINISHED')\n"
    )
    child = warm.start(str(store_root), code=code)
    while not child.out.endswith("\n"):
        assert child.poll() is None, child.err
        time.sleep(0.01)
    folder = store_root / "work" / child.out.strip()
    with contextlib.closing(sqlite3.connect(store_root / "mlflow.db")) as database:
        # MLflow waits for it, and so does closing.
        database.execute("BEGIN EXCLUSIVE")
        (folder / "close").touch()
        while '"FINISHED"' not in (folder / "status.json").read_text():
            time.sleep(0.01)
        child.kill()
        child.wait()
    half_written = folder / f"status.json.new-{child.pid}"
    half_written.touch()
    assert client.get_run(folder.name).info.status == "RUNNING"
    assert rlplug("runs", "sync").code == 0
    assert client.get_run(folder.name).info.status == "FINISHED"
    assert not half_written.exists()
    assert rlplug("runs").out.splitlines()[1].split()[2] == "FINISHED"


def test_listing_runs_of_which_none_has_died_imports_neither_mlflow_nor_torch(
    store_root: Path,
) -> None:
    open_tracking(config(), environment="Nowhere-v0", root=store_root).close("FINISHED")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rlplug.tracking.reading import recorded_runs\n"
        "recorded_runs(Path(sys.argv[1]))\n"
        "print(sorted({'mlflow', 'torch', 'filelock', 'gymnasium'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code, str(store_root)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "[]\n"


def test_a_dead_run_whose_store_is_away_is_ended_here_and_uploaded_later(
    rlplug: Command, killed: Kill, store_root: Path, client: MlflowClient
) -> None:
    folder = killed()
    (store_root / "mlflow.db").rename(store_root / "away.db")
    told = rlplug("runs", "sync")
    assert told.code == 1
    assert "does not exist" in told.err
    listed = rlplug("runs").out.splitlines()
    assert listed[1].split()[2] == "FAILED"
    short = folder.name[:8]
    assert listed[2] == f"{short} is not complete in MLflow: rlplug runs sync {short}"
    (store_root / "away.db").rename(store_root / "mlflow.db")
    told = rlplug("runs", "sync", short)
    assert (told.code, told.err) == (0, "")
    assert client.get_run(folder.name).info.status == "FAILED"
    assert len(client.get_metric_history(folder.name, "a")) == 4


def test_a_run_that_is_killed_while_mlflow_is_opened_is_shown_and_ended(
    rlplug: Command, store_root: Path, client: MlflowClient, warm: Warm
) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "import mlflow\n"
        "from rlplug.config.sections import RunConfig, RunSection\n"
        "from rlplug.plugin import NoOptions\n"
        "from rlplug.tracking import open_tracking\n"
        # It has created the run, and not described it.
        "mlflow.MlflowClient.log_batch = lambda *one, **more: os.kill(os.getpid(), 9)\n"
        "config = RunConfig(run=RunSection(algorithm='none'), algorithm=NoOptions())\n"
        "open_tracking(config, environment='N-v0', root=Path(sys.argv[1]))\n"
    )
    assert warm.start(str(store_root), code=code).wait() == -signal.SIGKILL
    experiments = [one.experiment_id for one in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    assert run.info.status == "RUNNING"
    (folder,) = (store_root / "work").glob("*/")
    _, row, _ = rlplug("runs").out.splitlines()
    assert row.startswith(folder.name[:8])
    assert "FAILED (process died)" in row
    told = rlplug("runs", "sync")
    assert (told.code, told.err) == (0, "")
    (run,) = client.search_runs(experiments)
    assert (run.info.status, run.data.params["run.algorithm"]) == ("FAILED", "none")
    assert rlplug("runs", "sync").out.startswith("everything in ")
