"""Columns in shared memory, for the actions and observations of environments in other processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from rlplug.envs.row_writer import has_fixed_shapes
from rlplug.envs.workers.memory import Memory
from rlplug.errors import RequestError

__all__ = ["SharedColumns"]

_ALIGNMENT = 64
"""Of each array: a line of the processor's cache."""


class SharedColumns:
    """One row for each environment, in memory that processes share.

    A worker writes the rows of its environments between a step and its reply only; the process
    that asked for the step writes their actions before it.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        num_envs: int,
        memory: Memory | None = None,
    ) -> None:
        """Use this memory, or allocate some."""
        for kind, space in (("observations", observation_space), ("actions", action_space)):
            if not has_fixed_shapes(space):
                raise RequestError(
                    f"{kind} of {space} cannot be shared with worker processes: they are not "
                    "arrays of a fixed shape.",
                    "try: --set sampling.backend=in_process",
                )
        size = 0

        def measured(shape: Any, dtype: Any = numpy.float64) -> Any:
            nonlocal size
            size = _aligned(size) + _bytes(shape, dtype)
            return None

        self._allocate(measured, observation_space, action_space, num_envs)
        self.memory = Memory(size) if memory is None else memory
        used = 0

        def carved(shape: Any, dtype: Any = numpy.float64) -> Any:
            nonlocal used
            used = _aligned(used)
            array: Any = numpy.ndarray(shape, dtype, self.memory.content, used)
            used += _bytes(shape, dtype)
            return array

        self._allocate(carved, observation_space, action_space, num_envs)

    def _allocate(
        self,
        make: Callable[..., Any],
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        num_envs: int,
    ) -> None:
        self.actions: Any = create_empty_array(action_space, num_envs, make)
        self.observations: Any = create_empty_array(observation_space, num_envs, make)
        self.finals: Any = create_empty_array(observation_space, num_envs, make)
        """Last observations of the episodes that ended in a step."""
        self.rewards: Any = make((num_envs,))
        self.seconds: Any = make((num_envs,))
        """How long each environment's last step took."""
        self.terminated: Any = make((num_envs,), numpy.bool_)
        self.truncated: Any = make((num_envs,), numpy.bool_)

    def close(self) -> None:
        """Detach from the memory."""
        for name in ("actions", "observations", "finals", "rewards", "seconds"):
            setattr(self, name, None)
        self.terminated = self.truncated = None
        self.memory.close()


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT


def _bytes(shape: Any, dtype: Any) -> int:
    return int(math.prod(shape) * numpy.dtype(dtype).itemsize)
