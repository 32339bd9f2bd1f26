"""Worker processes: started, asked, found dead, replaced, and ended."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import math
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle

from rlplug.envs.workers.memory import Memory
from rlplug.envs.workers.worker import Assignment, main

__all__ = ["Worker", "WorkerStarter", "wait_for"]

_LOG = logging.getLogger("rlplug")

_CLOSING_SECONDS = 5.0
"""How long closing environments may take."""

_PRINTING_SECONDS = 0.2
"""How long a process is given to print its stack."""


class Worker:
    """One worker process, as seen by the one that started it."""

    def __init__(self, process: BaseProcess, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self._process = process
        self._poll: Any = None
        if hasattr(select, "poll"):
            # `Connection.poll` makes one in every call, which takes longer than to read an answer.
            self._poll = select.poll()
            self._poll.register(connection, select.POLLIN)

    def ask(self, kind: bytes, rest: bytes = b"") -> None:
        """Send a request; a worker that is gone is found out when its answer is read."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(kind + rest)

    def answer(self, timeout: float = 0.0) -> bytes:
        """Wait for its answer, at most so many seconds if that is not 0.

        Raises TimeoutError, or EOFError or another OSError if the process is gone.
        """
        if timeout and not self.has_answered(timeout):
            raise TimeoutError
        return self.connection.recv_bytes()

    def has_answered(self, within: float | None = 0.0) -> bool:
        """Whether there is an answer to read, or none to come, within so many seconds."""
        if self._poll is None:
            return self.connection.poll(within)
        return bool(self._poll.poll(None if within is None else math.ceil(1000 * within)))

    def how_it_ended(self) -> str:
        """How a process ended that is gone."""
        self._process.join(_CLOSING_SECONDS)
        code = self._process.exitcode
        if code is None:
            return "closed its connection"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def print_stack(self) -> None:
        """Let it print where it is, if it can be told to."""
        pid = self._process.pid
        if hasattr(faulthandler, "register") and pid is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGUSR2)
                time.sleep(_PRINTING_SECONDS)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join(_CLOSING_SECONDS)
        self.connection.close()

    def close(self) -> None:
        """Let it close its environments, which was asked for before; end it if that takes long."""
        self._process.join(_CLOSING_SECONDS)
        self.kill()

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid


class WorkerStarter:
    """Starts worker processes, and logs what they print."""

    def __init__(self) -> None:
        methods = multiprocessing.get_all_start_methods()
        # What workers import is imported once, by the process that they are forked from.
        self._method = "forkserver" if "forkserver" in methods else "spawn"
        self._context: Any = multiprocessing.get_context(self._method)
        if self._method == "forkserver":
            self._context.set_forkserver_preload([main.__module__])
        self._ended, self._alive = self._context.Pipe(duplex=False)
        self._output: Connection | None = None
        self._printed: Connection | None = None
        if os.name == "posix":
            self._printed, self._output = self._context.Pipe(duplex=False)
            threading.Thread(
                target=_log_lines, args=(self._printed,), name="rlplug-worker-output", daemon=True
            ).start()

    def start(self, assignment: Assignment, memory: Memory, number: int) -> Worker:
        """Start a worker; its first answer says that its environments are made."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=main,
            args=(theirs, self._ended, self._output, memory, cloudpickle.dumps(assignment)),
            name=f"rlplug-worker-{number}",
            daemon=True,
        )
        with _without_main(), _without_terminal():
            process.start()
        theirs.close()
        return Worker(process, ours, number)

    def close(self) -> None:
        """End all workers that still run."""
        for connection in (self._alive, self._ended, self._output):
            if connection is not None:
                connection.close()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the script that runs: a worker would run it again, to find what is pickled by name."""
    running = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = running


@contextlib.contextmanager
def _without_terminal() -> Iterator[None]:
    """Start processes that signals of the terminal do not reach while they import."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _log_lines(printed: Connection) -> None:
    """Log what workers print, line by line, until the last of them ends."""
    with contextlib.suppress(OSError), os.fdopen(os.dup(printed.fileno()), "rb") as lines:
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                # Past the logger's level: it is for the run's log, not for the terminal.
                said = f"rlplug: printed by an environment: {text}"
                _LOG.handle(_LOG.makeRecord(_LOG.name, logging.INFO, __file__, 0, said, (), None))


def wait_for(workers: list[Worker], seconds: float | None) -> list[Worker]:
    """Those of the workers that have answered, or are gone, within so many seconds."""
    ready = wait([worker.connection for worker in workers], seconds)
    return [worker for worker in workers if worker.connection in ready]
