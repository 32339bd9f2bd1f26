"""`rlplug ui`: it serves the runs, finds a server that already does, and ends with all of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlplug.config.sections import RunConfig, RunSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
from rlplug.tracking.server import free_port, is_free


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


def command(root: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    environment = {**os.environ, "RLPLUG_HOME": str(root)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return [sys.executable, "-m", "rlplug", "ui", *arguments], environment


def run(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line, environment = command(root, *arguments)
    return subprocess.run(
        line, env={**environment, **variables}, capture_output=True, text=True, timeout=60
    )


def test_it_serves_the_runs_is_found_again_and_ends_with_all_its_processes(
    root: Path, first_port: int
) -> None:
    port = free_port("127.0.0.1", first_port)
    line, environment = command(root, "--port", str(port))
    process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(3)]
        link = (
            f"http://127.0.0.1:{port}/#/experiments/1/runs?workflowType=machine_learning"
            "&viewStateShareKey=rlplug-by-seed&compareRunsMode=CHART\n"
        )
        assert said[1:] == [link, "Press Ctrl-C to stop.\n"]
        again = run(root, "--port", str(port))
        assert (again.returncode, again.stdout) == (
            0,
            f"MLflow already shows these runs on port {port}.\n{link}",
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0
    assert is_free("127.0.0.1", port)
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)


def test_a_folder_without_runs_says_how_to_make_one(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2
    assert f"there are no runs yet: {tmp_path / 'mlflow.db'} does not exist" in done.stderr
    assert "try: rlplug run" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(root: Path, taken: int) -> None:
    done = run(root, "--port", str(taken))
    assert done.returncode == 2
    assert f"port {taken} is taken by another program" in done.stderr
    assert "or leave --port out" in done.stderr


def test_other_machines_are_let_in_only_by_name(root: Path) -> None:
    done = run(root, "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "try: --allowed-hosts" in done.stderr


def test_of_a_server_elsewhere_only_the_link_is_printed(tmp_path: Path) -> None:
    done = run(tmp_path, MLFLOW_TRACKING_URI="https://me:hunter2@mlflow.example/team/")
    assert (done.returncode, done.stderr) == (0, "")
    link = "https://mlflow.example/team/#/experiments?workflowType=machine_learning\n"
    assert done.stdout == link


def test_the_next_free_port_is_taken(taken: int) -> None:
    assert not is_free("127.0.0.1", taken)
    assert free_port("127.0.0.1", taken) > taken
