"""`rlplug ui`: it serves the runs, finds a server that already does, and ends with all of it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import re
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rlplug.cli import main
from rlplug.config.sections import RunConfig, RunSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
from rlplug.tracking.server import (
    free_port,
    is_free,
    newest_experiment,
    without_assistant,
)


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


READY = "Press Ctrl-C to stop.\n"
"""What `rlplug ui` prints last before it waits."""


def links(port: int) -> list[str]:
    page = (
        "/#/experiments/1/runs?workflowType=machine_learning"
        "&viewStateShareKey=rlplug-by-seed&compareRunsMode=CHART\n"
    )
    return [
        f"http://rlplug.localhost:{port}{page}",
        f"or, for a browser that does not know this name, http://127.0.0.1:{port}\n",
    ]


@pytest.fixture
def signals() -> Iterator[None]:
    """SIGTERM is an error where no server waits for it."""

    def stray(*_: Any) -> None:
        raise RuntimeError("nobody waited for SIGTERM")

    before = signal.signal(signal.SIGTERM, stray)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("signals")
def test_it_serves_the_runs_is_found_again_and_ends_with_all_its_processes(
    root: Path, first_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port("127.0.0.1", first_port)
    monkeypatch.setenv("RLPLUG_HOME", str(root))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    printed, stdout = os.pipe()
    monkeypatch.setattr("sys.stdout", os.fdopen(stdout, "w", encoding="utf-8"))
    said: list[str] = []
    codes: list[Any] = []

    def ui(*arguments: str) -> None:
        with pytest.raises(SystemExit) as left:
            main(["ui", "--port", str(port), *arguments])
        codes.append(left.value.code)

    def run_again_then_stop() -> None:
        """Reads what is printed until the server is ready, and what a second command prints."""
        with os.fdopen(printed, encoding="utf-8") as lines:
            try:
                said.extend(itertools.takewhile(lambda line: line != READY, lines))
                # On a busy machine the server may answer later than the command waits for it.
                while len(codes) < 5 and 0 not in codes:
                    ui()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
            said.extend(lines)

    second = threading.Thread(target=run_again_then_stop)
    second.start()
    try:
        ui("--host", "0.0.0.0", "--allowed-hosts", " here,, there ")
    finally:
        sys.stdout.close()
        second.join()
    assert codes[-2:] == [0, 0]
    assert said == [
        "There is no login: anyone who can reach this machine can see and change all runs.\n",
        "Starting MLflow, which takes a few seconds …\n",
        *links(port),
        f"MLflow already shows these runs on port {port}.\n",
        *links(port),
    ]
    assert is_free("127.0.0.1", port)
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)


def test_of_this_machine_it_answers_by_a_name_at_which_mlflow_opens_no_assistant(
    served: str, first_port: int
) -> None:
    from mlflow import MlflowClient

    # Of all experiments, not the one that every store has.
    newest = MlflowClient(served).create_experiment("newest of all")
    assert newest_experiment(served) == newest != "0"
    port = urlsplit(served).port
    assert port is not None
    assert status_for(port, f"rlplug.localhost:{port}") == 200
    # As a forwarded port is called.
    assert status_for(port, "localhost:8080") == 200
    assert status_for(port, "elsewhere.example") == 403
    assert newest_experiment(f"http://127.0.0.1:{free_port('127.0.0.1', first_port)}") == ""


def status_for(port: int, host: str) -> int:
    """The status of a request that changes nothing, sent by a page of this host."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"}
    path = "/ajax-api/2.0/mlflow/experiments/search"
    with contextlib.closing(connection):
        connection.request("POST", path, b'{"max_results": 5}', headers)
        with connection.getresponse() as response:
            return response.status


def test_on_macos_the_name_is_used_only_where_the_system_knows_it_for_safari_asks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, named = "http://127.0.0.1:5000", "http://rlplug.localhost:5000"
    assert without_assistant("http://gpuhost:5000") == "http://gpuhost:5000"
    assert without_assistant(url) == named
    monkeypatch.setattr("sys.platform", "darwin")
    known = {"rlplug.localhost"}

    def look_up(host: str, port: object) -> list[object]:
        if host not in known:
            raise socket.gaierror
        return []

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    assert without_assistant(url) == named
    known.clear()
    assert without_assistant(url) == url


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
