"""Runs that start and go on while their server does not answer, and are in MLflow after a sync."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rlplug as library
from rlplug.checkpoint import checkpoints_in
from rlplug.errors import RequestError
from rlplug.tracking.location import RunFolder, runs_folder
from rlplug.tracking.resolve import resolve_one
from rlplug.tracking.status import RunStatus
from tests.proxy import Proxy

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

pytestmark = pytest.mark.usefixtures("installed")

OFFLINE = {"tracking.offline_ok": True, "checkpoint.every": 200, "evaluation.episodes": 0}


class Away:
    """A server that is away until `back` is called."""

    def __init__(self, served: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self._port = taken.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._served = int(served.rpartition(":")[2])
        self._proxy: Proxy | None = None

    def back(self) -> None:
        self._proxy = Proxy(self._served, self._port)

    def go(self) -> None:
        if self._proxy is not None:
            self._proxy.close()


@pytest.fixture
def away(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    server = Away(served)
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    yield server
    server.go()


@pytest.fixture
def client(served: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(served)


def points(client: MlflowClient, run_id: str, name: str = "time/updates") -> list[int]:
    return [one.step for one in client.get_metric_history(run_id, name)]


def tracked(folder: Path) -> str:
    run = RunFolder.read(folder)
    assert run is not None
    return run.id_in_mlflow


def test_without_the_option_a_server_that_is_away_is_an_error_that_names_it(away: Away) -> None:
    with pytest.raises(RequestError, match=r"--set tracking\.offline_ok=true"):
        library.run("means", steps=1_000)
    assert not [one for one in runs_folder().glob("work/*") if one.is_dir()]


def test_a_run_that_started_during_an_outage_is_created_with_all_it_has_by_sync(
    away: Away, client: MlflowClient, rlplug: Command, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**OFFLINE, "checkpoint.keep": 2}
    result = library.run("means", steps=1_000, options=options, tags={"team": "blue"})
    command = f"rlplug runs sync {result.run_id}"
    (warned,) = [one for one in caplog.messages if "does not answer" in one]
    assert warned.endswith(
        f"The run goes on without it, and is kept in {result.folder} until: {command}"
    )
    assert result.where[-1].startswith("not in MLflow: ")
    assert result.where[-1].endswith(command)
    status = RunStatus.read(result.folder)
    assert status is not None
    assert status.pending
    missing = result.where[-1].removeprefix("not in MLflow: ").partition(":")[0]
    assert re.fullmatch(r"[\d,]{3,} metric values and \d\d files", missing)
    refused = rlplug("runs", "sync", result.run_id)
    assert refused.code == 1
    assert "does not answer" in refused.err

    away.back()
    told = rlplug("runs", "sync")
    assert (told.code, told.err) == (0, "")
    run = client.get_run(tracked(result.folder))
    assert run.info.run_id != result.run_id
    assert f"it was created in MLflow as run {run.info.run_id}." in told.out
    assert f"{missing} uploaded" in told.out
    assert run.info.status == "FINISHED"
    assert run.data.params["run.steps"] == "1000"
    assert run.data.tags["rlplug.local_id"] == result.run_id
    assert run.data.tags["team"] == "blue"
    assert "rlplug.plugins" in run.data.tags
    assert "rlplug.pending_upload" not in run.data.tags
    assert run.inputs.dataset_inputs[0].dataset.name == "LinearBandit-v0"
    # In the time that it really took.
    assert run.info.end_time - run.info.start_time < 60_000
    steps = points(client, run.info.run_id)
    assert steps[-1] == 1_000
    assert len(set(steps)) == len(steps)
    there = [one.path for one in client.list_artifacts(run.info.run_id, "checkpoints")]
    # The ranking of checkpoints is beside them.
    assert there.pop(0) == "checkpoints/README.md"
    assert there == ["checkpoints/step-000000000800", "checkpoints/step-000000001000"]
    assert rlplug("runs", "sync").out.startswith("everything in ")
    # Both ids name the run.
    for name in (result.run_id, run.info.run_id, run.info.run_id[:8]):
        assert resolve_one(name).run_id == result.run_id
    listed = rlplug("runs", "--json").out.splitlines()
    assert sum(result.run_id in one for one in listed) == 1


def test_a_run_that_another_version_recorded_during_an_outage_is_created_by_sync(
    away: Away, client: MlflowClient, rlplug: Command
) -> None:
    result = library.run("means", steps=400, options=OFFLINE)
    file = result.folder / "record.json"
    record = json.loads(file.read_text())
    del record["datasets"]
    file.write_text(json.dumps({**record, "environment_digest": "0" * 32}))
    away.back()
    assert rlplug("runs", "sync").code == 0
    assert client.get_run(tracked(result.folder)).data.params["run.steps"] == "400"


def test_a_run_goes_on_during_an_outage_and_no_point_is_twice_or_missing_after_a_sync(
    away: Away, client: MlflowClient, rlplug: Command, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"checkpoint.every": 200, "evaluation.episodes": 0}
    away.back()
    with pytest.raises(ArithmeticError, match="planted"):
        library.run("means", steps=1_000, options={**options, "fail_at": 500})
    away.go()
    (folder,) = (one for one in (runs_folder() / "work").glob("*/") if one.is_dir())
    known = points(client, folder.name)
    refused = rlplug("resume", "last", "--set", "fail_at=0", "--allow-drift")
    assert refused.code == 2
    assert "--set tracking.offline_ok=true" in refused.err
    # Which is no drift.
    more = ("--set", "fail_at=0", "--allow-drift", "--set", "tracking.offline_ok=true", "--json")
    done = rlplug("resume", "last", *more)
    assert (done.code, json.loads(done.out)["step"]) == (0, 1_000)
    assert caplog.text.count("does not answer") == 1
    assert points(client, folder.name) == known
    assert client.get_run(folder.name).info.status == "FAILED"
    away.back()
    told = rlplug("runs", "sync")
    assert (told.code, told.err) == (0, "")
    run = client.get_run(folder.name)
    assert run.info.status == "FINISHED"
    assert run.data.tags["rlplug.attempt"] == "2"
    assert run.data.tags["rlplug.resumed_from_step"] == "400"
    assert "rlplug.error" not in run.data.tags
    assert list(json.loads(run.data.tags["rlplug.param_drift"])) == ["algorithm.fail_at"]
    steps = points(client, folder.name)
    assert steps[-1] == 1_000
    assert len(set(steps)) == len(steps) > len(known)


def test_a_run_that_started_during_an_outage_is_created_when_it_is_resumed_after_it(
    away: Away, client: MlflowClient, rlplug: Command
) -> None:
    with pytest.raises(ArithmeticError, match="planted"):
        library.run("means", steps=1_000, options={**OFFLINE, "fail_at": 500})
    (folder,) = (one for one in (runs_folder() / "work").glob("*/") if one.is_dir())
    away.back()
    done = rlplug("resume", "last", "--set", "fail_at=0", "--allow-drift", "--quiet", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["run_id"] == folder.name
    run = client.get_run(tracked(folder))
    assert run.info.status == "FINISHED"
    steps = points(client, run.info.run_id)
    assert (steps[0], steps[-1]) == (4, 1_000)
    assert len(set(steps)) == len(steps)
    there = [one.path for one in client.list_artifacts(run.info.run_id, "checkpoints")]
    mine = [f"checkpoints/{one.name}" for one in checkpoints_in(folder / "checkpoints")]
    assert there == ["checkpoints/README.md", *mine]
    assert rlplug("runs", "sync").out.startswith("everything in ")
