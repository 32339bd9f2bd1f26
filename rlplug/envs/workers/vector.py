"""A vector environment whose environments are stepped by worker processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from rlplug.batch.nested import copied, tree_map
from rlplug.envs.saving import EnvironmentSaver, SavedEnvironments, unpickled
from rlplug.envs.sync import (
    LOOKS,
    SyncVector,
    check_observation,
    check_outcome,
    each_seed,
    read_infos,
    row_writer,
    set_spaces,
)
from rlplug.envs.workers.processes import Workers, context
from rlplug.envs.workers.worker import HeldRows
from rlplug.errors import RequestError
from rlplug.quantities import format_bytes
from rlplug.spaces import AnySpace

__all__ = ["SharedColumns", "WorkerVector"]


class SharedColumns:
    """One row for each environment, in memory that processes share.

    A worker writes the rows of its environments between a request and its answer only; the
    process that asked for a step writes their actions before it.
    """

    def __init__(
        self,
        observation_space: AnySpace,
        action_space: AnySpace,
        num_envs: int,
        memory: Any = None,
    ) -> None:
        """Use this memory, or allocate some."""
        used = 0

        def make(shape: Any, dtype: Any = numpy.float64, **_: Any) -> Any:
            nonlocal used
            place, size = used, math.prod(shape) * numpy.dtype(dtype).itemsize
            used += -(-size // _ALIGNMENT) * _ALIGNMENT
            if self.memory is None:
                return numpy.empty(0)
            return numpy.ndarray(shape, dtype, self.memory, place)

        def allocate() -> None:
            self.actions: Any = create_empty_array(action_space, num_envs, make)
            self.observations: Any = create_empty_array(observation_space, num_envs, make)
            self.finals: Any = create_empty_array(observation_space, num_envs, make)
            """Last observations of the episodes that ended in a step."""
            self.rewards: Any = make((num_envs,))
            self.seconds: Any = make((num_envs,))
            """How long each environment's last step took."""
            self.terminated: Any = make((num_envs,), numpy.bool_)
            self.truncated: Any = make((num_envs,), numpy.bool_)

        self.memory = memory
        if memory is None:
            # The first time, what is needed is added up.
            allocate()
            try:
                self.memory, used = context().RawArray("b", used), 0
            except (OSError, OverflowError, ValueError) as error:
                raise RequestError(
                    f"worker processes need {format_bytes(used)} of shared memory, which cannot "
                    f"be had: {error}.",
                    "try: fewer environments, or more shared memory (docker run --shm-size)",
                ) from error
        allocate()


_ALIGNMENT = 64
"""Of each array: a line of the processor's cache."""


class EnvironmentRows(HeldRows):
    """The environments of one worker, whose rows are in memory that is shared."""

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        observation_space: AnySpace,
        action_space: AnySpace,
        num_envs: int,
        memory: Any,
    ) -> None:
        super().__init__()
        self._make, self._space = make, observation_space
        self._whole_numbers = isinstance(action_space, spaces.Discrete)
        self._one_action = batch_space(action_space, 1)
        self._shared = SharedColumns(observation_space, action_space, num_envs, memory)
        self._write = row_writer(observation_space)
        self._saver = EnvironmentSaver(lambda: SyncVector([make]))
        self._looks = LOOKS

    def make(self, number: int, argument: None) -> None:
        """Make one."""
        self.held[number] = self._make()

    def reset(self, number: int, seed: int | None) -> list[dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.held[number].reset(seed=seed)
        check_observation(self._space, observation)
        self._write(self._shared.observations, number, observation)
        info = read_infos(info)
        return [info] if info else []

    def step(self, number: int, argument: None) -> list[dict[str, Any]]:
        """Take the action of its row, and begin the next episode where that ended one."""
        env, shared, infos = self.held[number], self._shared, []
        row = slice(number, number + 1)
        # An environment may keep its action, and the next one is written to the same place.
        actions: Any = tree_map(lambda leaf: copied(leaf[row]), shared.actions)
        (action,) = actions if self._whole_numbers else iterate(self._one_action, actions)
        began = time.perf_counter()
        observation, reward, terminated, truncated, info = env.step(action)
        if self._looks:
            self._looks -= 1
            check_observation(self._space, observation)
            check_outcome(reward, terminated, truncated)
        shared.rewards[number] = reward
        shared.terminated[number], shared.truncated[number] = terminated, truncated
        if terminated or truncated:
            self._write(shared.finals, number, observation)
            if info:
                infos.append({"final_info": read_infos(info)})
            self.doing = "reset"
            observation, info = env.reset()
        self._write(shared.observations, number, observation)
        shared.seconds[number] = time.perf_counter() - began
        info = read_infos(info)
        return [*infos, info] if info else infos

    def save(self, number: int, argument: None) -> SavedEnvironments:
        """Pickle one in the middle of its episode, or say why it cannot be."""
        return self._saver.save([self.held[number]], None)

    def restore(self, number: int, saved: bytes) -> None:
        """Continue a saved episode."""
        here = self.held[number]
        (self.held[number],), _ = unpickled(saved, [here])
        here.close()


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
        name: str = "the environment",
        seed: int = 0,
        timeout: float = 0.0,
    ) -> None:
        """Start the workers, each with its share of the environments."""
        first = SyncVector([make])
        own = first.single_observation_space, first.single_action_space
        set_spaces(self, *own, num_envs)
        self.metadata, self.render_mode, self.spec = first.metadata, first.render_mode, first.spec
        first.close()
        self.columns = SharedColumns(*own, num_envs)
        """The rows of environments that were received, until they are sent an action."""
        hold = partial(EnvironmentRows, make, *own, num_envs)
        self.workers = Workers(
            hold,
            num_envs,
            num_workers,
            name=name,
            seed=seed,
            timeout=timeout,
            memory=self.columns.memory,
        )

    # -- all at once --------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all; environment i gets seed + i if a single seed is given."""
        told = self.workers.call("reset", each_seed(seed, self.num_envs))
        return tree_map(copied, self.columns.observations), self.batched(list(enumerate(told)))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all, and wait for all; for environments that fail, it raises."""
        self.send(numpy.arange(self.num_envs), actions, together=True)
        infos, shared = self.batched(self.workers.receive_all()), self.columns
        ended = shared.terminated | shared.truncated
        if ended.any():
            infos |= {"final_obs": tree_map(copied, shared.finals), "_final_obs": ended}
        ends = shared.terminated.copy(), shared.truncated.copy()
        return tree_map(copied, shared.observations), shared.rewards.copy(), *ends, infos

    # -- those that are ready -----------------------------------------------------------------

    def send(self, envs: Any, actions: Any, *, together: bool = False) -> None:
        """Let these environments, in their order, take a step."""
        tree_map(lambda array, part: array.__setitem__(envs, part), self.columns.actions, actions)
        self.workers.ask("step", envs, together=together)

    def batched(self, told: list[tuple[int, list[dict[str, Any]]]]) -> dict[str, Any]:
        """Infos of environments in the form of a vector's."""
        infos: dict[str, Any] = {}
        for index, own in sorted(pair for pair in told if pair[1]):
            for info in own:
                infos = self._add_info(infos, info, index)
        return infos

    def close_extras(self, **kwargs: Any) -> None:
        """End all workers."""
        self.workers.close()
