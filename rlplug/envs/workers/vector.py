"""A vector environment whose environments are stepped by worker processes."""

from __future__ import annotations

import pickle
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import attrs
import gymnasium
import numpy
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlplug.batch.nested import copied, tree_map
from rlplug.envs.saving import other_environments
from rlplug.envs.sync import SyncVector
from rlplug.envs.workers.columns import SharedColumns
from rlplug.envs.workers.processes import Worker, WorkerStarter, wait_for
from rlplug.envs.workers.worker import BEGUN, STEP, TOGETHER, Assignment, Failure, steps_of
from rlplug.errors import EnvironmentFailedError
from rlplug.seeding import derive

__all__ = ["Received", "WorkerVector", "WorkersState"]


class WorkerVector(VectorEnv[Any, Any, Any]):
    """Environments in worker processes, each stepped as soon as it has an action.

    Episodes are reset in the step that ends them, as in `SyncVector`. `send` and `receive` are for
    samplers that do not wait for all; no environment may be sent an action before its last step
    was received.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int,
        num_workers: int,
        *,
        name: str = "",
        seed: int = 0,
        timeout: float = 0.0,
    ) -> None:
        """Start the workers. It fails with the first whose environment raises, takes more than
        `timeout` seconds (0: as long as it likes), or that dies.
        """
        first = SyncVector([make])
        self.num_envs = num_envs
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = first.render_mode
        self.spec = first.spec
        self.single_observation_space = first.single_observation_space
        self.single_action_space = first.single_action_space
        first.close()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.name = name or "the environment"
        self.timestep: int | None = None
        """Steps of the run before those that are being taken, for messages; None: not known."""
        self._make, self._seed, self._timeout = make, seed, timeout
        self.columns = SharedColumns(
            self.single_observation_space, self.single_action_space, num_envs
        )
        """The rows of environments that were received, until they are sent an action."""
        self._starter = WorkerStarter()
        edges = [num_envs * number // num_workers for number in range(num_workers + 1)]
        self._shares = [range(*edges[at : at + 2]) for at in range(num_workers)]
        self._worker_of = numpy.repeat(numpy.arange(num_workers), numpy.diff(edges))
        self._for_all = [
            (worker, share, numpy.array(share, numpy.int32).tobytes())
            for worker, share in enumerate(self._shares)
        ]
        self._pending = [_Pending() for _ in self._shares]
        """The steps that each worker was asked for."""
        self._workers: list[Worker] = []
        # Not the vector itself, which it would keep alive.
        self._finalizer = weakref.finalize(self, _end, self._workers, self._starter, self.columns)
        try:
            for number in range(num_workers):
                self._workers.append(self._start(number))
            for worker in self._workers:
                self._answer(worker, "making it")
        except BaseException:
            self.close()
            raise

    # -- all at once --------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all; environment i gets seed + i if a single seed is given."""
        if seed is None or isinstance(seed, int):
            seeds = [None if seed is None else seed + index for index in range(self.num_envs)]
        else:
            seeds = list(seed)
        for worker, share in zip(self._workers, self._shares, strict=True):
            worker.ask(b"r", pickle.dumps([(index, seeds[index]) for index in share]))
        told = [self._reset(worker) for worker in self._workers]
        infos = self.batched([one for answer in told for one in _infos(answer)])
        return tree_map(copied, self.columns.observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all, and wait for all; for environments that fail, it raises."""
        everyone = numpy.arange(self.num_envs)
        self.send(everyone, actions, together=True)
        received = self.receive_all()
        shared = self.columns
        batched = self.batched(sorted(received.infos, key=lambda one: one[0]))
        ended = shared.terminated | shared.truncated
        if ended.any():
            batched["final_obs"] = tree_map(copied, shared.finals)
            batched["_final_obs"] = ended
        seen = tree_map(copied, shared.observations)
        return (
            seen,
            shared.rewards.copy(),
            shared.terminated.copy(),
            shared.truncated.copy(),
            batched,
        )

    def batched(self, infos: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        """Infos of environments in the form of a vector's."""
        result: dict[str, Any] = {}
        for index, info in infos:
            result = self._add_info(result, info, index)
        return result

    # -- those that are ready -----------------------------------------------------------------

    def send(self, envs: Any, actions: Any, *, together: bool = False) -> None:
        """Let these environments, in their order, take a step.

        With `together`, each worker answers once; otherwise for each, or for several that take
        next to no time.
        """
        _put(self.columns.actions, envs, actions)
        now = time.monotonic()
        kind = TOGETHER if together else STEP
        for which, asked, request in self._requests(envs):
            pending = self._pending[which]
            if not pending.envs:
                seconds = self._timeout * (len(asked) if together else 1)
                pending.began, pending.seconds = now, seconds
            pending.envs += asked
            self._workers[which].ask(kind, request)

    def _requests(self, envs: Any) -> Iterable[tuple[int, Sequence[int], bytes]]:
        """Each worker with those environments that are its own, and the request that names them."""
        if len(envs) == self.num_envs:
            return self._for_all
        workers, numbers = self._worker_of[envs], numpy.asarray(envs, numpy.int32)
        shares = ((one, numbers[workers == one]) for one in dict.fromkeys(workers.tolist()))
        return ((one, asked.tolist(), asked.tobytes()) for one, asked in shares)

    def receive(self, seconds: float | None = None) -> Received:
        """Wait until at least one step is taken, at most so many seconds."""
        received = Received()
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            busy = [worker for worker in self._workers if self._pending[worker.number].envs]
            if not busy:
                return received
            for worker in wait_for(busy, self._patience(deadline)):
                self._receive(worker, received)
            self._refuse_hanging()
            if received.envs:
                return received
            if deadline is not None and time.monotonic() >= deadline:
                return received

    def receive_all(self) -> Received:
        """Wait until all steps are taken: worker by worker, which wakes this process less often."""
        received = Received()
        for number, pending in enumerate(self._pending):
            while pending.envs:
                worker = self._workers[number]
                late = self._too_late(pending) if self._timeout else None
                patience = None if late is None else max(late - time.monotonic(), 0.0)
                if worker.has_answered(patience):
                    self._receive(worker, received)
                self._refuse_hanging()
        return received

    @property
    def is_stepping(self) -> bool:
        """Whether there are steps to receive."""
        return any(pending.envs for pending in self._pending)

    def _patience(self, deadline: float | None) -> float | None:
        """Seconds until something is to be done, answer or not."""
        now = time.monotonic()
        moments = [] if deadline is None else [deadline]
        if self._timeout:
            moments += [self._too_late(pending) for pending in self._pending if pending.envs]
        return max(min(moments) - now, 0.0) if moments else None

    def _too_late(self, pending: _Pending) -> float:
        """When the step that a worker takes now has taken too long."""
        return pending.began + pending.seconds

    def _receive(self, worker: Worker, received: Received) -> None:
        pending = self._pending[worker.number]
        try:
            answer = worker.answer()
            failure = _failure(answer)
        except (EOFError, OSError):
            answer = b""
            failure = _gone(worker, self._stepped_by(worker), "step")
        if failure is not None:
            raise self._error(failure)
        count, infos = steps_of(answer)
        received.envs.extend(pending.envs[:count])
        received.infos.extend(infos)
        del pending.envs[:count]
        # The next one began when this one was answered.
        pending.began = time.monotonic()

    def _refuse_hanging(self) -> None:
        if not self._timeout:
            return
        now = time.monotonic()
        for worker, pending in zip(self._workers, self._pending, strict=True):
            if pending.envs and now >= self._too_late(pending) and not worker.has_answered():
                worker.print_stack()
                env = self._stepped_by(worker)
                raise self._error(Failure(env=env, method="step", message=self._too_long()))

    def _stepped_by(self, worker: Worker) -> int:
        """The environment whose step a worker has begun and not ended."""
        envs = self._pending[worker.number].envs
        return next((env for env in envs if self.columns.seconds[env] == BEGUN), envs[0])

    def _too_long(self) -> str:
        return f"it took more than {self._timeout:,.4g} s (sampling.step_timeout)"

    def _error(self, failure: Failure) -> EnvironmentFailedError:
        """The error for an environment that failed."""
        which = f" ({failure.env + 1} of {self.num_envs})" if self.num_envs > 1 else ""
        when = "" if self.timestep is None else f" after {self.timestep:,} steps"
        error = EnvironmentFailedError(
            f"environment {self.name!r}{which} failed in {failure.method}{when}: "
            f"{failure.message}.",
            "try: fix the environment (--debug shows where)",
        )
        if failure.traceback:
            error.add_note(f"In the worker process:\n{failure.traceback.rstrip()}")
        return error

    # -- state ----------------------------------------------------------------------------------

    def get_state(self) -> tuple[WorkersState, str]:
        """The environments, or why there are none; no step may be going on."""
        for worker in self._workers:
            worker.ask(b"g")
        answers = [pickle.loads(self._answer(worker, "saving")[1:]) for worker in self._workers]
        saved = [one for environments, _ in answers for one in environments]
        reason = next((one.reason for one in saved if one.reason), "")
        return WorkersState(
            environments=[] if reason else [one.pickled for one in saved],
            generators=[generators for _, generators in answers],
        ), reason

    def set_state(self, saved: WorkersState) -> None:
        """Continue the saved episodes. Unpickling runs code: only for runs of one's own store."""
        if len(saved.environments) != self.num_envs:
            raise other_environments()
        # Another number of workers shares them otherwise, and draws otherwise.
        is_same = len(saved.generators) == len(self._workers)
        for number, (worker, share) in enumerate(zip(self._workers, self._shares, strict=True)):
            generators = saved.generators[number] if is_same else None
            environments = [saved.environments[index] for index in share]
            worker.ask(b"p", pickle.dumps((environments, generators)))
        for worker in self._workers:
            self._answer(worker, "restoring it")

    def close_extras(self, **kwargs: Any) -> None:
        """End all workers."""
        self._finalizer()

    def _start(self, number: int) -> Worker:
        share = self._shares[number]
        assignment = Assignment(
            make=self._make,
            envs=share,
            num_envs=self.num_envs,
            seed=derive(self._seed, "worker", number, 0),
            observation_space=self.single_observation_space,
            action_space=self.single_action_space,
        )
        return self._starter.start(assignment, self.columns.memory, number)

    def _reset(self, worker: Worker) -> bytes:
        """The answer of a worker that resets its environments."""
        return self._answer(worker, "reset", self._timeout * len(self._shares[worker.number]))

    def _answer(self, worker: Worker, method: str, timeout: float = 0.0) -> bytes:
        """The answer of a worker, which comes within so many seconds (0: at any time)."""
        share = self._shares[worker.number]
        try:
            answer = worker.answer(timeout)
            failure = _failure(answer)
        except TimeoutError:
            worker.print_stack()
            failure = Failure(env=share.start, method=method, message=self._too_long())
        except (EOFError, OSError):
            failure = _gone(worker, share.start, method)
        if failure is not None:
            raise self._error(failure)
        return answer


@attrs.frozen(eq=False)
class Received:
    """Steps that were taken."""

    envs: list[int] = attrs.field(factory=list)
    infos: list[tuple[int, dict[str, Any]]] = attrs.field(factory=list)
    """Of these environments."""

    def add(self, later: Received) -> None:
        """Add what was received later."""
        self.envs.extend(later.envs)
        self.infos.extend(later.infos)


@attrs.define(eq=False)
class _Pending:
    """Steps that a worker was asked for."""

    envs: list[int] = attrs.field(factory=list)
    """Those that it has not answered for, in order."""
    began: float = 0.0
    """When it was asked, or answered last."""
    seconds: float = 0.0
    """How long the next answer may take."""


@attrs.frozen(kw_only=True)
class WorkersState:
    """What workers go on with."""

    environments: list[bytes]
    """A pickle of each."""
    generators: list[Any]
    """The global generators of each worker."""


def _put(arrays: Any, rows: Any, values: Any) -> None:
    """Write rows of nested arrays."""
    tree_map(lambda array, part: array.__setitem__(rows, part), arrays, values)


def _failure(answer: bytes) -> Failure | None:
    if answer[:1] != b"!":
        return None
    failure: Failure = pickle.loads(answer[1:])
    return failure


def _gone(worker: Worker, env: int, method: str) -> Failure:
    message = f"its worker process {worker.how_it_ended()}"
    return Failure(env=env, method=method, message=message)


def _infos(answer: bytes) -> list[tuple[int, dict[str, Any]]]:
    return pickle.loads(answer[1:]) if len(answer) > 1 else []


def _end(workers: list[Worker], starter: WorkerStarter, columns: SharedColumns) -> None:
    """End the workers, after their environments were closed."""
    with ExitStack() as stack:
        stack.callback(columns.close)
        stack.callback(starter.close)
        for worker in workers:
            worker.ask(b"c")
            stack.callback(worker.close)
