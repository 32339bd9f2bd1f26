"""The MLflow server that shows runs: find one that already does, start one, and end it."""

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
from rlplug.tracking.views import VIEW_TAGS

__all__ = ["FIRST_PORT", "UiServer", "free_port", "is_free", "serves_one_of", "share_views"]

FIRST_PORT = 5000
"""Where the UI listens if nothing else is said."""

READY_SECONDS = 60.0
ENDING_SECONDS = 5.0
ANSWER_SECONDS = 10.0
PROBE_SECONDS = 2.0
PORTS_TO_TRY = 50

_API = "/api/2.0/mlflow"


class UiServer:
    """An `mlflow server` in a process group of its own, whose end takes all of it along."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self._process = process
        self.url = url
        self._log = log

    @classmethod
    def start(
        cls, uri: str, root: Path, *, host: str, port: int, allowed_hosts: Sequence[str] = ()
    ) -> Self:
        """Start it; `wait_until_ready` says when it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
        command += ["--artifacts-destination", (root / "artifacts-proxied").as_uri()]
        command += ["--host", host, "--port", str(port), "--workers", "1"]
        if allowed_hosts:
            names = [*allowed_hosts, "localhost", "127.0.0.1"]
            # A browser sends the port with the name, except for port 80.
            both = [form for name in names for form in (name, f"{name}:{port}")]
            command += ["--allowed-hosts", ",".join(dict.fromkeys(both))]
        environment = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            **os.environ,
            # Its job runner would start five more processes that nothing here uses.
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
        """Return once it answers; raise what it said if it ended, or took too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RunFailedError(
                    f"MLflow's server ended before it answered: {self._last_words()}",
                    f"see: {self._log}",
                )
            with contextlib.suppress(OSError, http.client.HTTPException):
                if _answer(f"{self.url}/health", seconds=1.0) == b"OK":
                    return
            time.sleep(0.1)
        raise RunFailedError(
            f"MLflow's server did not answer at {self.url} within {seconds:.0f} s.",
            f"see: {self._log}",
        )

    def wait(self) -> None:
        """Return when it has ended by itself."""
        self._process.wait()

    def stop(self) -> None:
        """Ask the whole group to end, and make it."""
        for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_SECONDS)
        # The worker may outlive the process that started it.
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, number)
            else:
                self._process.terminate()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing."


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there; raises if nobody may, for example below port 1024."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections that have just ended do not keep a server from listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except (PermissionError, socket.gaierror, OverflowError) as error:
            raise RequestError(
                f"no server can listen on {host}:{port}: {error}.",
                "try: another --port (1024 to 65535), or another --host",
            ) from error
        except OSError:
            return False
    return True


def free_port(host: str, first: int) -> int:
    """The first port from `first` on that is free."""
    for port in range(first, first + PORTS_TO_TRY):
        if is_free(host, port):
            return port
    raise RequestError(
        f"ports {first} to {first + PORTS_TO_TRY - 1} are all taken.", "try: --port N"
    )


def serves_one_of(url: str, run_ids: Iterable[str]) -> bool:
    """Whether an MLflow answers there and knows one of the runs, which no other store could."""
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


def share_views(url: str, experiment_ids: Iterable[str]) -> None:
    """Make the views known; a server that refuses shows its own, which is no reason to fail."""
    for experiment_id in experiment_ids:
        for key, value in VIEW_TAGS.items():
            tag = {"experiment_id": experiment_id, "key": key, "value": value}
            with contextlib.suppress(OSError, http.client.HTTPException):
                _answer(f"{url}{_API}/experiments/set-experiment-tag", tag)


def _answer(url: str, body: Any = None, *, seconds: float = ANSWER_SECONDS) -> bytes:
    """What a server on this machine answers: asked directly, whatever proxy there is."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=seconds) as response:
        answer: bytes = response.read()
    return answer
