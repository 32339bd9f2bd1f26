"""`rlplug ui`: it serves the runs, finds a server that already does, and ends with all of it."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rlplug.config.sections import RunConfig, RunSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
from rlplug.tracking.server import free_port, is_free
from tests.mlflow_server import wait_until_healthy


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run."""
    folder = tmp_path_factory.mktemp("runs")
    config = RunConfig(run=RunSection(algorithm="none"), algorithm=NoOptions())
    open_tracking(config, environment="Nowhere-v0", root=folder).close("FINISHED")
    return folder


@pytest.fixture
def taken(first_port: int) -> Iterator[int]:
    """A port on which something listens that is no MLflow."""
    port = free_port("127.0.0.1", first_port)
    with socket.create_server(("127.0.0.1", port)):
        yield port


@pytest.fixture
def ui(rlplug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run `rlplug ui` on a folder in this process."""

    def invoke(root: Path, *arguments: str, uri: str = "") -> Any:
        monkeypatch.setenv("RLPLUG_HOME", str(root))
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        if uri:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        return rlplug("ui", *arguments)

    return invoke


def links(port: int) -> list[str]:
    page = "/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=rlplug-by-seed"
    return [f"http://127.0.0.1:{port}{page}&compareRunsMode=CHART\n"]


def test_it_becomes_a_server_that_is_found_again_and_ends_with_all_its_processes(
    root: Path, first_port: int, ui: Callable[..., Any]
) -> None:
    port = free_port("127.0.0.1", first_port)
    options = ("--port", str(port), "--host", "0.0.0.0", "--allowed-hosts", " here,, there ")
    command = [sys.executable, "-m", "rlplug", "ui", *options]
    environ = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    with subprocess.Popen(
        command, env={**environ, "RLPLUG_HOME": str(root)}, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            assert [server.stdout.readline() for _ in range(3)] == [
                "There is no login: anyone who can reach this machine can see and change all "
                "runs.\n",
                "Starting MLflow, which takes some seconds; Ctrl-C stops it.\n",
                *links(port),
            ]
            wait_until_healthy(f"http://127.0.0.1:{port}", server)
            assert status_for(port, f"there:{port}") == 200
            found = f"MLflow already shows these runs on port {port}.\n"
            assert ui(root, "--port", str(port)).out == "".join([found, *links(port)])
        finally:
            server.send_signal(signal.SIGINT)
        server.wait(30)
    deadline = time.monotonic() + 30
    while not is_free("127.0.0.1", port):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_only_pages_of_this_machine_are_answered(served: str) -> None:
    port = urlsplit(served).port
    assert port is not None
    # As a forwarded port is called.
    assert status_for(port, "localhost:8080") == 200
    assert status_for(port, "elsewhere.example") == 403


def status_for(port: int, host: str) -> int:
    """The status of a request that changes nothing, sent by a page of this host."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"}
    path = "/ajax-api/2.0/mlflow/experiments/search"
    with contextlib.closing(connection):
        connection.request("POST", path, b'{"max_results": 5}', headers)
        with connection.getresponse() as response:
            return response.status


def test_a_folder_without_runs_says_how_to_make_one(tmp_path: Path, ui: Callable[..., Any]) -> None:
    done = ui(tmp_path)
    assert (done.code, done.out) == (2, "")
    assert f"there are no runs yet: {tmp_path / 'mlflow.db'} does not exist" in done.err
    assert "try: rlplug run" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_was_asked_for_and_is_taken_is_an_error(
    root: Path, taken: int, ui: Callable[..., Any], host: str
) -> None:
    done = ui(root, "--host", host, "--port", str(taken))
    assert (done.code, done.out) == (2, "")
    assert f"port {taken} is taken by another program" in done.err
    (other,) = re.findall(r"try: --port (\d+), or leave --port out", done.err)
    assert taken < int(other) <= taken + 50


@pytest.mark.parametrize("names", [[], ["--allowed-hosts", " , "]])
def test_other_machines_are_let_in_only_by_name(
    root: Path, ui: Callable[..., Any], names: list[str]
) -> None:
    done = ui(root, "--host", "0.0.0.0", *names)
    assert (done.code, done.out) == (2, "")
    assert "--host 0.0.0.0 serves other machines" in done.err
    assert "try: --allowed-hosts" in done.err


def test_of_a_server_elsewhere_only_the_link_is_printed(
    tmp_path: Path, ui: Callable[..., Any]
) -> None:
    done = ui(tmp_path, uri="https://me:hunter2@mlflow.example/team/")
    assert (done.code, done.err) == (0, "")
    home = "https://mlflow.example/team/#/experiments?workflowType=machine_learning\n"
    assert done.out == home


def test_the_next_free_port_is_taken(taken: int) -> None:
    assert not is_free("127.0.0.1", taken)
    assert free_port("127.0.0.1", taken) > taken
