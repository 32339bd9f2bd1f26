"""Processes that are forked from one which has imported everything already.

An interpreter that imports torch and MLflow takes seconds of a core, a fork milliseconds. For tests
that need a process of its own to kill or to ask, not for those of how one starts.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import IO, Any

IMPORTED = ("torch", "mlflow", "mlflow.store.tracking.sqlalchemy_store", "rlplug.cli.main")
"""With what these import, nearly all that a run does."""


class Forked:
    """A process of `Warm`, with those methods of `subprocess.Popen` that tests need."""

    def __init__(self, connection: socket.socket, out: IO[bytes], err: IO[bytes]) -> None:
        self._connection = connection
        self._out, self._err = out, err
        self.pid = int(connection.recv(100))
        # From here on, there is one more line to read.
        connection.sendall(b"\n")
        self.returncode: int | None = None
        self._told = "", ""

    def poll(self) -> int | None:
        """The exit code, or None while the process lives."""
        with contextlib.suppress(TimeoutError):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = 300.0) -> int:
        """Wait for its end."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = int(self._connection.recv(100))
            except BlockingIOError as error:
                raise TimeoutError from error
            self._told = _content(self._out), _content(self._err)
            for one in (self._connection, self._out, self._err):
                one.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = 300.0) -> tuple[str, str]:
        """What it wrote to stdout and stderr until its end."""
        self.wait(timeout)
        return self._told

    @property
    def out(self) -> str:
        """What it has written to stdout."""
        return self._told[0] if self.poll() is not None else _content(self._out)

    @property
    def err(self) -> str:
        """What it has written to stderr."""
        return self._told[1] if self.poll() is not None else _content(self._err)


def _content(file: IO[bytes]) -> str:
    # Without a change of its position, which the process shares.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


class Warm:
    """The process that the others are forked from."""

    def __init__(self) -> None:
        self._made: list[Forked] = []
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                # Read at the start, so that it cannot be asked for with a process.
                env={**os.environ, "PYTHONUTF8": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Ctrl-C ends the tests, and with them this process.
                start_new_session=True,
            )

    def start(
        self,
        *arguments: str,
        code: str = "",
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        paths: Sequence[Path] = (),
        new_session: bool = False,
    ) -> Forked:
        """Do what `python -m rlplug` does, or `python -c code`, with folders of modules."""
        environ = os.environ if environ is None else environ
        inherited = environ.get("PYTHONPATH", "").split(os.pathsep)
        request = {
            "arguments": arguments,
            "code": code,
            "cwd": str(cwd or Path.cwd()),
            "environ": dict(environ),
            "paths": [*map(str, paths), *filter(None, inherited)],
            "new_session": new_session,
        }
        ours, theirs = socket.socketpair()
        out, err = TemporaryFile(), TemporaryFile()  # noqa: SIM115 # `Forked` reads them
        with theirs:
            files = [theirs.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(self._connection, [json.dumps(request).encode() + b"\n"], files)
        self._made.append(Forked(ours, out, err))
        return self._made[-1]

    def close(self) -> None:
        """End it, and all that it has forked."""
        for one in self._made:
            one.kill()
            one.wait()
        self._connection.close()
        self._process.wait()


# -- in that process -----------------------------------------------------------------------------


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns, with the request, in the process that was asked for."""
    # Nobody waits for those that wait for the forked ones.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        content, files, _, _ = socket.recv_fds(connection, 65_536, 3)
        if not content:
            os._exit(0)
        while not content.endswith(b"\n"):
            content += connection.recv(65_536)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            pid = os.fork()
            if pid == 0:
                os.close(files[0])
                for file, number in zip(files[1:], (1, 2), strict=True):
                    os.dup2(file, number)
                    os.close(file)
                request: dict[str, Any] = json.loads(content)
                return request
            _wait_for(pid, socket.socket(fileno=files[0]))
        for file in files:
            os.close(file)


def _wait_for(pid: int, answers: socket.socket) -> None:
    """Tell the id of a process, and its exit code when it has ended."""
    answers.sendall(f"{pid}".encode())
    answers.recv(1)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        answers.sendall(f"{os.waitstatus_to_exitcode(status)}".encode())
    os._exit(0)


def _become(request: dict[str, Any]) -> None:
    """Do what was asked for, as a new interpreter does it."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    code, arguments = request["code"], request["arguments"]
    sys.path[:0] = ["" if code else request["cwd"], *request["paths"]]
    if code:
        sys.argv = ["-c", *arguments]
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), module.__dict__)
    else:
        sys.argv = ["rlplug", *arguments]
        runpy.run_module("rlplug", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # The folder of this file.
    del sys.path[0]
    for name in IMPORTED:
        importlib.import_module(name)
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
