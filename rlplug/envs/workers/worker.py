"""The process of one worker: it holds rows, and does with them what it is asked to."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from itertools import repeat
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, Protocol

import attrs
import numpy
import threadpoolctl

from rlplug.envs.saving import SavedEnvironments
from rlplug.errors import FAILURES

__all__ = ["Failure", "HeldRows", "main", "poller"]

_QUICK, _TOGETHER = 300e-6, 1e-3
"""What takes less on average is answered together, if that is not longer ago: messages take as
long as some environments' steps."""

_NEWEST = 0.01
"""The weight of the newest step in that average: one of a second counts for some hundreds more."""


class HeldRows(Protocol):
    """What a worker holds: environments, or games. Every method is about the row of a number.

    What `reset` and `step` return is sent to the process that asked; so is what `save` returns.
    """

    doing: str
    """`reset` while a step resets."""

    def make(self, number: int, argument: None) -> None:
        """Make it."""

    def reset(self, number: int, seed: int | None) -> Any:
        """Begin an episode."""

    def step(self, number: int, actions: Any) -> Any:
        """Take a step, and begin the next episode where that ended one."""

    def save(self, number: int, argument: None) -> SavedEnvironments:
        """Pickle it in the middle of its episode, or say why it cannot be."""

    def restore(self, number: int, saved: bytes) -> None:
        """Continue a saved episode."""

    def close(self) -> None:
        """Close all."""


@attrs.frozen(kw_only=True)
class Failure:
    """What a row raised."""

    number: int
    method: str
    message: str
    traceback: str = ""


def main(
    connection: Connection,
    alive: Connection,
    output: Connection | None,
    at: Any,
    memory: Any,
    assignment: bytes,
) -> None:
    """What the process runs. `assignment` is pickled by value: it needs no `__main__`.

    What is printed goes to `output`. `at` has the number of the row that each worker is at.
    """
    # The process that started it handles signals, and still needs the environments then.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if output is not None:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        output.close()
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    hold, seed, index = pickle.loads(assignment)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    threadpoolctl.threadpool_limits(1, user_api="blas")
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
    rows: HeldRows = hold() if memory is None else hold(memory)
    # Without the connection, the process that started it is gone.
    with contextlib.suppress(EOFError, OSError):
        _answer(connection, rows, at, index)
    with contextlib.suppress(*FAILURES):
        rows.close()


def _answer(connection: Connection, rows: HeldRows, at: Any, index: int) -> None:
    """Do what is asked for with each of the rows named, until there is nothing more to do."""
    has_more, average, began = poller(connection), 1.0, 0.0
    answers: list[tuple[int, Any]] = []
    while True:
        if answers and not has_more(0.0):
            connection.send_bytes(pickle.dumps(answers))
            answers = []
        request = connection.recv_bytes()
        if not request:
            return
        method, numbers, arguments, together = pickle.loads(request)
        act, now = _OF_PROCESS.get(method, getattr)(rows, method), perf_counter()
        for number, argument in zip(numbers, arguments or repeat(None), strict=False):
            before, at[index] = now, number
            began = began if answers else before
            try:
                rows.doing = method
                answers.append((number, act(number, argument)))
            except FAILURES as error:
                failure = Failure(
                    number=number,
                    method=rows.doing,
                    message=f"{type(error).__name__}: {error}",
                    traceback=traceback.format_exc(),
                )
                connection.send_bytes(pickle.dumps(failure))
                connection.recv_bytes()
                return
            now = perf_counter()
            average += _NEWEST * (now - before - average)
            if not together and (average >= _QUICK or now - began >= _TOGETHER):
                connection.send_bytes(pickle.dumps(answers))
                answers = []


def poller(connection: Connection) -> Callable[[float | None], bool]:
    """Whether there is something to read within so many seconds; also if the other side is gone.

    `Connection.poll` prepares anew in every call, which takes longer than to read an answer.
    """
    if not hasattr(select, "poll"):
        return connection.poll
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return lambda seconds: bool(poll.poll(None if seconds is None else 1000 * seconds))


def _saving(rows: HeldRows, method: str) -> Callable[[int, Any], SavedEnvironments]:
    """Saves a row with the states of this process's global random number generators."""

    def save(number: int, argument: Any) -> SavedEnvironments:
        saved, torch = rows.save(number, None), sys.modules.get("torch")
        of_torch = None if torch is None else torch.get_rng_state().numpy()
        states = random.getstate(), numpy.random.get_state(), of_torch
        return attrs.evolve(saved, pickled=pickle.dumps((saved.pickled, states)))

    return save


def _restoring(rows: HeldRows, method: str) -> Callable[[int, Any], None]:
    def restore(number: int, saved: bytes) -> None:
        own, (of_python, of_numpy, of_torch) = pickle.loads(saved)
        rows.restore(number, own)
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)
        if of_torch is not None:
            import torch

            torch.set_rng_state(torch.from_numpy(of_torch))

    return restore


_OF_PROCESS: dict[str, Callable[..., Any]] = {"save": _saving, "restore": _restoring}
"""What is done with a row and its process."""


def _end_with(alive: Connection) -> None:
    """End this process, also in the middle of a step, when that which started it is gone."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv_bytes()
    os._exit(1)
