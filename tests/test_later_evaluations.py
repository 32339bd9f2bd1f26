"""What `rlplug eval` and `rlplug ope` find is kept with the run, in its folder and in MLflow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

import rlplug
from rlplug.tracking.evaluations import where_tracked
from rlplug.tracking.status import RunStatus

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
EPISODES = ("--episodes", "3")


@pytest.fixture
def client(store_root: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")


@pytest.fixture
def trained(rlplug: Command, store_root: Path) -> Path:
    """The folder of a run that has finished."""
    done = rlplug("run", "--algo", "linucb", "--steps", "40", "--quiet")
    assert done.code == 0, done.err
    (folder,) = (store_root / "work").iterdir()
    return folder


def points(client: MlflowClient, run_id: str) -> list[tuple[int, float]]:
    history = client.get_metric_history(run_id, "later_eval/return_mean")
    return sorted((point.step, point.value) for point in history)


def files(client: MlflowClient, run_id: str) -> list[str]:
    return sorted(one.path for one in client.list_artifacts(run_id, "evaluations"))


def test_an_evaluation_is_kept_with_its_run_whose_status_stays(
    rlplug: Command, trained: Path, client: MlflowClient
) -> None:
    before = client.get_run(trained.name)
    done = rlplug("eval", "last", *EPISODES, "--json")
    said = json.loads(done.out)
    kept = json.loads(Path(said["recorded"]).read_text())
    assert kept["run_id"] == trained.name
    assert (kept["step"], kept["seed"], kept["episodes"]) == (40, 0, 3)
    assert len(kept["returns"]) == len(kept["lengths"]) == 3
    mean = said["metrics"]["eval/return_mean"]
    assert sum(kept["returns"]) / 3 == pytest.approx(mean)
    assert points(client, trained.name) == [(40, mean)]
    assert files(client, trained.name) == ["evaluations/step-000000000040-seed0.json"]
    after = client.get_run(trained.name)
    assert (after.info.status, after.info.end_time) == ("FINISHED", before.info.end_time)
    assert not any(name.startswith("eval/") for name in after.data.metrics)
    shown = rlplug("eval", "last", *EPISODES, "--seed", "1").out
    assert "step-000000000040-seed1.json" in shown
    assert len(points(client, trained.name)) == 2


def test_a_run_is_where_its_folder_says_or_where_it_was_fetched_from(
    trained: Path, store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert where_tracked(trained) == (f"sqlite:///{store_root / 'mlflow.db'}", trained.name)
    untracked = rlplug.run("linucb", steps=20, options={"tracking.enabled": False})
    assert where_tracked(untracked.folder) is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://gpuhost:5000")
    run_id = "0123456789abcdef" * 2
    fetched = store_root / "fetched"
    assert where_tracked(fetched / run_id) == ("http://gpuhost:5000", run_id)
    for other in (store_root / "work" / run_id, fetched / run_id / "x", fetched / "x"):
        assert where_tracked(other) is None


def test_an_evaluation_that_is_not_to_be_recorded_leaves_nothing(
    rlplug: Command, trained: Path, client: MlflowClient
) -> None:
    assert "saved" not in rlplug("eval", "last", *EPISODES, "--no-save").out
    assert points(client, trained.name) == []
    assert not (trained / "evaluations").exists()


def test_an_evaluation_that_mlflow_could_not_be_told_is_uploaded_by_sync(
    rlplug: Command, trained: Path, client: MlflowClient, store_root: Path
) -> None:
    os.rename(store_root / "mlflow.db", store_root / "away.db")
    done = rlplug("eval", "last", *EPISODES)
    assert done.code == 0
    assert f"to upload it: rlplug runs sync {trained.name}" in done.err
    status = RunStatus.read(trained)
    assert status is not None
    assert (status.status, status.pending) == ("FINISHED", True)
    os.rename(store_root / "away.db", store_root / "mlflow.db")
    assert points(client, trained.name) == []
    assert rlplug("runs", "sync").code == 0
    assert [step for step, _ in points(client, trained.name)] == [40]
    assert files(client, trained.name) == ["evaluations/step-000000000040-seed0.json"]
    assert "everything" in rlplug("runs", "sync").out


def test_estimates_that_mlflow_could_not_be_told_are_uploaded_by_sync(
    rlplug: Command, trained: Path, client: MlflowClient, store_root: Path, tmp_path: Path
) -> None:
    from gymnasium import make

    env = make("rlplug.bandits:LinearBandit-v0").unwrapped
    arms, dim = int(env.action_space.n), env.observation_space.shape[0]
    random = numpy.random.default_rng(0)
    log = tmp_path / "log.npz"
    rows = {"action": random.integers(0, arms, 60), "reward": random.standard_normal(60)}
    numpy.savez(log, context=random.standard_normal((60, dim)), **rows)
    ask = ("ope", "last", "--data", str(log), "--assume-uniform", "--set", f"num_arms={arms}")
    os.rename(store_root / "mlflow.db", store_root / "away.db")
    done = rlplug(*ask, "--json")
    assert done.code == 0, done.err
    assert f"to upload it: rlplug runs sync {trained.name}" in done.err
    os.rename(store_root / "away.db", store_root / "mlflow.db")
    assert client.list_artifacts(trained.name, "ope") == []
    assert rlplug("runs", "sync").code == 0
    (told,) = json.loads(done.out)["runs"]
    metrics = client.get_run(trained.name).data.metrics
    assert metrics["ope/dm"] == pytest.approx(told["estimates"]["dm"]["value"])
    found = [Path(one.path).suffix for one in client.list_artifacts(trained.name, "ope")]
    assert sorted(found) == [".csv", ".json", ".png"]
    assert "everything" in rlplug("runs", "sync").out


def test_of_a_checkpoint_outside_of_a_run_nothing_is_written(
    rlplug: Command, trained: Path, tmp_path: Path
) -> None:
    (checkpoint,) = (trained / "checkpoints").glob("step-*")
    copy = tmp_path / "somewhere" / "copies" / checkpoint.name
    copy.parent.mkdir(parents=True)
    os.rename(checkpoint, copy)
    done = rlplug("eval", str(copy), *EPISODES, "--trust")
    assert "not saved" in done.err
    assert [one.name for one in (tmp_path / "somewhere").iterdir()] == ["copies"]
