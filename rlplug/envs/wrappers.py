"""Wrappers around one environment: those of the options, Atari's, and those of import paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeAwareObservation

from rlplug.config.sections import EnvSection
from rlplug.errors import ConfigError, Problem, RequestError, did_you_mean
from rlplug.spaces import ACTION_MASK

__all__ = [
    "EpisodicLife",
    "FireReset",
    "Wrap",
    "import_path",
    "single_env_options",
    "wrappers_from",
]

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
        wraps.append(partial(_atari, episodic_life=training and section.episodic_life))
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


class _Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An Atari game whose lives are counted."""

    _lives = 0

    def lost_life(self) -> bool:
        """Whether a life was lost since the last call, and the game goes on.

        Some games show 0 lives for a few frames before they are over.
        """
        game: Any = self.env.unwrapped
        before, self._lives = self._lives, game.ale.lives()
        return 0 < self._lives < before


class EpisodicLife(_Lives):
    """Terminates an episode with each lost life; only a lost game is really reset."""

    _over = True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step of the game."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        return observation, reward, self.lost_life() or terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """A new game if the last one is over, else one no-op step."""
        if not self._over and seed is None:
            observation, _, terminated, truncated, info = self.env.step(0)
            self._over = terminated or truncated
        if self._over or seed is not None:
            observation, info = self.env.reset(seed=seed, options=options)
        self._over = False
        self.lost_life()
        return observation, info


class FireReset(_Lives):
    """Presses FIRE after a reset and a lost life, in games that wait for it.

    Evaluation plays whole games: a policy that never learned to fire would wait for the time limit.
    """

    _waits = False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step of the game, with FIRE instead of the action if it waits for that."""
        result = self.env.step(1 if self._waits else action)
        self._waits = self.lost_life()
        return result

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset and press FIRE."""
        _, info = self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, fire_info = self.env.step(1)
        info = {**info, **fire_info}
        if terminated or truncated:
            observation, info = self.env.reset(options=options)
        self.lost_life()
        self._waits = False
        return observation, info


def _atari(env: AnyEnv, *, episodic_life: bool) -> AnyEnv:
    """No-op starts, frame skip of 4, 84 × 84 greyscale; maybe episodic lives, FIRE on reset."""
    if not hasattr(env.unwrapped, "ale"):
        raise RequestError(
            f"env.atari: {env.unwrapped} is no Atari game.",
            "try: --env ale_py:ALE/Breakout-v5, with pip install 'rlplug[atari]'",
        )
    env = AtariPreprocessing(env)
    if episodic_life:
        env = EpisodicLife(env)
    meanings: list[str] = getattr(env.unwrapped, "get_action_meanings", list)()
    return FireReset(env) if "FIRE" in meanings[1:2] else env
