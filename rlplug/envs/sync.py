"""A synchronous vector environment with same-step autoreset; what first steps are checked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from operator import setitem
from typing import Any

import gymnasium
import numpy
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from rlplug.batch.nested import copied, tree_map
from rlplug.errors import FAILURES, RequestError
from rlplug.spaces import ACTION_MASK, AnySpace, shape_mismatch

__all__ = [
    "INFOS_READ",
    "LOOKS",
    "SyncVector",
    "check_columns",
    "check_observation",
    "check_outcome",
    "each_seed",
    "has_fixed_shapes",
    "read_infos",
    "refuse_shared",
    "row_writer",
    "set_spaces",
]

INFOS_READ = frozenset((ACTION_MASK, "regret"))
"""The infos that sampling reads. Gathering others takes as long as some environments' steps."""

LOOKS = 32
"""The number of first steps whose shapes and types are checked; later ones are like them."""


class SyncVector(VectorEnv[Any, Any, Any]):
    """Steps separate environments one after the other in this process.

    Unlike Gymnasium's, it never writes again into the arrays that `step` returned, and gathers
    only the infos that sampling reads.
    """

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for make in makers:
                self.envs.append(make())
            refuse_shared(self.envs)
        except BaseException:
            self.close()
            raise
        first = self.envs[0]
        set_spaces(self, first.observation_space, first.action_space, len(self.envs))
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode, self.spec = first.render_mode, first.spec
        self.failed: tuple[int, str] | None = None
        """The index of the environment that raised, and the method."""
        self._write = row_writer(first.observation_space)
        zeros: Any = create_empty_array(first.observation_space, self.num_envs, numpy.zeros)
        self._zeros = zeros
        self._whole_numbers = isinstance(first.action_space, spaces.Discrete)
        self._looks = LOOKS

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all; environment i gets seed + i if a single seed is given."""
        seeds, seen = each_seed(seed, self.num_envs), tree_map(numpy.empty_like, self._zeros)
        infos: dict[str, Any] = {}
        index = 0
        try:
            for index, env in enumerate(self.envs):
                observation, info = env.reset(seed=seeds[index], options=options)
                check_observation(self.single_observation_space, observation)
                self._write(seen, index, observation)
                infos = self._add_info(infos, read_infos(info), index)
        except FAILURES:
            self.failed = (index, "reset")
            raise
        return seen, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all; `final_obs` in infos holds the last observations of episodes that ended."""
        rewards = numpy.empty(self.num_envs)
        terminated, truncated = numpy.zeros((2, self.num_envs), numpy.bool_)
        seen = tree_map(numpy.empty_like, self._zeros)
        infos = self.step_into(actions, seen, rewards, terminated, truncated)
        return seen, rewards, terminated, truncated, infos

    def step_into(
        self, actions: Any, seen: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> dict[str, Any]:
        """`step` that writes into arrays, of which `terminated` and `truncated` must be False."""
        infos: dict[str, Any] = {}
        write, looks = self._write, self._looks
        index, doing = 0, "step"
        each = actions if self._whole_numbers else tuple(iterate(self.action_space, actions))
        try:
            for index, env in enumerate(self.envs):
                observation, reward, ends, cut, info = env.step(each[index])
                if looks:
                    check_observation(self.single_observation_space, observation)
                    check_outcome(reward, ends, cut)
                rewards[index] = reward
                if ends or cut:
                    terminated[index], truncated[index] = ends, cut
                    infos = self._add_final(infos, observation, info, index)
                    doing = "reset"
                    observation, info = env.reset()
                    doing = "step"
                write(seen, index, observation)
                if info:
                    info = {key: info[key] for key in INFOS_READ.intersection(info)}
                if info:
                    infos = self._add_info(infos, info, index)
        except FAILURES:
            self.failed = (index, doing)
            raise
        self._looks = looks and looks - 1
        return infos

    def replace(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        """Close the environments, and go on with these."""
        self.close_extras()
        self.envs = list(envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments, also after one that raises."""
        with ExitStack() as stack:
            for env in self.envs:
                stack.callback(env.close)

    def _add_final(
        self, infos: dict[str, Any], observation: Any, info: dict[str, Any], index: int
    ) -> dict[str, Any]:
        """Add the end of an episode to infos; faster than Gymnasium's `_add_info`."""
        if "final_obs" not in infos:
            infos["final_obs"] = tree_map(copied, self._zeros)
            infos["_final_obs"] = numpy.zeros(self.num_envs, numpy.bool_)
        self._write(infos["final_obs"], index, observation)
        infos["_final_obs"][index] = True
        info = read_infos(info)
        return self._add_info(infos, {"final_info": info}, index) if info else infos


def read_infos(info: dict[str, Any]) -> dict[str, Any]:
    """Those infos that sampling reads."""
    return {key: info[key] for key in INFOS_READ.intersection(info)}


def set_spaces(vector: Any, observation_space: AnySpace, action_space: AnySpace, num: int) -> None:
    """Set how many environments a vector has, and their spaces."""
    vector.num_envs = num
    vector.single_observation_space, vector.single_action_space = observation_space, action_space
    vector.observation_space = batch_space(observation_space, num)
    vector.action_space = batch_space(action_space, num)


def row_writer(space: AnySpace) -> Callable[[Any, int, Any], None]:
    """Writes an observation into a row of batched arrays, part by part.

    Made once: steps do not look into the space again.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return setitem
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    writers = [(key, row_writer(part)) for key, part in parts]

    def write(arrays: Any, index: int, observation: Any) -> None:
        for key, write_part in writers:
            write_part(arrays[key], index, observation[key])

    return write


def has_fixed_shapes(space: AnySpace) -> bool:
    """Whether batched observations are arrays, or Dicts and Tuples of arrays."""
    if isinstance(space, spaces.Dict):
        return all(map(has_fixed_shapes, space.values()))
    if isinstance(space, spaces.Tuple):
        return all(map(has_fixed_shapes, space.spaces))
    arrays = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    return isinstance(space, arrays)


def each_seed(seed: int | Sequence[int | None] | None, num: int) -> list[int | None]:
    """The seed of each environment: seed + i if a single one is given."""
    if seed is None or isinstance(seed, int):
        return [None if seed is None else seed + index for index in range(num)]
    return list(seed)


def check_observation(space: AnySpace, observation: Any) -> None:
    """Refuse an observation of another shape than its space."""
    mismatch = shape_mismatch(space, observation)
    if mismatch:
        raise ValueError(f"it gave an observation {mismatch}")


def check_outcome(reward: Any, terminated: Any, truncated: Any, of: str = "") -> None:
    """Refuse rewards that are text, and ends that only count as true or false.

    Arrays and tensors of one boolean are accepted. `of` follows the names in messages.
    """
    if isinstance(reward, str | bytes):
        raise TypeError(f"it gave reward{of} = {reward!r}, expected a number")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        item = value.item() if hasattr(value, "item") else value
        if not isinstance(item, bool):
            raise TypeError(f"it gave {name}{of} = {value!r}, expected a boolean")


def check_columns(
    space: AnySpace, num: int, observations: Any, rewards: Any, terminated: Any, truncated: Any
) -> None:
    """Refuse a step of a vector environment whose shapes or types are others than expected."""
    columns = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
    for name, column in columns.items():
        shape, found = numpy.shape(column), getattr(column, "dtype", type(column).__name__)
        if shape != (num,):
            raise ValueError(f"it gave {name} of shape {tuple(shape)} for {num} environments")
        if name != "rewards" and found not in (numpy.bool_, torch.bool):
            raise TypeError(f"it gave {name} of {found}, expected booleans")
    if getattr(rewards.dtype, "kind", "f") not in "biuf":
        raise TypeError(f"it gave rewards of {rewards.dtype}, expected numbers")
    mismatch = shape_mismatch(space, observations)
    if mismatch:
        raise ValueError(f"it gave observations {mismatch}")


def refuse_shared(envs: Iterable[gymnasium.Env[Any, Any]]) -> None:
    """Refuse the same environment given twice: each step of one would move the other, too."""
    seen = set()
    for env in envs:
        inner = env.unwrapped
        if id(inner) in seen:
            raise RequestError(
                f"the same {type(inner).__name__} was given twice as an environment.",
                "try: a callable that makes a new one each time, for training and for evaluation",
            )
        seen.add(id(inner))
