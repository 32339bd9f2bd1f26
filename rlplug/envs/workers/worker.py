"""The process of one worker: it holds rows, and does with them what it is asked to."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import select
import signal
import threading
import traceback
from collections.abc import Callable
from functools import partial
from itertools import repeat
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import attrs
import numpy
import threadpoolctl
import torch

from rlplug.envs.saving import SavedEnvironments
from rlplug.errors import FAILURES, described
from rlplug.seeding import random_state, set_random_state

__all__ = ["Failure", "HeldRows", "main", "poller"]

_QUICK, _TOGETHER = 300e-6, 1e-3
"""What takes less on average is answered together, if that is not longer ago: messages take as
long as some environments' steps."""

_NEWEST = 0.01
"""The weight of the newest step in that average: one of a second counts for some hundreds more."""


class HeldRows:
    """Rows by number, in a worker or in this process: environments, or games.

    Subclasses define `make`, `reset`, `step`, `save` and `restore`. Each takes the number of a row
    and an argument: a seed, actions, what was saved, or None. What they return is the answer.
    """

    timestep: int | None = None
    """Ignored: the process that holds rows itself knows it."""

    def __init__(self, num: int = 0) -> None:
        self.num = num
        """The number of rows, in this process."""
        self.held: dict[int, Any] = {}
        self.doing = ""
        """The method that is called; `reset` while a step resets."""
        self.failed: tuple[int, str] | None = None
        """The row that raised, and in what."""

    def call(self, method: str, arguments: Any = None) -> list[Any]:
        """Call a method for all rows; returns the answers in their order."""
        answers, act, number = [], getattr(self, method), 0
        try:
            for number in range(self.num):
                self.doing = method
                answers.append(act(number, None if arguments is None else arguments[number]))
        except FAILURES:
            self.failed = number, self.doing
            raise
        return answers

    def close(self) -> None:
        """Close all rows, also after one that raises."""
        with contextlib.ExitStack() as stack:
            for row in self.held.values():
                stack.callback(row.close)


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
    at: Any,
    memory: Any,
    assignment: bytes,
) -> None:
    """What the process runs. `assignment` is pickled by value: it needs no `__main__`.

    `at` has the number of the row that each worker is at.
    """
    # The process that started it handles signals, and still needs the environments then.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    # What environments print is no part of the output of a command.
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    hold, seed, index = pickle.loads(assignment)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    threadpoolctl.threadpool_limits(1, user_api="blas")
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
    of_process: dict[str, Callable[..., Any]] = {
        "save": partial(_save, rows),
        "restore": partial(_restore, rows),
    }
    while True:
        if answers and not has_more(0.0):
            connection.send_bytes(pickle.dumps(answers))
            answers = []
        request = connection.recv_bytes()
        if not request:
            return
        method, numbers, arguments, together = pickle.loads(request)
        act, now = of_process.get(method) or getattr(rows, method), perf_counter()
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
                    message=described(error),
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


def _save(rows: Any, number: int, argument: None) -> SavedEnvironments:
    """Save a row with the states of this process's global random number generators."""
    saved: SavedEnvironments = rows.save(number, argument)
    return attrs.evolve(saved, pickled=pickle.dumps((saved.pickled, random_state())))


def _restore(rows: Any, number: int, saved: bytes) -> None:
    own, state = pickle.loads(saved)
    rows.restore(number, own)
    set_random_state(state)


def _end_with(alive: Connection) -> None:
    """End this process, also in the middle of a step, when that which started it is gone."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv_bytes()
    os._exit(1)
