"""Tracking over HTTP, with a real MLflow server that comes and goes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.errors import RequestError
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.journal import read_journal
from rlplug.tracking.server import free_port, serves_one_of
from tests.mlflow_server import MlflowServer


class Server:
    """An MLflow server on one port, that can be started and stopped."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.uri = f"http://127.0.0.1:{self.port}"
        self.running: MlflowServer | None = None

    def start(self) -> None:
        if self.running is None:
            store = f"sqlite:///{self.folder / 'mlflow.db'}"
            self.running = MlflowServer(store, self.folder, self.port)

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.running = None


@pytest.fixture(scope="module")
def server_of_module(
    tmp_path_factory: pytest.TempPathFactory, first_port: int, empty_store: Path
) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"), free_port("127.0.0.1", first_port))
    shutil.copy(empty_store, server.folder / "mlflow.db")
    yield server
    server.stop()


@pytest.fixture
def server(server_of_module: Server) -> Server:
    server_of_module.start()
    return server_of_module


class Warnings(list[str]):
    """What was warned of, and a way to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Event()

    def __call__(self, message: str) -> None:
        self.append(message)
        self.said.set()


def start(uri: str, root: Path, warn: Warnings) -> Tracking:
    config = RunConfig(
        run=RunSection(algorithm="none"), algorithm=NoOptions(), tracking=TrackingSection(uri=uri)
    )
    return open_tracking(config, environment="Nowhere-v0", root=root, warn=warn)


def test_all_points_arrive_though_the_server_was_away(server: Server, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    warn = Warnings()
    tracking = start(server.uri, tmp_path, warn)
    listener = tracking.listener
    for step in range(100):
        listener.metrics_reported(step, {"a": float(step)})
    server.stop()
    for step in range(100, 200):
        listener.metrics_reported(step, {"a": float(step)})
    listener.checkpoint_saved(200)
    assert warn.said.wait(30)
    server.start()
    for step in range(200, 300):
        listener.metrics_reported(step, {"a": float(step)})
    listener.run_finished(300)
    tracking.close()

    client = MlflowClient(server.uri)
    points = client.get_metric_history(tracking.run_id, "a")
    assert sorted(point.step for point in points) == list(range(300))
    assert client.get_run(tracking.run_id).info.status == "FINISHED"
    assert len(warn) == 2
    assert "MLflow does not take metrics" in warn[0]
    assert "is reachable again" in warn[1]
    link = tracking.describe()[1]
    assert f"{server.uri}/#/experiments/" in link
    assert f"/runs/{tracking.run_id}?workflowType=machine_learning" in link


def test_a_server_is_known_by_the_runs_that_it_serves(server: Server, tmp_path: Path) -> None:
    tracking = start(server.uri, tmp_path, Warnings())
    tracking.close("FINISHED")
    assert serves_one_of(server.uri, ["0" * 32, tracking.run_id])
    assert not serves_one_of(server.uri, ["0" * 32])
    assert not serves_one_of("http://127.0.0.1:9", [tracking.run_id])


@pytest.mark.long
def test_a_server_that_stays_away_ends_no_run_and_loses_no_point(
    server: Server, tmp_path: Path
) -> None:
    warn = Warnings()
    tracking = start(server.uri, tmp_path, warn)
    server.stop()
    for step in range(7):
        tracking.listener.metrics_reported(step, {"a": 1.0})
    tracking.listener.checkpoint_saved(7)
    assert warn.said.wait(30)
    tracking.listener.run_finished(7)
    tracking.close()
    journal = tracking.folder / "metrics.jsonl"
    # The options and the log of the run.
    told = "not in MLflow: 7 metric values and 2 files. To upload: "
    assert warn[-1].startswith(told)
    assert len(list(read_journal(journal))) == 7


def test_user_and_password_of_the_environment_are_sent_and_their_refusal_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Guarded(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(200 if self.path == "/health" else 401)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Silence: the outcome is what is looked at."""

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    with HTTPServer(("127.0.0.1", 0), Guarded) as guarded:
        thread = threading.Thread(target=guarded.serve_forever)
        thread.start()
        try:
            with pytest.raises(RequestError) as refused:
                start(f"http://127.0.0.1:{guarded.server_port}", tmp_path, Warnings())
        finally:
            guarded.shutdown()
            thread.join()
    assert "Basic bWU6d3Jvbmc=" in seen  # me:wrong
    assert "401" in str(refused.value)
