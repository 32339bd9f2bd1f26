"""The learners of a run as torch.distributed ranks: what they tell each other beside gradients.

The first one decides: when to report, evaluate, save and stop. It tells the others once per
collection, and serves all that is not theirs: tracking, checkpoints, evaluation, progress.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from rlplug.errors import RequestError, RunFailedError
from rlplug.learner.device import limit_threads
from rlplug.learner.distributed import all_gather, broadcast, gather, scatter, wait_for
from rlplug.scale.launcher import LearnerProcesses, Place
from rlplug.scale.learner_actors import LearnerActors
from rlplug.tracking.provenance import cores
from rlplug.tracking.status import is_alive

__all__ = ["Ranks", "differences", "is_broken_connection", "join", "lead"]

_STORES: Any = dist
"""Where torch has its stores, which it does not list as its own."""

_C10D: Any = import_module("torch.distributed.distributed_c10d")

_PATIENCE = datetime.timedelta(days=30)
"""How long a message is waited for: an evaluation of the first learner may take hours, and those
that have died meanwhile are noticed."""

_ANSWER = datetime.timedelta(minutes=30)
"""How long the first learner, for whom nobody evaluates or saves, waits for a message."""

_MEETING = datetime.timedelta(minutes=10)
_POLL = 0.05
_POST_MORTEM_SECONDS = 3.0
"""How long the others may take to say that they are not the one that died."""


Processes: TypeAlias = LearnerProcesses | LearnerActors
"""The other learners, where this process has started them."""


class Ranks:
    """All learners of a run, as one of them sees them."""

    def __init__(
        self,
        place: Place,
        store: Any,
        everyone: Sequence[tuple[str, int]],
        processes: Processes | None = None,
    ) -> None:
        self.index, self.size = place.index, place.size
        self.in_step = False
        """Whether all are at the same place of the loop: only then are numbers added up."""
        self.signal = 0
        """The signal that the first learner received; 0: none."""
        self.is_asked = False
        """Whether the first learner was asked for a checkpoint."""
        self.due = 0
        """The step from which on the first learner has something to do."""
        self._store = store
        self._processes = processes
        host, own = _process()
        self._pids = {
            index: pid
            for index, (where, pid) in enumerate(everyone)
            if where == host and pid != own
        }
        """The processes of the other learners on this host."""
        backend = "gloo"
        if torch.cuda.is_available():
            devices = torch.cuda.device_count()
            torch.cuda.set_device(place.local_index % devices)
            own = place.local_size <= devices if place.own_gpu is None else place.own_gpu
            if own and dist.is_nccl_available():
                backend = "cpu:gloo,cuda:nccl"
        self._join(backend)
        threads = min(torch.get_num_threads(), cores() // place.local_size)
        self._restore_threads = limit_threads(max(threads, 1))

    @property
    def is_first(self) -> bool:
        """Whether this is the learner that tracks, saves and evaluates."""
        return self.index == 0

    def _join(self, backend: str) -> None:
        """Make the process group; in a thread, as one that has died would be waited for."""
        errors: list[BaseException] = []
        # torch names groups by their number, and counts those, too, that nobody could join: it
        # would wait for ever for processes that have not seen them.
        _C10D._world.group_count = 0

        def join() -> None:
            try:
                dist.init_process_group(
                    backend,
                    store=_STORES.PrefixStore("learners", self._store),
                    rank=self.index,
                    world_size=self.size,
                    timeout=_ANSWER if self.is_first else _PATIENCE,
                )
            except BaseException as error:
                errors.append(error)

        joining = threading.Thread(target=join, daemon=True)
        joining.start()
        while joining.is_alive():
            joining.join(_POLL)
            self.refuse_lost()
        if errors:
            raise errors[0]

    # -- numbers, while all are in step ----------------------------------------------------------

    def exchange(self, count: int, *, signal: int = 0, asked: bool = False, due: int = 0) -> int:
        """The sum of the counts; what the first learner knows besides is known to all after it."""
        mine = [count, signal, int(asked), due] if self.is_first else [count, 0, 0, 0]
        total, self.signal, wanted, self.due = map(int, self._reduced(mine, torch.int64))
        self.is_asked = bool(wanted)
        return total

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all learners; out of step, the numbers themselves."""
        if not self.in_step:
            return list(numbers)
        return self._reduced(numbers, torch.float64)

    def least(self, number: float) -> float:
        """The smallest over all learners."""
        (told,) = self._reduced([number], torch.float64, dist.ReduceOp.MIN)
        return told

    def _reduced(
        self, numbers: Sequence[float], dtype: torch.dtype, how: Any = dist.ReduceOp.SUM
    ) -> list[float]:
        told = torch.tensor(numbers, dtype=dtype)
        wait_for(dist.all_reduce(told, how, async_op=True), self.refuse_lost)
        found: list[float] = told.tolist()
        return found

    def gather(self, value: Any) -> list[Any]:
        """What each learner gives, in their order."""
        return all_gather(value, check=self.refuse_lost)

    def gather_in_step(self, value: Any) -> list[Any]:
        """The same; out of step, only what this one gives."""
        return self.gather(value) if self.in_step else [value]

    # -- messages of the first learner -----------------------------------------------------------

    def tell(self, value: Any = None) -> Any:
        """What the first learner says."""
        return broadcast(value, check=self.refuse_lost)

    def give(self, values: Sequence[Any] = ()) -> Any:
        """What the first learner has for this one."""
        return scatter(values, check=self.refuse_lost)

    def collect(self, value: Any) -> list[Any]:
        """What each learner has for the first one, which alone gets it."""
        return gather(value, check=self.refuse_lost)

    # -- ends ------------------------------------------------------------------------------------

    def refuse_lost(self) -> None:
        """Raise if a process that was started here, or is on this host, has ended."""
        ended = self._processes is not None and self._processes.ended()
        if ended or not all(map(is_alive, self._pids.values())):
            raise dist.DistError("the process of a learner has ended")

    def failed(self, reason: str) -> None:
        """Leave word why this learner ends; empty: because another one did."""
        with contextlib.suppress(Exception):
            self._store.set(f"failed/{self.index}", reason or "-")

    def lost(self, error: BaseException) -> RunFailedError | None:
        """Which learner died, if that is what the error comes from."""
        if not is_broken_connection(error):
            return None
        others = set(range(1, self.size))
        reasons: dict[int, str] = {}
        deadline = time.monotonic() + _POST_MORTEM_SECONDS
        while len(reasons) < len(others) and time.monotonic() < deadline:
            for index in others - set(reasons):
                with contextlib.suppress(Exception):
                    if self._store.check([f"failed/{index}"]):
                        reasons[index] = self._store.get(f"failed/{index}").decode()
            time.sleep(_POLL)
        ended = {} if self._processes is None else self._processes.ended()
        told = [
            f"learner {index} of {self.size} failed: {reason}"
            for index, reason in sorted(reasons.items())
            if reason != "-"
        ]
        told += [
            f"learner {index} of {self.size} died: its process {ended.get(index, 'is gone')}"
            for index in sorted(others - set(reasons))
        ]
        if not told:
            return None
        return RunFailedError(f"{'; '.join(told)}.", "the run cannot go on without it")

    def close(self, *, in_order: bool) -> None:
        """End the group; `in_order`: all others have been told that the run has ended."""
        self._restore_threads()
        # It waits for messages in progress, which do not come from a learner that died.
        ending = threading.Thread(target=_destroy_group, daemon=True)
        ending.start()
        ending.join(None if in_order else _POST_MORTEM_SECONDS)
        if self._processes is not None:
            self._processes.close(kill=not in_order)


def lead(size: int, place: Place | None, actors: LearnerActors | None = None) -> Ranks:
    """Start the other learners, as actors or processes, unless torchrun has, and meet them."""
    processes: Processes | None = actors
    store: Any
    places: list[Place] = []
    if place is None:
        host = "127.0.0.1" if actors is None else actors.host
        store = _STORES.TCPStore(host, 0, is_master=True)
        processes = LearnerProcesses() if actors is None else actors
        places = [
            Place(
                index=index,
                size=size,
                host=host,
                port=store.port,
                local_index=index,
                local_size=size,
            )
            for index in range(size)
        ]
        if actors is not None:
            places = [actors.place(one) for one in places]
        place = places[0]
    else:
        store = _store_of_torchrun(place)
    try:
        if processes is not None:
            processes.start(places[1:])
        wanted = [f"here/{index}" for index in range(1, size)]
        deadline = time.monotonic() + _MEETING.total_seconds()
        while not store.check(wanted):
            if processes is not None:
                processes.refuse_ended()
            if time.monotonic() > deadline:
                missing = [one.partition("/")[2] for one in wanted if not store.check([one])]
                raise RequestError(
                    f"learners {', '.join(missing)} of {size} did not come within "
                    f"{_MEETING.total_seconds():.0f} seconds.",
                    "try: look whether their hosts reach each other",
                )
            time.sleep(_POLL)
        everyone = [_process(), *(tuple(json.loads(store.get(one))) for one in wanted)]
        store.set("go", json.dumps(everyone))
        return Ranks(place, store, everyone, processes)
    except BaseException:
        if processes is not None:
            processes.close(kill=True)
        raise


def join(place: Place) -> Ranks:
    """Meet the first learner."""
    if place.by_torchrun:
        store = _store_of_torchrun(place)
    else:
        store = _STORES.TCPStore(place.host, place.port, timeout=_MEETING)
    store.set(f"here/{place.index}", json.dumps(_process()))
    # The first one has refused the run if it says nothing within the store's time.
    return Ranks(place, store, [tuple(one) for one in json.loads(store.get("go"))])


def _process() -> tuple[str, int]:
    """The host and the id of this process."""
    return socket.gethostname(), os.getpid()


def _destroy_group() -> None:
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


def is_broken_connection(error: BaseException) -> bool:
    """Whether an error says that another process of the group is gone."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(word in text for word in _BROKEN)


_BROKEN = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe")


def _store_of_torchrun(place: Place) -> Any:
    store, _, _ = next(_STORES.rendezvous("env://", place.index, place.size, timeout=_MEETING))
    # A restarted group of torchrun's must not find what the one before it left.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return _STORES.PrefixStore(f"rlplug/{attempt}", store)


def differences(digests: Sequence[Mapping[str, str]]) -> tuple[int, str] | None:
    """The first learner whose weights are not those of learner 0, and the name of one."""
    for index, one in enumerate(digests):
        for name, digest in digests[0].items():
            if one.get(name) != digest:
                return index, name
    return None
