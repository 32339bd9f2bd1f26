"""The process of one worker: it makes environments, and steps those that it is told to."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import random
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import attrs
import gymnasium
import numpy
import threadpoolctl

from rlplug.batch.nested import copied, tree_map
from rlplug.envs.saving import EnvironmentSaver, restore_environments
from rlplug.envs.sync import INFOS_READ, SyncVector
from rlplug.envs.workers.columns import SharedColumns
from rlplug.envs.workers.memory import Memory
from rlplug.errors import FAILURES

__all__ = ["BEGUN", "STEP", "TOGETHER", "Assignment", "Failure", "main", "steps_of"]

STEP, TOGETHER = b"s", b"t"
"""Requests for steps: to be answered for as soon as they are taken, or all at once."""

BEGUN = -1.0
"""What stands for the seconds of a step that is being taken."""

_QUICK = 300e-6
"""Where steps take less on average, they are answered for together: messages take as long."""

_TOGETHER_SECONDS = 1e-3
"""How long steps are taken until they are answered for."""

_NEWEST = 0.01
"""The weight of the newest step in that average: one of a second counts for some hundreds more."""


@attrs.frozen(kw_only=True)
class Assignment:
    """What one worker is to do."""

    make: Callable[[], gymnasium.Env[Any, Any]]
    envs: range
    """Which environments are its own."""
    num_envs: int
    """Of all workers."""
    seed: int
    """Of the process's global random number generators."""
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


@attrs.frozen(kw_only=True)
class Failure:
    """What an environment raised."""

    env: int
    method: str
    message: str
    traceback: str = ""


class _OneEnvironment(SyncVector):
    """Keeps infos as they are: they are batched where they are sent to."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        super().__init__([make])
        self.infos: list[dict[str, Any]] = []

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        final = env_info.get("final_info")
        if final is not None:
            env_info = {"final_info": {key: final[key] for key in INFOS_READ & final.keys()}}
        self.infos.append(env_info)
        return vector_infos


class _Worker:
    """Answers the requests of the process that started it."""

    def __init__(self, connection: Connection, memory: Memory, assignment: Assignment) -> None:
        self._connection = connection
        self._assignment = assignment
        self._first = assignment.envs.start
        self._vectors: list[_OneEnvironment] = []
        self._saver = EnvironmentSaver(partial(_OneEnvironment, assignment.make))
        self._at = 0, "making it"
        self._average = 1.0
        """Seconds of the last steps; at first nobody knows."""
        self._read = b""
        """A request that was read and not answered."""
        self._columns = SharedColumns(
            assignment.observation_space,
            assignment.action_space,
            assignment.num_envs,
            memory,
        )
        self._answers: dict[bytes, Callable[[bytes], bytes]] = {
            STEP: self._step,
            TOGETHER: partial(self._step, together=True),
            b"r": self._reset,
            b"g": self._get_state,
            b"p": self._set_state,
        }

    def run(self) -> None:
        """Make the environments, then answer until the connection is closed."""
        try:
            for number in self._assignment.envs:
                self._at = number, "making it"
                vector = _OneEnvironment(self._assignment.make)
                self._refuse_other_spaces(vector)
                self._vectors.append(vector)
            answer = b""
            while True:
                request = self._next_request(answer)
                kind, rest = request[:1], request[1:]
                if kind == b"c":
                    self._close()
                    return
                answer = b"." + self._answers[kind](rest)
        except FAILURES as error:
            number, method = self._at
            failure = Failure(
                env=number,
                method=method,
                message=f"{type(error).__name__}: {error}",
                traceback=traceback.format_exc(),
            )
            self._next_request(b"!" + pickle.dumps(failure))

    def _next_request(self, answer: bytes) -> bytes:
        """Answer, and wait for what is to be done next."""
        try:
            self._connection.send_bytes(answer)
            read, self._read = self._read, b""
            return read or self._connection.recv_bytes()
        except (EOFError, OSError):
            # The process that started it is gone.
            return b"c"

    def _refuse_other_spaces(self, vector: SyncVector) -> None:
        for kind in ("observation_space", "action_space"):
            one, first = getattr(vector, f"single_{kind}"), getattr(self._assignment, kind)
            if one != first:
                raise ValueError(f"it has another {kind} than the first: {one}, not {first}")

    def _step(self, request: bytes, *, together: bool = False) -> bytes:
        """Step these environments one after the other; the answer is for those not answered for.

        Those that are asked for in the meantime are stepped, too, where steps are quick.
        """
        infos: list[tuple[int, dict[str, Any]]] = []
        shared, count, taken = self._columns, 0, 0.0
        numbers = deque(_numbers(request))
        while numbers:
            number = numbers.popleft()
            if count and not together and (self._average >= _QUICK or taken >= _TOGETHER_SECONDS):
                self._connection.send_bytes(b"." + _answer(count, infos))
                count, taken, infos = 0, 0.0, []
            vector = self._vectors[number - self._first]
            row = slice(number, number + 1)
            self._at = number, "step"
            # An environment may keep its action, and the next one is written to the same place.
            actions = tree_map(lambda leaf, row=row: copied(leaf[row]), shared.actions)
            terminated, truncated = shared.terminated[row], shared.truncated[row]
            terminated[0] = truncated[0] = False
            seen = tree_map(lambda leaf, row=row: leaf[row], shared.observations)
            shared.seconds[number] = BEGUN
            began = perf_counter()
            try:
                found = vector.step_into(
                    actions, seen, shared.rewards[row], terminated, truncated, INFOS_READ
                )
            except FAILURES:
                self._at = number, vector.failed[1] if vector.failed else "step"
                raise
            shared.seconds[number] = took = perf_counter() - began
            self._average += _NEWEST * (took - self._average)
            count, taken = count + 1, taken + took
            if "final_obs" in found:
                finals = tree_map(lambda leaf, row=row: leaf[row], shared.finals)
                tree_map(numpy.copyto, finals, found["final_obs"])
            if vector.infos:
                infos += [(number, info) for info in vector.infos]
                vector.infos = []
            if not numbers and not together and self._average < _QUICK:
                numbers.extend(self._asked_meanwhile())
        return _answer(count, infos)

    def _asked_meanwhile(self) -> list[int]:
        """The environments to step that the next request names, if there is one already."""
        if not self._connection.poll():
            return []
        request = self._connection.recv_bytes()
        if request[:1] == STEP:
            return _numbers(request[1:])
        self._read = request
        return []

    def _reset(self, request: bytes) -> bytes:
        """Reset these environments, each from its seed."""
        infos: list[tuple[int, dict[str, Any]]] = []
        for number, seed in pickle.loads(request):
            vector = self._vectors[number - self._first]
            self._at = number, "reset"
            observations, _ = vector.reset(seed=[seed])
            row = slice(number, number + 1)
            seen = tree_map(lambda leaf, row=row: leaf[row], self._columns.observations)
            tree_map(numpy.copyto, seen, observations)
            infos += [(number, _read(info)) for info in vector.infos]
            vector.infos = []
        return pickle.dumps(infos) if infos else b""

    def _get_state(self, request: bytes) -> bytes:
        """The environments in the middle of their episodes, or why they cannot be saved."""
        return pickle.dumps(([self._saver.save(one, None) for one in self._vectors], _generators()))

    def _set_state(self, request: bytes) -> bytes:
        environments, generators = pickle.loads(request)
        for vector, saved in zip(self._vectors, environments, strict=True):
            restore_environments(vector, saved)
        if generators is not None:
            _set_generators(*generators)
        return b""

    def _close(self) -> None:
        for vector in self._vectors:
            with contextlib.suppress(*FAILURES):
                vector.close()
        self._columns.close()


def steps_of(answer: bytes) -> tuple[int, list[tuple[int, dict[str, Any]]]]:
    """How many steps an answer is for, and what they told."""
    return int.from_bytes(answer[1:5]), pickle.loads(answer[5:]) if len(answer) > 5 else []


def _numbers(request: bytes) -> list[int]:
    numbers: list[int] = numpy.frombuffer(request, numpy.int32).tolist()
    return numbers


def _answer(count: int, infos: list[tuple[int, dict[str, Any]]]) -> bytes:
    return count.to_bytes(4) + (pickle.dumps(infos) if infos else b"")


def _read(info: dict[str, Any]) -> dict[str, Any]:
    return {key: info[key] for key in INFOS_READ & info.keys()}


def _generators() -> tuple[Any, ...]:
    """The states of this process's global random number generators."""
    torch: Any = sys.modules.get("torch")
    of_torch = None if torch is None else torch.get_rng_state().numpy()
    return random.getstate(), numpy.random.get_state(), of_torch


def _set_generators(of_python: Any, of_numpy: Any, of_torch: Any) -> None:
    random.setstate(of_python)
    numpy.random.set_state(of_numpy)
    if of_torch is not None:
        import torch

        torch.set_rng_state(torch.from_numpy(of_torch))


def main(
    connection: Connection,
    alive: Connection,
    output: Connection | None,
    memory: Memory,
    assignment: bytes,
) -> None:
    """What the process runs. `assignment` is pickled by value: it needs no `__main__`.

    What environments print goes to `output`.
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
        if hasattr(faulthandler, "register"):
            # Also in the middle of a step that hangs.
            faulthandler.register(signal.SIGUSR2, all_threads=False)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    chosen: Assignment = pickle.loads(assignment)
    random.seed(chosen.seed)
    numpy.random.seed(chosen.seed % 2**32)
    threadpoolctl.threadpool_limits(1, user_api="blas")
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(chosen.seed)
        torch.set_num_threads(1)
    _Worker(connection, memory, chosen).run()


def _end_with(alive: Connection) -> None:
    """End this process, also in the middle of a step, when that which started it is gone."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv_bytes()
    os._exit(1)
