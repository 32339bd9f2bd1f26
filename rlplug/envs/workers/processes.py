"""Worker processes: started, asked, found dead, and ended."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import pickle
import signal
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import attrs
import cloudpickle
import numpy

from rlplug.envs.workers.worker import Failure, HeldRows, main, poller
from rlplug.errors import EnvironmentFailedError
from rlplug.seeding import derive

__all__ = ["Workers", "context"]

_CLOSING_SECONDS = 5.0
"""How long closing environments may take."""

_IMPORTED_ONCE = "rlplug.envs.agents"
"""What workers import is imported once, by the process that they are forked from."""


def context() -> Any:
    """How workers are started, and what makes memory that they share."""
    methods = multiprocessing.get_all_start_methods()
    chosen: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if chosen.get_start_method() == "forkserver":
        chosen.set_forkserver_preload([_IMPORTED_ONCE])
    return chosen


@attrs.define(eq=False)
class _Worker:
    """One worker process, as seen by the one that started it."""

    process: BaseProcess
    connection: Connection
    has_answered: Callable[[float | None], bool]
    numbers: list[int] = attrs.field(factory=list)
    """The rows that it was asked for and has not answered for, in order."""
    method: str = ""
    """What it was asked to do with them."""
    seconds: float = math.inf
    """How long its next answer may take."""
    deadline: float = math.inf
    """When that time is over."""

    def how_it_ended(self) -> str:
        """How a process ended that is gone."""
        self.process.join(_CLOSING_SECONDS)
        code = self.process.exitcode
        if code is None:
            return "closed its connection"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """Wait until it has closed its rows, as it was asked to; end it if that takes long."""
        self.process.join(_CLOSING_SECONDS)
        self.process.kill()
        self.process.join(_CLOSING_SECONDS)
        self.connection.close()


class Workers:
    """Rows that worker processes hold: environments, or games.

    They are asked to do something with some of the rows, and answer for each. A row that fails,
    takes more than `timeout` seconds (0: as long as it likes), or whose process dies, is named in
    the error that ends the run.
    """

    def __init__(
        self,
        hold: Callable[..., HeldRows],
        num: int,
        num_workers: int,
        *,
        name: str,
        seed: int,
        timeout: float,
        memory: Any = None,
    ) -> None:
        """Start the workers, and let each make the rows of its share."""
        self.timestep: int | None = None
        """Steps of the run before those that are being taken, for messages; None: not known."""
        self._num, self._name, self._timeout = num, name, timeout
        edges = [num * number // num_workers for number in range(num_workers + 1)]
        self._all: list[tuple[int, Sequence[int]]] = [
            (index, list(range(*edges[index : index + 2]))) for index in range(num_workers)
        ]
        self._worker_of = numpy.repeat(numpy.arange(num_workers), numpy.diff(edges))
        self._workers: list[_Worker] = []
        chosen = context()
        self._at = chosen.RawArray("i", num_workers)
        self._ended, self._alive = chosen.Pipe(duplex=False)
        # Not what has the workers, which it would keep alive.
        self.close = weakref.finalize(self, _end, self._workers, (self._ended, self._alive))
        try:
            for index in range(num_workers):
                own_seed = derive(seed, "worker", index, 0)
                assignment = cloudpickle.dumps((hold, own_seed, index))
                ours, theirs = chosen.Pipe()
                process = chosen.Process(
                    target=main,
                    args=(theirs, self._ended, self._at, memory, assignment),
                    name=f"rlplug-worker-{index}",
                    daemon=True,
                )
                with _without_main(), _without_terminal():
                    process.start()
                theirs.close()
                self._workers.append(_Worker(process, ours, poller(ours)))
            self.call("make")
        except BaseException:
            self.close()
            raise

    def ask(
        self,
        method: str,
        numbers: Sequence[int],
        arguments: Any = None,
        *,
        together: bool = False,
    ) -> None:
        """Have something done with these rows, with an argument for each, by its number.

        With `together`, each worker answers once for all of them.
        """
        is_timed = self._timeout > 0 and method in ("step", "reset")
        limit, now = self._timeout if is_timed else math.inf, time.monotonic()
        for index, own in self._split(numbers):
            worker = self._workers[index]
            if not worker.numbers:
                worker.seconds = limit * len(own) if together else limit
                worker.deadline = now + worker.seconds
            worker.numbers += own
            worker.method = method
            given = None if arguments is None else [arguments[number] for number in own]
            # A worker that is gone is found out when its answer is read.
            with contextlib.suppress(OSError):
                worker.connection.send_bytes(pickle.dumps((method, own, given, together)))

    def receive(self, seconds: float | None = None) -> list[tuple[int, Any]]:
        """Wait for the answers of at least one row, at most so many seconds."""
        answers: list[tuple[int, Any]] = []
        until = math.inf if seconds is None else time.monotonic() + seconds
        busy = [worker for worker in self._workers if worker.numbers]
        while busy and not answers:
            ready = wait([worker.connection for worker in busy], _patience(busy, until))
            for worker in busy:
                if worker.connection in ready:
                    answers += self._read(worker)
            self._refuse_hanging(busy)
            if time.monotonic() >= until:
                break
        return answers

    def receive_all(self) -> list[tuple[int, Any]]:
        """Wait for all answers: worker by worker, which wakes this process less often."""
        answers: list[tuple[int, Any]] = []
        for worker in self._workers:
            while worker.numbers:
                if worker.has_answered(_patience([worker], math.inf)):
                    answers += self._read(worker)
                self._refuse_hanging([worker])
        return answers

    def call(self, method: str, arguments: Any = None) -> list[Any]:
        """Have something done with all rows; returns the answers in their order."""
        self.ask(method, range(self._num), arguments, together=method == "step")
        return [answer for _, answer in sorted(self.receive_all(), key=lambda pair: pair[0])]

    def _split(self, numbers: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
        """Each worker with those rows that are its own."""
        if len(numbers) == self._num:
            return self._all
        rows = numpy.asarray(numbers)
        workers = self._worker_of[rows]
        return [(one, rows[workers == one].tolist()) for one in dict.fromkeys(workers.tolist())]

    def _read(self, worker: _Worker) -> list[tuple[int, Any]]:
        try:
            answers = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            raise self._failed(worker, f"its worker process {worker.how_it_ended()}") from None
        if isinstance(answers, Failure):
            raise self._error(answers)
        del worker.numbers[: len(answers)]
        # The next one began when this one was answered.
        worker.deadline = time.monotonic() + worker.seconds
        read: list[tuple[int, Any]] = answers
        return read

    def _refuse_hanging(self, busy: Sequence[_Worker]) -> None:
        now = time.monotonic()
        for worker in busy:
            if worker.numbers and now >= worker.deadline and not worker.has_answered(0.0):
                seconds = f"{self._timeout:,.4g} s (sampling.step_timeout)"
                raise self._failed(worker, f"it took more than {seconds}")

    def _failed(self, worker: _Worker, message: str) -> EnvironmentFailedError:
        number = self._at[self._workers.index(worker)]
        if number not in worker.numbers:
            number = worker.numbers[0]
        return self._error(Failure(number=number, method=worker.method, message=message))

    def _error(self, failure: Failure) -> EnvironmentFailedError:
        which = f" ({failure.number + 1} of {self._num})" if self._num > 1 else ""
        when = "" if self.timestep is None else f" after {self.timestep:,} steps"
        method = "making it" if failure.method == "make" else failure.method
        error = EnvironmentFailedError(
            f"environment {self._name!r}{which} failed in {method}{when}: {failure.message}.",
            "try: fix the environment (--debug shows where)",
        )
        if failure.traceback:
            error.add_note(f"In the worker process:\n{failure.traceback.rstrip()}")
        return error


def _patience(busy: Sequence[_Worker], until: float) -> float | None:
    """Seconds until something is to be done, answer or not; None: nothing is."""
    moment = min(until, *(worker.deadline for worker in busy))
    return None if moment == math.inf else max(moment - time.monotonic(), 0.0)


def _end(workers: list[_Worker], ends: Sequence[Connection]) -> None:
    """End the workers, after they have closed their rows."""
    with ExitStack() as stack:
        for connection in ends:
            stack.callback(connection.close)
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.connection.send_bytes(b"")
            stack.callback(worker.close)


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
    # Where it starts by itself, it lets these signals through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
