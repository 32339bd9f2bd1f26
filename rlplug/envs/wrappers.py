"""Wrappers around one environment: time feature, frame stack, wrappers by import path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TimeLimit

from rlplug.config.sections import EnvSection
from rlplug.envs.sync import refuse_no_boolean
from rlplug.errors import ConfigError, Problem, RequestError, did_you_mean
from rlplug.spaces import ACTION_MASK

__all__ = ["BooleanEnds", "TimeFeature", "Wrap", "single_env_options", "wrappers_from"]

AnyEnv: TypeAlias = "gymnasium.Env[Any, Any]"
Wrap: TypeAlias = Callable[[AnyEnv], AnyEnv]


class BooleanEnds(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Refuses ends that are no booleans, where Gymnasium would take whatever counts as true."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        refuse_no_boolean("terminated", terminated)
        refuse_no_boolean("truncated", truncated)
        return observation, reward, terminated, truncated, info


class TimeFeature(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Appends the remaining time to observations: 1 after a reset, 0 at the time limit."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        space = env.observation_space
        limit = _time_limit(env)
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise RequestError(
                f"env.time_feature: time is appended to a row of numbers, found {space}.",
                "try: --set env.time_feature=false",
            )
        if limit is None:
            raise RequestError(
                "env.time_feature: the environment has no time limit.",
                "try: a registered id with max_episode_steps, or a TimeLimit around it",
            )
        self._limit = limit
        self._taken = 0
        low, high = numpy.append(space.low, 0), numpy.append(space.high, 1)
        dtype = space.dtype if space.dtype == numpy.float64 else numpy.float32
        self.observation_space = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset, with all time remaining."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._taken = 0
        return self._with_time(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step, with less time remaining."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._taken += 1
        return self._with_time(observation), reward, terminated, truncated, info

    def _with_time(self, observation: Any) -> Any:
        left = 1.0 - self._taken / self._limit
        return numpy.append(observation, left).astype(self.observation_space.dtype, copy=False)


def single_env_options(section: EnvSection) -> list[str]:
    """The options that wrap single environments, and so rule out native vectors."""
    return [
        f"env.{name}"
        for name, wanted in (
            ("wrappers", section.wrappers),
            ("atari", section.atari),
            ("time_feature", section.time_feature),
            ("frame_stack", section.frame_stack > 1),
        )
        if wanted
    ]


def wrappers_from(section: EnvSection, *, training: bool) -> list[Wrap]:
    """The wrappers that the options ask for, the innermost first."""
    found: list[Wrap] = []
    if section.atari:
        from rlplug.envs.atari import atari

        lives = training and section.episodic_life
        found.append(lambda env: atari(env, episodic_life=lives))
    found += _imported(section.wrappers)
    if section.time_feature:
        found.append(TimeFeature)
    if section.frame_stack > 1:
        found.append(lambda env: _stacked(env, section.frame_stack))
    return found


def _stacked(env: AnyEnv, frames: int) -> AnyEnv:
    space = env.observation_space
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        raise RequestError(
            f"env.frame_stack = {frames} would stack the {ACTION_MASK!r} in the observations.",
            'try: an environment that tells it in info["action_mask"], or --set env.frame_stack=1',
        )
    return FrameStackObservation(env, frames)


def _imported(paths: Sequence[str]) -> list[Wrap]:
    problems: list[Problem] = []
    found: list[Wrap] = []
    for index, path in enumerate(paths):
        wrap = _import(path)
        if isinstance(wrap, str):
            problems.append(Problem(f"env.wrappers[{index}]", wrap))
        else:
            found.append(_named(wrap, path))
    if problems:
        raise ConfigError("the wrappers of the environment", problems)
    return found


def _import(path: str) -> Wrap | str:
    """The wrapper at an import path, or what is wrong with the path."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        return f"expected 'package.module:Class', got {path!r}"
    try:
        module = import_module(module_name)
    except ImportError as error:
        return f"{module_name!r} cannot be imported: {error}"
    wrap: Wrap | None = getattr(module, name, None)
    if wrap is None:
        guess = did_you_mean(name, dir(module))
        return f"{module_name!r} has no {name!r}" + (f", {guess}" if guess else "")
    return wrap if callable(wrap) else f"{path} is no wrapper but {type(wrap).__name__}"


def _named(wrap: Wrap, path: str) -> Wrap:
    def put(env: AnyEnv) -> AnyEnv:
        wrapped = wrap(env)
        if not isinstance(wrapped, gymnasium.Env):
            raise RequestError(
                f"wrapper {path} gave {type(wrapped).__name__}, which is no gymnasium.Env.",
                "try: a subclass of gymnasium.Wrapper",
            )
        return wrapped

    return put


def _time_limit(env: AnyEnv) -> int | None:
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return env.spec.max_episode_steps
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            return int(env._max_episode_steps)
        env = env.env
    return None
