"""What goes wrong with a store while a run is recorded ends no run, and is said with what to do."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from mlflow import MlflowClient

from rlplug.config.option import option
from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.errors import RequestError
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.journal import read_journal
from rlplug.tracking.location import RunFolder, tracking_uri
from rlplug.tracking.record import record_of
from rlplug.tracking.reading import tracked_runs
from rlplug.tracking.status import RunStatus, now
from rlplug.tracking.store import Store
from rlplug.tracking.sync import sync_run
from tests.proxy import Gate, Proxy
from tests.warm import Warm


def start(root: Path, said: list[str], options: Any = None, **tracking: Any) -> Tracking:
    config = config_with(options, **tracking)
    return open_tracking(config, environment="Nowhere-v0", root=root, warn=said.append)


def config_with(options: Any = None, **tracking: Any) -> RunConfig:
    return RunConfig(
        run=RunSection(algorithm="none", steps=40),
        algorithm=NoOptions() if options is None else options,
        tracking=TrackingSection(git_diff=False, **tracking),
    )


@pytest.fixture
def client(store_root: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")


def test_numbers_that_are_not_finite_arrive_as_nan_and_are_counted(
    store_root: Path, client: MlflowClient
) -> None:
    tracking = start(store_root, [])
    for step, value in enumerate((1.0, math.nan, math.inf, -math.inf, 2.0)):
        tracking.listener.metrics_reported(step, {"train/loss": value})
    tracking.close("FINISHED")
    points = client.get_metric_history(tracking.run_id, "train/loss")
    values = [point.value for point in sorted(points, key=lambda one: one.step)]
    assert [values[0], values[4]] == [1.0, 2.0]
    assert all(math.isnan(value) for value in values[1:4])
    run = client.get_run(tracking.run_id)
    assert run.data.metrics["train/nonfinite"] == 3
    assert run.data.tags["rlplug.nonfinite_step"] == "1"


def test_names_that_mlflow_refuses_are_recorded_under_valid_ones_and_hold_up_no_other(
    store_root: Path, client: MlflowClient
) -> None:
    said: list[str] = []
    tracking = start(store_root, said)
    names = ["ok", "a//b", "../up", "train/σ²", "q[0]=best?", "x" * 400, "", "/"]
    with pytest.raises(Exception, match="Invalid value"):
        client.log_metric(tracking.run_id, names[2], 1.0)
    for number, name in enumerate(names):
        tracking.listener.metrics_reported(number, {name: float(number), "other": 1.0})
    tracking.close("FINISHED")
    recorded = client.get_run(tracking.run_id).data.metrics
    assert {"ok", "a/b", "up", "train/σ²", "q_0__best_", "x" * 250, "unnamed"} <= set(recorded)
    assert len(client.get_metric_history(tracking.run_id, "other")) == len(names)
    assert said == []


@attrs.frozen(kw_only=True)
class Long:
    table: str = option("", "A long text.")


def test_a_parameter_of_ten_thousand_characters_is_cut_in_mlflow_and_whole_in_the_config(
    store_root: Path, client: MlflowClient
) -> None:
    text = "0123456789" * 1000
    tracking = start(store_root, [], Long(table=text))
    tracking.close("FINISHED")
    shown = client.get_run(tracking.run_id).data.params["algorithm.table"]
    assert len(shown) == 6000
    assert shown.endswith("…")
    assert text in (tracking.folder / "config.toml").read_text()


def test_artifacts_that_cannot_be_written_cost_no_metric_and_no_status(
    store_root: Path, client: MlflowClient, tmp_path: Path
) -> None:
    # Also the superuser can make no folder below a file.
    (tmp_path / "read-only").write_text("")
    client.create_experiment("refused", (tmp_path / "read-only" / "artifacts").as_uri())
    said: list[str] = []
    tracking = start(store_root, said, experiment="refused")
    module = tracking.folder / "module.safetensors"
    module.write_text("weights")
    tracking.listener.metrics_reported(40, {"train/loss": 1.0})
    tracking.listener.checkpoint_saved(40)
    wait_for(said)
    tracking.listener.run_finished(40)
    tracking.close()
    run = client.get_run(tracking.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["train/loss"] == 1.0
    assert run.data.tags["rlplug.pending_upload"] == "true"
    assert "MLflow does not take metrics or files" in said[0]
    assert "To upload: " in said[-1]
    assert "files" in said[-1]
    status = RunStatus.read(tracking.folder)
    assert status is not None
    assert (status.status, bool(status.pending)) == ("FINISHED", True)


def test_a_database_of_a_newer_mlflow_is_refused_in_its_own_words(store_root: Path) -> None:
    with sqlite3.connect(store_root / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    database.close()
    with pytest.raises(RequestError) as refused:
        start(store_root, [])
    assert "ffffffffffff" in refused.value.message
    assert not list((store_root / "work").glob("*/run.json"))


@pytest.fixture
def gate(served: str) -> Iterator[Gate]:
    made = Gate(int(served.rpartition(":")[2]))
    yield made
    made.close()


OFFLINE = "--set tracking.offline_ok=true"


def test_a_server_whose_proxy_alone_answers_is_away(gate: Gate, tmp_path: Path) -> None:
    gate.code = 502
    with pytest.raises(RequestError, match="does not answer") as refused:
        start(tmp_path, [], uri=gate.uri)
    assert OFFLINE in refused.value.hints[0]
    said: list[str] = []
    tracking = start(tmp_path, said, uri=gate.uri, offline_ok=True)
    tracking.listener.metrics_reported(1, {"a": 1.0})
    tracking.close("FINISHED")
    assert "does not answer" in said[0]
    gate.code = 0
    run_id = synced(tracking)
    assert MlflowClient(gate.uri).get_run(run_id).data.metrics["a"] == 1.0


def test_a_server_that_is_healthy_and_answers_500_at_the_start_is_refused(
    gate: Gate, tmp_path: Path
) -> None:
    gate.code, gate.path = 500, "/api"
    with pytest.raises(RequestError, match="MLflow cannot record the run") as refused:
        start(tmp_path, [], uri=gate.uri)
    assert OFFLINE in refused.value.hints[0]
    assert not list(tmp_path.glob("work/*/run.json"))


def test_a_server_that_accepts_connections_and_says_nothing_at_the_start_is_refused(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RequestError, match="does not answer: timed out") as refused:
            start(tmp_path, [], uri=uri)
    assert OFFLINE in refused.value.hints[0]


def test_a_server_that_ends_while_it_creates_the_run_is_refused_with_the_option_to_go_on(
    served: str, tmp_path: Path
) -> None:
    proxy = Proxy(int(served.rpartition(":")[2]))
    config = config_with(uri=proxy.uri)
    uri = tracking_uri(proxy.uri, tmp_path)
    record = record_of(config, "Nowhere-v0", {}, tmp_path)
    with pytest.raises(RequestError, match="MLflow cannot record the run") as refused:
        Store.create_run(uri, record, tmp_path, before=proxy.close)
    assert OFFLINE in refused.value.hints[0]


def refused_at_its_first_report(gate: Gate, folder: Path, said: list[str]) -> Tracking:
    """A run whose server answers 500 since its first report, which it has noticed."""
    tracking = start(folder, said, uri=gate.uri)
    gate.code = 500
    tracking.listener.metrics_reported(1, {"a": 1.0})
    tracking.listener.checkpoint_saved(1)
    wait_for(said)
    return tracking


def test_a_server_that_answers_500_for_a_while_loses_no_point(gate: Gate, tmp_path: Path) -> None:
    said: list[str] = []
    tracking = refused_at_its_first_report(gate, tmp_path, said)
    gate.code = 0
    tracking.listener.metrics_reported(2, {"a": 2.0})
    tracking.listener.checkpoint_saved(2)
    wait_for(said, 2)
    tracking.listener.run_finished(2)
    tracking.close()
    assert "MLflow does not take metrics" in said[0]
    assert said[1:] == ["MLflow is reachable again; all metrics are uploaded."]
    points = MlflowClient(gate.uri).get_metric_history(tracking.run_id, "a")
    assert sorted((point.step, point.value) for point in points) == [(1, 1.0), (2, 2.0)]


def test_a_server_that_answers_500_at_the_end_leaves_a_run_that_sync_completes(
    gate: Gate, tmp_path: Path
) -> None:
    said: list[str] = []
    tracking = refused_at_its_first_report(gate, tmp_path, said)
    tracking.listener.run_finished(1)
    tracking.close()
    assert f"rlplug runs sync {tracking.run_id}" in said[-1]
    assert [one.step for one in read_journal(tracking.folder / "metrics.jsonl")] == [1]
    gate.code = 0
    run = MlflowClient(gate.uri).get_run(synced(tracking))
    assert (run.info.status, run.data.metrics["a"]) == ("FINISHED", 1.0)


def synced(tracking: Tracking) -> str:
    """Upload what is left; the id in MLflow."""
    run = RunFolder.read(tracking.folder)
    assert run is not None
    done = sync_run(run, lambda message: None)
    assert (done.missing, done.problem) == ("", None)
    return done.created or tracking.run_id


def wait_for(said: list[str], count: int = 1) -> None:
    deadline = time.monotonic() + 60
    while len(said) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


ON_A_HOST = """
import ctypes, json, socket, sys
CLONE_NEWUTS = 0x04000000
assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS) == 0, ctypes.get_errno()
socket.sethostname(sys.argv[3])
from pathlib import Path
from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
config = RunConfig(
    run=RunSection(algorithm="none"),
    algorithm=NoOptions(),
    tracking=TrackingSection(uri=sys.argv[1], git_diff=False),
)
tracking = open_tracking(config, environment="Shared-v0", root=Path(sys.argv[2]))
tracking.listener.metrics_reported(1, {"a": 1.0})
tracking.close("FINISHED")
print(json.dumps([tracking.run_id, socket.gethostname()]))
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode != 0,
    reason="a second host name needs the permission for it",
)
def test_two_hosts_write_one_experiment_at_once(served: str, tmp_path: Path, warm: Warm) -> None:
    running = []
    environ = {key: value for key, value in os.environ.items() if "MLFLOW" not in key}
    for host in ("host-one", "host-two"):
        arguments = (served, str(tmp_path / host), host)
        running.append(warm.start(*arguments, code=ON_A_HOST, environ=environ))
    answers = [one.communicate(timeout=120) for one in running]
    assert [one.returncode for one in running] == [0, 0], answers
    made = dict(json.loads(out) for out, _ in answers)
    assert sorted(made.values()) == ["host-one", "host-two"]
    client = MlflowClient(served)
    runs = {run_id: client.get_run(run_id) for run_id in made}
    assert {run_id: run.data.tags["rlplug.host"] for run_id, run in runs.items()} == made
    assert len({run.info.experiment_id for run in runs.values()}) == 1
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_a_run_of_a_host_that_is_not_heard_of_any_more_is_shown_as_stale(
    store_root: Path, client: MlflowClient
) -> None:
    tracking = start(store_root, [])
    uri = f"sqlite:///{store_root / 'mlflow.db'}"
    assert [one.status for one in tracked_runs(uri)] == ["RUNNING"]
    client.set_tag(tracking.run_id, "rlplug.heartbeat", now(time.time() - 20 * 60))
    assert [one.status for one in tracked_runs(uri)] == ["stale"]
    tracking.close("FINISHED")
    assert [one.status for one in tracked_runs(uri)] == ["FINISHED"]


def test_a_run_in_progress_is_heard_of_in_mlflow_again_and_again(
    store_root: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlplug.tracking.writer.STORE_HEARTBEAT_SECONDS", 0.0)
    tracking = start(store_root, [])
    for old in (now(0), now(1)):
        client.set_tag(tracking.run_id, "rlplug.heartbeat", old)
        tracking.listener.checkpoint_saved(1)
        while client.get_run(tracking.run_id).data.tags["rlplug.heartbeat"] == old:
            time.sleep(0.05)
    tracking.close("FINISHED")
