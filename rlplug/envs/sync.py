"""A synchronous vector environment with same-step autoreset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rlplug.errors import FAILURES, RequestError
from rlplug.spaces import shape_mismatch

__all__ = ["SyncVector", "check_ends"]


class SyncVector(VectorEnv[Any, Any, Any]):
    """Steps separate environments one after the other in this process.

    Unlike Gymnasium's, it never writes again into the arrays that `step` returned.
    """

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for make in makers:
                self.envs.append(_claim(make()))
        except BaseException:
            self.close()
            raise
        first = self.envs[0]
        self.num_envs = len(self.envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = first.render_mode
        self.spec = first.spec
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self._refuse_differences()
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        self.failed: tuple[int, str] | None = None
        """The index of the environment that raised, and the method."""
        box = first.observation_space
        self._box = box if isinstance(box, spaces.Box) else None
        self._shape = None if self._box is None else self._box.shape
        self._whole_numbers = isinstance(first.action_space, spaces.Discrete)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all; environment i gets seed + i if a single seed is given."""
        if seed is None or isinstance(seed, int):
            seeds = [None if seed is None else seed + index for index in range(self.num_envs)]
        else:
            seeds = list(seed)
        infos: dict[str, Any] = {}
        rows = []
        index = 0
        try:
            for index, env in enumerate(self.envs):
                observation, info = env.reset(seed=seeds[index], options=options)
                rows.append(observation)
                if info:
                    infos = self._add_info(infos, info, index)
        except FAILURES:
            self.failed = (index, "reset")
            raise
        return self._stacked(rows), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all; `final_obs` in infos holds the last observations of episodes that ended."""
        n = self.num_envs
        rewards = numpy.empty(n)
        terminated = numpy.zeros(n, numpy.bool_)
        truncated = numpy.zeros(n, numpy.bool_)
        if self._box is not None:
            seen: Any = numpy.empty((n, *self._box.shape), self._box.dtype)
            infos = self.step_into(actions, seen, rewards, terminated, truncated)
            return seen, rewards, terminated, truncated, infos
        rows: list[Any] = [None] * n
        infos = self.step_into(actions, rows, rewards, terminated, truncated)
        return self._stacked(rows), rewards, terminated, truncated, infos

    @property
    def has_array_observations(self) -> bool:
        """Whether `step_into` can write observations into an array."""
        return self._box is not None

    def step_into(
        self, actions: Any, seen: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> dict[str, Any]:
        """`step` that writes into the caller's arrays; the last two must be all False before."""
        infos: dict[str, Any] = {}
        shape = self._shape
        index, doing = 0, "step"
        each = actions if self._whole_numbers else tuple(iterate(self.action_space, actions))
        if len(each) != self.num_envs:
            raise ValueError(f"{len(each)} actions for {self.num_envs} environments")
        try:
            for index, env in enumerate(self.envs):
                observation, rewards[index], ends, cut, info = env.step(each[index])
                # Most often both are False, of Python or of NumPy: nothing tells that faster.
                if (ends is not False and ends is not _FALSE) or (
                    cut is not False and cut is not _FALSE
                ):
                    _refuse_no_boolean("terminated", ends)
                    _refuse_no_boolean("truncated", cut)
                if ends or cut:
                    if shape is None or getattr(observation, "shape", ()) != shape:
                        self._refuse_misshapen(observation)
                    terminated[index], truncated[index] = ends, cut
                    infos = self._add_final(infos, observation, info, index)
                    doing = "reset"
                    observation, info = env.reset()
                    doing = "step"
                if shape is not None and getattr(observation, "shape", ()) != shape:
                    self._refuse_misshapen(observation)
                seen[index] = observation
                if info:
                    infos = self._add_info(infos, info, index)
        except FAILURES:
            self.failed = (index, doing)
            raise
        return infos

    def _add_final(
        self, infos: dict[str, Any], observation: Any, info: dict[str, Any], index: int
    ) -> dict[str, Any]:
        """Add the end of an episode to infos; for arrays faster than Gymnasium's `_add_info`."""
        if self._box is None:
            return self._add_info(infos, {"final_obs": observation, "final_info": info}, index)
        if "final_obs" not in infos:
            infos["final_obs"] = numpy.zeros((self.num_envs, *self._box.shape), self._box.dtype)
            infos["_final_obs"] = numpy.zeros(self.num_envs, numpy.bool_)
        infos["final_obs"][index], infos["_final_obs"][index] = observation, True
        return self._add_info(infos, {"final_info": info}, index) if info else infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments."""
        for env in self.envs:
            _in_use.pop(id(env.unwrapped), None)
            env.close()

    def _stacked(self, rows: list[Any]) -> Any:
        space = self._box
        if space is None:
            single = self.single_observation_space
            empty: Any = create_empty_array(single, self.num_envs, numpy.empty)
            return concatenate(single, rows, empty)
        together = numpy.empty((self.num_envs, *space.shape), space.dtype)
        for index, row in enumerate(rows):
            if numpy.shape(row) != space.shape:
                self.failed = (index, "reset")
                self._refuse_misshapen(row)
            together[index] = row
        return together

    def _refuse_misshapen(self, observation: Any) -> None:
        mismatch = shape_mismatch(self.single_observation_space, observation)
        if mismatch:
            raise ValueError(f"it gave an observation {mismatch}")

    def _refuse_differences(self) -> None:
        for index, env in enumerate(self.envs):
            for kind in ("observation_space", "action_space"):
                one, first = getattr(env, kind), getattr(self.envs[0], kind)
                if one != first:
                    self.close()
                    raise RequestError(
                        f"environment {index} has another {kind} than the first: {one}, "
                        f"not {first}.",
                        "try: a callable that makes environments with equal spaces",
                    )


_BOOL = numpy.dtype(numpy.bool_)
_FALSE: Any = numpy.bool_(False)
"""There is one such object, as there is one False."""


def _refuse_no_boolean(name: str, value: Any) -> None:
    """Refuse what only counts as true or false; arrays and tensors of one boolean are taken."""
    item = value.item() if hasattr(value, "item") else value
    if not isinstance(item, bool):
        raise TypeError(f"it gave {name} = {value!r}, expected a boolean")


def check_ends(terminated: Any, truncated: Any) -> None:
    """Refuse ends of a vector environment that are no arrays of booleans."""
    for name, column in (("terminated", terminated), ("truncated", truncated)):
        dtype = getattr(column, "dtype", None)
        # Identity first: comparing dtypes would be most of the time here.
        if dtype is not _BOOL and dtype != _BOOL:
            found = dtype or type(column).__name__
            raise TypeError(f"it gave {name} of {found}, expected an array of booleans")


_in_use: WeakValueDictionary[int, gymnasium.Env[Any, Any]] = WeakValueDictionary()
"""Unwrapped environments that belong to a SyncVector of this process, by id."""


def _claim(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Refuse an environment that another vector steps already."""
    inner = env.unwrapped
    if id(inner) in _in_use:
        raise RequestError(
            f"the same {type(inner).__name__} was given twice as an environment.",
            "try: a callable that makes a new one each time, for training and for evaluation",
        )
    _in_use[id(inner)] = inner
    return env
