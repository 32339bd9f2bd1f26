"""A disk that is full at the end of a run: what is said is true, and MLflow has everything."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
from rlplug.tracking.reading import recorded_runs
from rlplug.tracking.status import RunStatus


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room that is left."""
    file = disk / "ballast"
    with file.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(b"\0" * 4096) == 4096:
            pass
    return file


@pytest.mark.parametrize("enabled", [True, False])
def test_a_full_disk_at_the_end_loses_no_status_and_what_is_lost_is_said(
    enabled: bool, small_disk: Path, tmp_path: Path, empty_store: Path
) -> None:
    from mlflow import MlflowClient

    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    config = RunConfig(
        run=RunSection(algorithm="none"),
        algorithm=NoOptions(),
        tracking=TrackingSection(uri=uri, enabled=enabled),
    )
    said: list[str] = []
    root = small_disk / "runs"
    tracking = open_tracking(config, environment="Nowhere-v0", root=root, warn=said.append)
    tracking.listener.metrics_reported(10, {"a": 1.0})
    tracking.write_journal()
    ballast = fill(small_disk)
    for step in range(20, 2020):
        tracking.listener.metrics_reported(step, {"a": 1.0, "b": 2.0})
    tracking.listener.run_finished(2020)
    tracking.close()

    assert "metrics.jsonl cannot be written (No space left on device)" in said[0]
    assert not any("The values are in" in line for line in said)
    status = RunStatus.read(tracking.folder)
    assert status is not None
    assert (status.status, status.step) == ("FINISHED", 2020)
    if enabled:
        run = MlflowClient(uri).get_run(tracking.run_id)
        assert run.info.status == "FINISHED"
        history = MlflowClient(uri).get_metric_history(tracking.run_id, "a")
        assert [point.step for point in history] == [10, *range(20, 2020)]
        assert not any("lost" in line for line in said)
    else:
        assert any(line.startswith("4,000 metric values are lost") for line in said)
    ballast.unlink()
    (row,) = recorded_runs(root)
    assert row.status == "FINISHED"
