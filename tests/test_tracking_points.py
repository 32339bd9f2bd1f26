"""The way of metrics to MLflow: none is lost or there twice, and each trouble is said once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.journal import read_journal
from rlplug.tracking.status import RunStatus, kept_tags
from tests.proxy import Gate

if TYPE_CHECKING:
    from mlflow import MlflowClient


@pytest.fixture
def gate(served: str) -> Iterator[Gate]:
    made = Gate(int(served.rpartition(":")[2]))
    yield made
    made.close()


@pytest.fixture
def client(store_root: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")


def start(root: Path, said: list[str], **tracking: object) -> Tracking:
    config = RunConfig(
        run=RunSection(algorithm="none", steps=40),
        algorithm=NoOptions(),
        tracking=TrackingSection(git_diff=False, **tracking),  # type: ignore[arg-type]
    )
    return open_tracking(config, environment="Nowhere-v0", root=root, warn=said.append)


def points(client: MlflowClient, tracking: Tracking, name: str = "a") -> list[tuple[int, float]]:
    history = client.get_metric_history(tracking.run_id, name)
    return sorted((one.step, one.value) for one in history)


def wait_for(said: list[str], count: int = 1) -> None:
    deadline = time.monotonic() + 60
    while len(said) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_everything_reported_is_in_the_journal_and_once_in_mlflow(
    store_root: Path, client: MlflowClient
) -> None:
    said: list[str] = []
    tracking = start(store_root, said)
    metrics = {f"m{number}": 0.0 for number in range(10)}
    for step in range(250):
        metrics["a"] = float(step)
        tracking.listener.metrics_reported(step, metrics)
        if step == 100:
            # Parts of it are on their way when the rest is reported.
            tracking.listener.checkpoint_saved(step)
    metrics["a"] = -1.0
    tracking.close("FINISHED")
    assert points(client, tracking) == [(step, float(step)) for step in range(250)]
    assert len(client.get_metric_history(tracking.run_id, "m9")) == 250
    assert len(list(read_journal(tracking.folder / "metrics.jsonl"))) == 250
    assert (said, tracking.missing, tracking.lost) == ([], "", 0)


def test_the_journal_is_on_the_disk_before_mlflow_has_what_is_in_it(
    store_root: Path, synced: list[int]
) -> None:
    tracking = start(store_root, [])
    tracking.listener.metrics_reported(1, {"a": 1.0})
    tracking.write_journal()
    journal = tracking.folder / "metrics.jsonl"
    assert [one.step for one in read_journal(journal)] == [1]
    assert journal.stat().st_ino in synced
    tracking.close("FINISHED")


def test_a_value_that_mlflow_refuses_is_named_and_holds_up_no_other(
    gate: Gate, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    said: list[str] = []
    tracking = start(tmp_path, said, uri=gate.uri)
    tracking.listener.metrics_reported(1, {"a": 1.0})
    tracking.listener.metrics_reported(2, {"a": 2.0})
    gate.refused = b'"value": 1.0'
    tracking.close("FINISHED")
    assert points(MlflowClient(gate.uri), tracking) == [(2, 2.0)]
    assert len(said) == 1
    assert said[0].startswith("MLflow refused a=1.0 at step 1: ")


def test_a_run_that_is_deleted_in_mlflow_takes_no_more_metrics_which_is_said_once(
    store_root: Path, client: MlflowClient
) -> None:
    said: list[str] = []
    tracking = start(store_root, said)
    client.delete_run(tracking.run_id)
    for step in range(10):
        tracking.listener.metrics_reported(step, {"a": 1.0})
        tracking.listener.checkpoint_saved(step)
    wait_for(said)
    tracking.close("FINISHED")
    assert "accepts no more metrics" in said[0]
    assert said[1:] == [f"not in MLflow: 10 metric values and 2 files. To upload: {told(tracking)}"]
    assert len(list(read_journal(tracking.folder / "metrics.jsonl"))) == 10


def told(tracking: Tracking) -> str:
    return tracking.describe()[-1].partition(" files: ")[2]


def test_a_journal_that_can_be_written_again_gets_what_was_kept_in_memory(
    store_root: Path, client: MlflowClient
) -> None:
    said: list[str] = []
    tracking = start(store_root, said)
    journal = tracking.folder / "metrics.jsonl"
    aside = tracking.folder / "aside"
    journal.rename(aside)
    tracking.listener.metrics_reported(1, {"a": 1.0})
    wait_for(said)
    assert f"{journal} cannot be written" in said[0]
    # MLflow has it from memory.
    tracking.listener.checkpoint_saved(1)
    while not points(client, tracking):
        time.sleep(0.02)
    aside.rename(journal)
    tracking.listener.metrics_reported(2, {"a": 2.0})
    wait_for(said, 2)
    tracking.close("FINISHED")
    assert said[1:] == [f"the journal {journal} is writable again; nothing is lost."]
    assert [one.step for one in read_journal(journal)] == [1, 2]
    assert points(client, tracking) == [(1, 1.0), (2, 2.0)]
    assert (tracking.lost, tracking.missing) == (0, "")


def test_a_status_is_read_as_it_was_written_and_only_whole(tmp_path: Path) -> None:
    status = RunStatus(
        status="KILLED", step=7, stop_reason="i", started="s", ended="e", attempt=3, pending=True
    )
    status.write(tmp_path)
    assert RunStatus.read(tmp_path) == status
    # On a full disk, no second file can be made beside the first one.
    (tmp_path / f"status.json.new-{os.getpid()}").mkdir()
    RunStatus(status="FAILED", step=3).write(tmp_path)
    assert RunStatus.read(tmp_path) == RunStatus(status="FAILED", step=3)
    whole = json.loads((tmp_path / "status.json").read_text())
    damaged = ("", "[" * 100_000, "{}", "[]", json.dumps({**whole, "step": "7"}))
    for text in damaged:
        (tmp_path / "status.json").write_text(text)
        assert RunStatus.read(tmp_path) is None
        (tmp_path / "tags.json").write_text(text)
        assert not (kept_tags(tmp_path).keys() - whole.keys())
