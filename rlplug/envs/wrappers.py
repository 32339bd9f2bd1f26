"""Wrappers around one environment: those of the options, and those named by an import path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TimeAwareObservation

from rlplug.config.sections import EnvSection
from rlplug.errors import ConfigError, Problem, RequestError, did_you_mean
from rlplug.spaces import ACTION_MASK

__all__ = ["Wrap", "import_path", "single_env_options", "wrappers_from"]

AnyEnv: TypeAlias = "gymnasium.Env[Any, Any]"
Wrap: TypeAlias = Callable[[AnyEnv], AnyEnv]


def import_path(path: str) -> Any:
    """What `package.module:name` names; raises ImportError with what is wrong."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ImportError(f"expected 'package.module:name', got {path!r}")
    module = import_module(module_name)
    if not hasattr(module, name):
        guess = did_you_mean(name, dir(module))
        raise ImportError(f"{module_name!r} has no {name!r}" + (f", {guess}" if guess else ""))
    return getattr(module, name)


def single_env_options(section: EnvSection) -> list[str]:
    """The options that wrap single environments, and so rule out native vectors."""
    names = ("wrappers", "atari", "time_feature")
    used = [f"env.{name}" for name in names if getattr(section, name)]
    return [*used, "env.frame_stack"] if section.frame_stack > 1 else used


def wrappers_from(section: EnvSection, *, training: bool) -> list[Wrap]:
    """The wrappers that the options ask for, the innermost first."""
    wraps: list[Wrap] = []
    if section.atari:
        from rlplug.envs.atari import atari

        wraps.append(partial(atari, episodic_life=training and section.episodic_life))
    problems = []
    for index, path in enumerate(section.wrappers):
        try:
            wraps.append(import_path(path))
        except ImportError as error:
            problems.append(Problem(f"env.wrappers[{index}]", str(error)))
    if problems:
        raise ConfigError("the wrappers of the environment", problems)
    if section.time_feature:
        wraps.append(partial(TimeAwareObservation, normalize_time=True))
    if section.frame_stack > 1:
        wraps.append(partial(_stacked, frames=section.frame_stack))
    return wraps


def _stacked(env: AnyEnv, frames: int) -> AnyEnv:
    space = env.observation_space
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        raise RequestError(
            f"env.frame_stack = {frames} would stack the {ACTION_MASK!r} in the observations.",
            'try: an environment that tells it in info["action_mask"], or --set env.frame_stack=1',
        )
    return FrameStackObservation(env, frames)
