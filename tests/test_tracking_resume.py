"""A run that goes on: in the same MLflow run and journal, without a point twice or lost."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.errors import RequestError
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.journal import read_journal
from rlplug.tracking.status import RunLock, RunStatus

if TYPE_CHECKING:
    from mlflow import MlflowClient

Open = Callable[..., Tracking]


@pytest.fixture
def root(store_root: Path) -> Path:
    return store_root


@pytest.fixture
def opened(root: Path) -> Iterator[Open]:
    """Open the tracking of a run; it is closed at the latest with the test."""
    made: list[Tracking] = []

    def start(config: RunConfig | None = None, **more: object) -> Tracking:
        one = open_tracking(
            config or config_of(),
            environment="Nowhere-v0",
            root=root,
            **more,  # type: ignore[arg-type]
        )
        made.append(one)
        return one

    yield start
    for tracking in made:
        tracking.close("FAILED")


@pytest.fixture
def client(root: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{root / 'mlflow.db'}")


def config_of(steps: int = 40, **tracking: object) -> RunConfig:
    return RunConfig(
        run=RunSection(algorithm="none", steps=steps),
        algorithm=NoOptions(),
        tracking=TrackingSection(**tracking),  # type: ignore[arg-type]
    )


def points(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in client.get_metric_history(run_id, name)]


def test_a_killed_run_goes_on_without_a_point_twice_or_lost(
    opened: Open, killed: Callable[[], Path], client: MlflowClient
) -> None:
    folder = killed()
    assert points(client, folder.name, "a") == [(10, 10.0), (20, 20.0)]
    before = RunStatus.read(folder)
    assert before is not None
    assert (before.status, before.attempt) == ("RUNNING", 1)

    (folder / "status.json.new-1").touch()
    left = [
        folder / "checkpoints" / "README.md.new-1",
        folder / "plots" / "learning_curve.png.new-1",
        folder / "videos" / ".new-best.mp4",
        folder / "profile" / ".writing-step.json.gz",
    ]
    for file in left:
        file.parent.mkdir(exist_ok=True)
        file.touch()

    tracking = opened(resume=folder, step=20, drift={"run.steps": "40 -> 60"})
    assert (tracking.run_id, tracking.folder) == (folder.name, folder)
    # From the checkpoint of step 20 on, steps 30 and 40 are done again.
    for step in (30, 40, 50):
        tracking.listener.metrics_reported(step, {"a": float(step), "c": float(step)})
    tracking.listener.run_finished(50)
    tracking.close()

    run = client.get_run(tracking.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["rlplug.attempt"] == "2"
    assert run.data.tags["rlplug.resumed_from_step"] == "20"
    assert json.loads(run.data.tags["rlplug.param_drift"]) == {"run.steps": "40 -> 60"}
    once = [(step, float(step)) for step in (10, 20, 30, 40, 50)]
    assert points(client, tracking.run_id, "a") == once
    # A metric that was not there before is new at every step.
    assert points(client, tracking.run_id, "c") == once[2:]
    steps = [one.step for one in read_journal(folder / "metrics.jsonl") if "a" in one.metrics]
    assert steps == [10, 20, 30, 40, 50]
    status = RunStatus.read(folder)
    assert status is not None
    assert (status.status, status.attempt, status.step) == ("FINISHED", 2, 50)
    assert status.started == before.started
    assert not list(folder.rglob("*.new-*"))
    assert not any(file.exists() for file in left)


def test_the_count_of_numbers_that_are_not_finite_goes_on(
    opened: Open, killed: Callable[[], Path], client: MlflowClient
) -> None:
    folder = killed()  # one NaN at step 10, one at step 20
    tracking = opened(resume=folder, step=10)
    for step in (20, 50):
        tracking.listener.metrics_reported(step, {"b": math.nan})
    tracking.close("FINISHED")
    reports = list(read_journal(folder / "metrics.jsonl"))
    counts = [one.metrics["train/nonfinite"] for one in reports if "b" in one.metrics]
    assert counts == [1, 2, 3]
    tags = client.get_run(tracking.run_id).data.tags
    assert tags["rlplug.nonfinite_step"] == "10"


def test_the_second_process_that_opens_a_run_is_refused_and_told_who_has_it(
    opened: Open, client: MlflowClient
) -> None:
    first = opened()
    with pytest.raises(RequestError, match=f"run {first.run_id} is in progress") as refused:
        opened(resume=first.folder)
    assert f"pid {os.getpid()} on " in refused.value.message
    assert client.get_run(first.run_id).data.tags["rlplug.attempt"] == "1"
    first.close("KILLED")
    assert opened(resume=first.folder).run_id == first.run_id


def test_the_old_options_are_kept_where_new_ones_differ(opened: Open) -> None:
    first = opened()
    first.close("KILLED")
    before = (first.folder / "config.toml").read_text()
    opened(resume=first.folder).close("KILLED")
    assert not (first.folder / "config-1.toml").exists()
    for steps, number in ((60, 1), (80, 2)):
        opened(config_of(steps=steps), resume=first.folder).close("KILLED")
        assert (first.folder / f"config-{number}.toml").exists()
    assert (first.folder / "config-1.toml").read_text() == before
    assert "steps = 80" in (first.folder / "config.toml").read_text()


def test_a_run_without_mlflow_goes_on_in_its_journal(opened: Open, root: Path) -> None:
    config = config_of(enabled=False)
    first = opened(config)
    first.listener.metrics_reported(10, {"a": 1.0})
    first.close("KILLED")
    again = opened(config, resume=first.folder, step=0)
    for step in (10, 20):
        again.listener.metrics_reported(step, {"a": 1.0})
    again.close("FINISHED")
    assert [one.step for one in read_journal(first.folder / "metrics.jsonl")] == [10, 20]
    with pytest.raises(RequestError, match="was started without MLflow"):
        opened(resume=first.folder)


def test_a_run_that_was_deleted_in_mlflow_is_refused_with_the_command_that_restores_it(
    opened: Open, client: MlflowClient
) -> None:
    first = opened()
    first.close("KILLED")
    client.delete_run(first.run_id)
    with pytest.raises(RequestError, match=f"run {first.run_id} .* was deleted in MLflow") as told:
        opened(resume=first.folder)
    assert f"mlflow runs restore --run-id {first.run_id}" in told.value.hints[0]
    client.restore_run(first.run_id)
    assert opened(resume=first.folder).run_id == first.run_id


def test_a_run_that_mlflow_refuses_to_continue_has_the_status_that_it_had(
    opened: Open, client: MlflowClient, root: Path
) -> None:
    first = opened()
    first.close("KILLED")
    before = (first.folder / "status.json").read_text()
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        database.execute(
            "CREATE TRIGGER stop BEFORE UPDATE ON runs BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        database.commit()
        with pytest.raises(RequestError, match=f"MLflow cannot continue run {first.run_id}"):
            opened(resume=first.folder)
        database.execute("DROP TRIGGER stop")
        database.commit()
    assert (first.folder / "status.json").read_text() == before
    assert client.get_run(first.run_id).info.status == "KILLED"


def test_a_run_whose_store_is_gone_is_refused_and_no_new_store_is_made(
    opened: Open, root: Path
) -> None:
    first = opened()
    first.close("KILLED")
    (root / "mlflow.db").rename(root / "elsewhere.db")
    with pytest.raises(RequestError, match=f"in which run {first.run_id} is recorded, does not ex"):
        opened(resume=first.folder)
    assert not (root / "mlflow.db").exists()
    away = config_of(uri="http://127.0.0.1:9")
    with pytest.raises(RequestError, match="does not answer"):
        opened(away, resume=first.folder)
    # The lock is free again, and the folder as it was.
    with RunLock.take(first.folder):
        assert (first.folder / "config.toml").exists()


def saved(tracking: Tracking, *names: str) -> None:
    for name in names:
        folder = tracking.folder / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")


def kept(client: MlflowClient, run_id: str) -> list[str]:
    return [one.path for one in client.list_artifacts(run_id, "checkpoints")]


def test_checkpoints_that_are_deleted_here_are_deleted_in_mlflow(
    opened: Open, client: MlflowClient
) -> None:
    tracking = opened(config_of())
    saved(tracking, "step-1", "step-2")
    tracking.listener.checkpoint_saved(2)
    while len(kept(client, tracking.run_id)) < 2:
        time.sleep(0.05)
    shutil.rmtree(tracking.folder / "checkpoints" / "step-1")
    saved(tracking, "step-3")
    tracking.close("FAILED")
    assert kept(client, tracking.run_id) == ["checkpoints/step-2", "checkpoints/step-3"]
    # Deleted by a process that was killed, or during an outage.
    shutil.rmtree(tracking.folder / "checkpoints" / "step-2")
    opened(config_of(), resume=tracking.folder, step=20).close("FINISHED")
    assert kept(client, tracking.run_id) == ["checkpoints/step-3"]


def test_what_is_missing_because_a_folder_was_emptied_or_is_no_checkpoint_stays_in_mlflow(
    opened: Open, client: MlflowClient
) -> None:
    tracking = opened(config_of())
    saved(tracking, "step-1")
    (tracking.folder / "ope").mkdir()
    for name in ("a.csv", "b.csv"):
        (tracking.folder / "ope" / name).write_text(name)
    tracking.close("FAILED")
    shutil.rmtree(tracking.folder / "checkpoints")
    (tracking.folder / "ope" / "a.csv").unlink()
    opened(config_of(), resume=tracking.folder, step=20).close("FINISHED")
    assert kept(client, tracking.run_id) == ["checkpoints/step-1"]
    assert len(client.list_artifacts(tracking.run_id, "ope")) == 2


def test_a_run_ends_at_the_step_that_it_reported_last(opened: Open) -> None:
    tracking = opened(config_of())
    tracking.listener.metrics_reported(20, {"a": 1.0})
    # Neither says how far training has come.
    tracking.listener.evaluation_finished(30, {"b": 1.0})
    tracking.listener.checkpoint_saved(40)
    with pytest.raises(ValueError, match="no more"), tracking:
        raise ValueError("no more")
    status = RunStatus.read(tracking.folder)
    assert status is not None
    assert (status.status, status.step) == ("FAILED", 20)
    log = (tracking.folder / "logs" / "run.log").read_text()
    assert f"run {tracking.run_id} ended at step 20: FAILED: ValueError: no more" in log
