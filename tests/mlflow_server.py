"""An MLflow server for tests, as `rlplug ui` starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path


class MlflowServer:
    """A server of a database in its own process group, which is stopped as a whole."""

    def __init__(self, store: str, folder: Path, port: int) -> None:
        from rlplug.tracking.server import server_command

        self.url = f"http://127.0.0.1:{port}"
        command, environment = server_command(store, folder, host="127.0.0.1", port=port)
        with (folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        wait_until_healthy(self.url, self._process)

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, number)
                self._process.wait(5.0)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=1.0):
            return
        time.sleep(0.1)
    raise RuntimeError(f"no MLflow server answers at {url}")
