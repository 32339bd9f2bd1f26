"""The commands of docs/gpu-hosts.md work as they are written, with MLflow's own login app."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rlplug.tracking.server import free_port

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
PAGE = Path(__file__).parent.parent / "docs" / "gpu-hosts.md"
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def block(part: str) -> str:
    """The one block that has this part."""
    (found,) = (one for one in BLOCKS if part in one)
    return str(found)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_block_is_valid_for_the_shell(number: int) -> None:
    checked = subprocess.run(["bash", "-n"], input=BLOCKS[number], text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_every_run_on_the_page_has_valid_options(rlplug: Command) -> None:
    text = "\n".join(BLOCKS).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if "rlplug run " in line]
    assert len(lines) == 5
    for line in lines:
        command = line[line.index("rlplug run") :].removesuffix("&").replace("$seed", "0")
        arguments = shlex.split(command)[1:]
        done = rlplug(*arguments, "--dry-run", "--set", "tracking.enabled=false")
        assert done.code == 0, done.err


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, first_port: int, empty_store: Path
) -> Iterator[str]:
    """The URI of the page's server, on a free port and with folders of this test."""
    if find_spec("flask_wtf") is None:
        pytest.skip("MLflow's login app needs Flask-WTF")
    folder = tmp_path_factory.mktemp("login")
    shutil.copy(empty_store, folder / "mlflow.db")
    port = free_port("127.0.0.1", first_port + 40)
    script = block("--app-name basic-auth")
    script = script.replace("--port 5000", f"--port {port}").replace("/srv/mlflow", str(folder))
    script = script.replace("--workers 2", "--workers 1").replace(
        "mlflow server", "exec mlflow server"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environ |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    path = Path(sys.executable).parent
    environ["PATH"] = f"{path}:{environ['PATH']}"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process, folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def wait_until_healthy(uri: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=2).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.long
def test_a_run_is_recorded_on_a_server_with_logins(
    server: str, home: Path, rlplug: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for line in block("MLFLOW_TRACKING_USERNAME").splitlines():
        words = shlex.split(line.replace("--steps 2000", "--steps 60"))
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            monkeypatch.setenv(name, server if name == "MLFLOW_TRACKING_URI" else value)
        else:
            done = rlplug(*words[1:])
            assert done.code == 0, done.err
            said.append(done.out)
    assert server in said[0]
    assert "FINISHED" in said[-1]
    (folder,) = (home / "work").iterdir()
    from mlflow import MlflowClient

    run = MlflowClient(server).get_run(folder.name)
    assert run.info.status == "FINISHED"
    files = {one.path for one in MlflowClient(server).list_artifacts(folder.name, "config")}
    assert "config/config.toml" in files
    kept = [file for file in folder.rglob("*") if file.is_file()]
    assert not any(b"change-this-password" in file.read_bytes() for file in kept)


@pytest.mark.long
@pytest.mark.parametrize("password", ["", "wrong-password"])
def test_without_the_right_password_nothing_is_started(
    server: str, home: Path, rlplug: Command, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    if password:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    refused = rlplug("run", "--algo", "linucb", "--steps", "40")
    assert refused.code == 2
    assert "You are not authenticated" in refused.err
    assert "try: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in refused.err
    assert "wrong-password" not in refused.err
    assert not list((home / "work").glob("*/run.json"))
