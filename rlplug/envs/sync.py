"""A synchronous vector environment with same-step autoreset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rlplug.batch.nested import copied, tree_map
from rlplug.envs.row_writer import has_fixed_shapes, row_writer
from rlplug.errors import FAILURES, RequestError
from rlplug.spaces import ACTION_MASK, shape_mismatch

__all__ = [
    "ANSWERS",
    "INFOS_READ",
    "SyncVector",
    "check_ends",
    "refuse_no_boolean",
    "refuse_shared",
]

ANSWERS = "rlplug.answers"
"""What the agents of an environment with several are answered."""

INFOS_READ = frozenset((ACTION_MASK, "regret", ANSWERS))
"""The infos that sampling reads. Gathering others takes as long as some environments' steps."""


class SyncVector(VectorEnv[Any, Any, Any]):
    """Steps separate environments one after the other in this process.

    Unlike Gymnasium's, it never writes again into the arrays that `step` returned.
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
        space = first.observation_space
        self.has_array_observations = has_fixed_shapes(space)
        """Whether `step_into` writes into arrays, one for each part of the observation space."""
        if self.has_array_observations:
            self._write = row_writer(space)
            self._zeros: Any = create_empty_array(space, self.num_envs, numpy.zeros)
        else:
            self._write = self._write_any
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
        seen = self._empty_observations()
        index = 0
        try:
            for index, env in enumerate(self.envs):
                observation, info = env.reset(seed=seeds[index], options=options)
                self._write(seen, index, observation)
                if info:
                    infos = self._add_info(infos, info, index)
        except FAILURES:
            self.failed = (index, "reset")
            raise
        return self._batched(seen), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all; `final_obs` in infos holds the last observations of episodes that ended."""
        n = self.num_envs
        rewards = numpy.empty(n)
        terminated = numpy.zeros(n, numpy.bool_)
        truncated = numpy.zeros(n, numpy.bool_)
        seen = self._empty_observations()
        infos = self.step_into(actions, seen, rewards, terminated, truncated)
        return self._batched(seen), rewards, terminated, truncated, infos

    def step_into(
        self,
        actions: Any,
        seen: Any,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        wanted: frozenset[str] | None = None,
    ) -> dict[str, Any]:
        """`step` that writes into the caller's arrays, of which `terminated` and `truncated` must
        be all False before; of the infos only those with the `wanted` keys are gathered.
        """
        infos: dict[str, Any] = {}
        write = self._write
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
                    refuse_no_boolean("terminated", ends)
                    refuse_no_boolean("truncated", cut)
                if ends or cut:
                    terminated[index], truncated[index] = ends, cut
                    infos = self._add_final(infos, observation, info, index)
                    doing = "reset"
                    observation, info = env.reset()
                    doing = "step"
                write(seen, index, observation)
                if info and wanted is not None:
                    info = {key: info[key] for key in wanted.intersection(info)}
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
        if not self.has_array_observations:
            self._refuse_misshapen(observation)
            return self._add_info(infos, {"final_obs": observation, "final_info": info}, index)
        if "final_obs" not in infos:
            infos["final_obs"] = tree_map(copied, self._zeros)
            infos["_final_obs"] = numpy.zeros(self.num_envs, numpy.bool_)
        self._write(infos["final_obs"], index, observation)
        infos["_final_obs"][index] = True
        return self._add_info(infos, {"final_info": info}, index) if info else infos

    def replace(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        """Close the environments, and go on with these."""
        self.close_extras()
        self.envs = list(envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments, also after one that raises."""
        with ExitStack() as stack:
            for env in self.envs:
                stack.callback(env.close)

    def _empty_observations(self) -> Any:
        if self.has_array_observations:
            return tree_map(numpy.empty_like, self._zeros)
        return [None] * self.num_envs

    def _batched(self, seen: Any) -> Any:
        if self.has_array_observations:
            return seen
        space = self.single_observation_space
        empty: Any = create_empty_array(space, self.num_envs, numpy.empty)
        return concatenate(space, seen, empty)

    def _write_any(self, rows: Any, index: int, observation: Any) -> None:
        self._refuse_misshapen(observation)
        rows[index] = observation

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


def refuse_no_boolean(name: str, value: Any) -> None:
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
