"""A run that only MLflow has goes on in a new folder, as the same run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

import rlplug as library
from rlplug.checkpoint import checkpoints_in, read_manifest
from rlplug.checkpoint.lookup import run_to_resume
from rlplug.errors import RequestError
from rlplug.tracking.journal import read_journal
from rlplug.tracking.status import RunStatus

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

pytestmark = pytest.mark.usefixtures("installed")

OPTIONS = {"checkpoint.every": 40, "evaluation.every": 80, "evaluation.episodes": 2}


@pytest.fixture
def client(home: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{home / 'mlflow.db'}")


def failed(home: Path) -> Path:
    """The folder of a run that failed at step 90, in an update."""
    with pytest.raises(ArithmeticError, match="planted"):
        library.run("means", steps=200, options={**OPTIONS, "fail_at": 90})
    (folder,) = (one for one in (home / "work").glob("*/") if one.is_dir())
    return folder


def all_points(client: MlflowClient, run_id: str) -> dict[str, list[tuple[int, float]]]:
    names = client.get_run(run_id).data.metrics
    history = {name: client.get_metric_history(run_id, name) for name in names}
    return {
        name: [(one.step, one.value) for one in found]
        for name, found in history.items()
        if not name.startswith("time/")
    }


def test_a_run_whose_folder_is_gone_goes_on_exactly_and_without_a_point_twice(
    home: Path, client: MlflowClient, rlplug: Command, caplog: pytest.LogCaptureFixture
) -> None:
    folder = failed(home)
    before = list(read_journal(folder / "metrics.jsonl"))
    points = all_points(client, folder.name)
    shutil.rmtree(folder)
    done = rlplug("resume", folder.name[:8], "--set", "fail_at=0", "--allow-drift", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert caplog.messages == []
    assert not list(home.glob("work/.coming-*"))
    assert not list(home.glob("fetched/*"))
    run = client.get_run(folder.name)
    assert (run.info.status, run.data.tags["rlplug.attempt"]) == ("FINISHED", "2")
    assert run.data.tags["rlplug.resumed_from_step"] == "80"
    after = list(read_journal(folder / "metrics.jsonl"))
    assert [one.metrics for one in after[: len(before)]] == [one.metrics for one in before]
    found = all_points(client, folder.name)
    whole = library.run("means", steps=200, options=OPTIONS)
    for name, wanted in all_points(client, whole.run_id).items():
        # What was reported at the failure lacks the update that failed.
        differ = set(found[name]) ^ set(wanted)
        assert {step for step, _ in differ} <= {90}
        assert len({step for step, _ in found[name]}) == len(found[name])
    assert all(found[name][: len(known)] == known for name, known in points.items())
    assert (folder / "logs" / "run.log").read_text().count("started") == 1
    digests = {
        read_manifest(checkpoints_in(one / "checkpoints")[-1]).state_digest
        for one in (folder, whole.folder)
    }
    assert len(digests) == 1


def test_a_restored_run_has_the_status_and_the_facts_it_had(
    home: Path, client: MlflowClient
) -> None:
    folder = library.run("means", steps=60, options=OPTIONS).folder
    assert folder is not None
    status, facts = RunStatus.read(folder), json.loads((folder / "run.json").read_text())
    assert status is not None
    journal = list(read_journal(folder / "metrics.jsonl"))
    long_ago = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    client.set_terminated(folder.name, "FINISHED", end_time=int(long_ago.timestamp() * 1000))
    shutil.rmtree(folder)
    assert run_to_resume(folder.name[:8]) == folder
    restored = RunStatus.read(folder)
    assert restored is not None
    assert datetime.fromisoformat(restored.ended) == long_ago
    # Clocks of the run and of its record in MLflow are read a moment apart.
    before, after = (datetime.fromisoformat(one.started) for one in (status, restored))
    assert abs((after - before).total_seconds()) <= 2
    assert attrs.evolve(restored, started=status.started, ended=status.ended) == status
    told = json.loads((folder / "run.json").read_text())
    assert {name: told[name] for name in ("run_id", "run_name", "experiment")} == {
        name: facts[name] for name in ("run_id", "run_name", "experiment")
    }
    again = list(read_journal(folder / "metrics.jsonl"))
    assert [one.step for one in again] == [one.step for one in journal]
    # All of it is in MLflow already.
    size = (folder / "metrics.jsonl").stat().st_size
    assert (folder / "metrics.acked").read_text() == str(size)


@pytest.mark.long
@pytest.mark.parametrize("uploaded", [False, True])
def test_a_replay_buffer_that_was_not_uploaded_starts_empty_and_the_run_says_so(
    home: Path, caplog: pytest.LogCaptureFixture, uploaded: bool
) -> None:
    options = {
        "learning_starts": 50,
        "evaluation.episodes": 0,
        "checkpoint.every": 100,
        "checkpoint.upload_replay": uploaded,
        "checkpoint.save_environments": False,
    }
    run = library.run("dqn", "CartPole-v1", steps=200, options=options)
    shutil.rmtree(run.folder)
    caplog.clear()
    done = library.resume(run.run_id, steps=300)
    assert done.step == 300
    (said,) = [one for one in caplog.messages if "replay" in one] or [""]
    wanted = f"the replay buffer is empty at step 200: it has no files in {run.folder / 'replay'}"
    assert (wanted in said) is not uploaded


def test_a_run_in_progress_is_not_resumed_by_another_machine_until_it_is_silent(
    home: Path, client: MlflowClient, rlplug: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = failed(home)
    shutil.rmtree(folder)
    client.update_run(folder.name, status="RUNNING")
    client.set_tag(folder.name, "rlplug.host", "elsewhere")
    refused = rlplug("resume", folder.name)
    assert refused.code == 2
    assert "is in progress according to MLflow (pid " in refused.err
    assert "on elsewhere)" in refused.err
    assert not folder.exists()
    monkeypatch.setattr("rlplug.tracking.store.STALE_SECONDS", 0.0)
    done = rlplug("resume", folder.name, "--set", "fail_at=0", "--allow-drift", "--quiet")
    assert done.code == 0
    status = RunStatus.read(folder)
    assert status is not None
    assert (status.status, status.attempt) == ("FINISHED", 2)


def test_pickles_that_another_user_wrote_are_not_read_unless_trusted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = failed(home)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    for trust in (False, True):
        caplog.clear()
        done = library.resume(
            folder.name, options={"fail_at": 0}, allow_drift=True, steps=200 + trust, trust=trust
        )
        assert done.step == 200 + trust
        assert ("the pickle was written elsewhere; --trust reads it" in caplog.text) != trust
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)


def test_a_run_on_a_server_goes_on_in_another_runs_folder(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", served)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "one"))
    folder = failed(tmp_path / "one")
    # Another machine does not see it.
    folder.rename(tmp_path / "hidden")
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "two"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "two"))
    done = library.resume(folder.name, options={"fail_at": 0}, allow_drift=True)
    assert done.folder == tmp_path / "two" / "work" / folder.name
    assert (done.run_id, done.step) == (folder.name, 200)
    assert "episodes start anew at step 80" in caplog.text
    client = MlflowClient(served)
    assert client.get_run(folder.name).info.status == "FINISHED"
    for found in all_points(client, folder.name).values():
        assert len({step for step, _ in found}) == len(found)
    again = tmp_path / "three"
    monkeypatch.setenv("RLPLUG_HOME", str(again))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(again))
    (tmp_path / "two").rename(tmp_path / "hidden too")
    caplog.clear()
    longer = library.resume(folder.name, steps=240, trust=True)
    assert longer.step == 240
    assert caplog.text == ""
    with pytest.raises(RequestError, match="finished at step 240"):
        library.resume(folder.name)
