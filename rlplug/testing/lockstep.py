"""Two learners of one run in one process, each in a thread of its own, one running at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlplug.errors import RequestError
from rlplug.learner.distributed import ProcessGroup
from rlplug.seeding import random_state, set_random_state

__all__ = ["Lockstep", "LockstepGroup"]

_CPU = torch.device("cpu")


class Lockstep:
    """Passes the turn between two threads wherever they combine numbers."""

    size = 2

    def __init__(self) -> None:
        self._turn = 0
        self._changed = threading.Condition()
        self._given: list[list[Any]] = [[], []]
        self._gone = [False, False]
        self._error: BaseException | None = None

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run one task per learner to its end; raises the first error."""
        threads = [
            threading.Thread(target=self._task, args=(rank, task), daemon=True)
            for rank, task in enumerate(tasks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """What all learners gave, in the order of their ranks."""
        with self._changed:
            index = len(self._given[rank])
            self._given[rank].append(value)
            other = 1 - rank
            if not self._gone[other]:
                # The other one must go on before this one can: its generators are not these.
                state = random_state(_CPU)
                self._turn = other
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._turn == rank)
                set_random_state(state)
            if len(self._given[other]) <= index:
                raise self._error or RequestError(
                    "one of two learners combined numbers, and the other one did not.",
                    "call learner.all_reduce in every update, whatever is in the batch",
                )
            return [given[index] for given in self._given]

    def _task(self, rank: int, task: Callable[[], None]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == rank)
        try:
            task()
        except BaseException as error:
            self._error = self._error or error
        with self._changed:
            self._gone[rank] = True
            self._turn = 1 - rank
            self._changed.notify_all()


class LockstepGroup(ProcessGroup):
    """The group of two learners in lockstep, seen by one of them."""

    def __init__(self, lockstep: Lockstep, rank: int) -> None:
        super().__init__()
        self.size = lockstep.size
        self._lockstep, self._rank = lockstep, rank

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The tensors combined over both learners."""
        if not tensors:
            return []
        both = self._lockstep.exchange(self._rank, [one.detach().clone() for one in tensors])
        pairs = zip(*both, strict=True)
        if op == "max":
            return [torch.maximum(one, other) for one, other in pairs]
        totals = [one + other for one, other in pairs]
        return [one / self.size for one in totals] if op == "mean" else totals

    def gather(self, value: Any) -> list[Any]:
        """What each learner gives, in their order."""
        return list(self._lockstep.exchange(self._rank, value))
