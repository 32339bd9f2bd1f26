"""The MLflow server for the UI: find a running one, or start and stop one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from rlplug.errors import RequestError, RunFailedError

__all__ = [
    "FIRST_PORT",
    "UiServer",
    "free_port",
    "is_free",
    "newest_experiment",
    "serves_one_of",
    "without_assistant",
]

FIRST_PORT = 5000
"""The default port of the UI."""

QUIET_NAME = "rlplug.localhost"
"""A name of this machine: at `localhost` and `127.0.0.1`, the UI opens MLflow's Assistant."""

READY_SECONDS = 60.0
ENDING_SECONDS = 5.0
ANSWER_SECONDS = 10.0
PROBE_SECONDS = 2.0
PORTS_TO_TRY = 50

_API = "/api/2.0/mlflow"
_DEFAULT_EXPERIMENT = "0"


class UiServer:
    """An `mlflow server` in its own process group, which is stopped as a whole."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self._process = process
        self.url = url
        self._log = log

    @classmethod
    def start(
        cls, uri: str, root: Path, *, host: str, port: int, allowed_hosts: Sequence[str] = ()
    ) -> Self:
        """Start it; `wait_until_ready` waits until it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
        command += ["--artifacts-destination", (root / "artifacts-proxied").as_uri()]
        command += ["--host", host, "--port", str(port), "--workers", "1"]
        local = host == "127.0.0.1"
        if local or allowed_hosts:
            names = [*allowed_hosts, "localhost", "127.0.0.1", *([QUIET_NAME] if local else [])]
            # Browsers send the port with the host name, except port 80; it may be forwarded.
            shown = "*" if local else port
            both = [form for name in names for form in (name, f"{name}:{shown}")]
            command += ["--allowed-hosts", ",".join(dict.fromkeys(both))]
        if local:
            command += ["--cors-allowed-origins", f"http://{QUIET_NAME}:*"]
        environment = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            **os.environ,
            # The job runner would start five unused processes.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        log = root / "ui.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=root,
                start_new_session=True,
            )
        reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        return cls(process, f"http://{reached}:{port}", log)

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until it answers; raise if it exits or takes too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RunFailedError(
                    f"the MLflow server exited before it was ready: {self._last_line()}",
                    f"see: {self._log}",
                )
            with contextlib.suppress(OSError, http.client.HTTPException):
                if _answer(f"{self.url}/health", seconds=1.0) == b"OK":
                    return
            time.sleep(0.1)
        raise RunFailedError(
            f"the MLflow server did not answer at {self.url} within {seconds:.0f} s.",
            f"see: {self._log}",
        )

    def wait(self) -> None:
        """Wait until it exits by itself."""
        self._process.wait()

    def stop(self) -> None:
        """Terminate the process group, and kill it if need be."""
        for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_SECONDS)
        # Workers may outlive the main process.
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, number)
            else:
                self._process.terminate()

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing."


def is_free(host: str, port: int) -> bool:
    """Whether the port is free; raises if it is not permitted, for example below 1024."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Ports in TIME_WAIT count as free, as they do for servers.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except (PermissionError, socket.gaierror, OverflowError) as error:
            raise RequestError(
                f"cannot listen on {host}:{port}: {error}.",
                "try: another --port (1024 to 65535), or another --host",
            ) from error
        except OSError:
            return False
    return True


def free_port(host: str, first: int) -> int:
    """The first free port from `first` on."""
    for port in range(first, first + PORTS_TO_TRY):
        if is_free(host, port):
            return port
    raise RequestError(
        f"ports {first} to {first + PORTS_TO_TRY - 1} are all in use.", "try: --port N"
    )


def serves_one_of(url: str, run_ids: Iterable[str]) -> bool:
    """Whether an MLflow server at this URL has one of the runs, and so shows the same store."""
    try:
        if _answer(f"{url}/health", seconds=PROBE_SECONDS) != b"OK":
            return False
        for run_id in run_ids:
            try:
                _answer(f"{url}{_API}/runs/get?{urlencode({'run_id': run_id})}")
            except urllib.error.HTTPError as error:
                error.close()
            else:
                return True
    except (OSError, http.client.HTTPException):
        return False
    return False


def newest_experiment(url: str) -> str:
    """The id of the experiment that changed last, besides the empty one of every store, or \"\"."""
    wanted = {"max_results": 10, "order_by": ["last_update_time DESC"]}
    try:
        answer = json.loads(_answer(f"{url}{_API}/experiments/search", wanted))
    except (OSError, http.client.HTTPException, ValueError):
        return ""
    found = (one["experiment_id"] for one in answer.get("experiments", ()))
    return next((str(one) for one in found if str(one) != _DEFAULT_EXPERIMENT), "")


def without_assistant(url: str) -> str:
    """The address of a server of this machine by a name at which it opens no Assistant.

    Browsers know it by themselves, except Safari, which asks macOS.
    """
    if sys.platform == "darwin":
        try:
            socket.getaddrinfo(QUIET_NAME, None)
        except OSError:
            return url
    return url.replace("//127.0.0.1:", f"//{QUIET_NAME}:")


def _answer(url: str, body: Any = None, *, seconds: float = ANSWER_SECONDS) -> bytes:
    """The response of a local server, bypassing proxies."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=seconds) as response:
        answer: bytes = response.read()
    return answer
