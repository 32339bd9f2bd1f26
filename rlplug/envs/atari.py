"""Atari preprocessing as in the DQN papers and Stable-Baselines3."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium
from gymnasium.wrappers import AtariPreprocessing

from rlplug.errors import RequestError

__all__ = ["EpisodicLife", "FireReset", "atari"]

AnyEnv: TypeAlias = "gymnasium.Env[Any, Any]"


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Terminates an episode with each lost life; only a lost game is really reset."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._lives = 0
        self._over = True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step of the game."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        lives = lives_of(self.env)
        # Some games show 0 lives for a few frames before they are over.
        terminated = terminated or 0 < lives < self._lives
        self._lives = lives
        return observation, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """A new game if the last one is over, else one no-op step."""
        if self._over or seed is not None:
            observation, info = self.env.reset(seed=seed, options=options)
        else:
            observation, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        self._over = False
        self._lives = lives_of(self.env)
        return observation, info


class FireReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE after a reset and a lost life, in games that wait for it.

    Evaluation plays whole games: a policy that never learned to fire would wait for the time limit.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._lives = 0
        self._waits = False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step of the game, with FIRE instead of the action if it waits for that."""
        result = self.env.step(1 if self._waits else action)
        lives = lives_of(self.env)
        self._waits, self._lives = 0 < lives < self._lives, lives
        return result

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset and press FIRE."""
        _, info = self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, fire_info = self.env.step(1)
        info = {**info, **fire_info}
        if terminated or truncated:
            observation, info = self.env.reset(options=options)
        self._waits, self._lives = False, lives_of(self.env)
        return observation, info


def atari(env: AnyEnv, *, episodic_life: bool) -> AnyEnv:
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


def lives_of(env: AnyEnv) -> int:
    """The number of lives left."""
    lives: int = env.unwrapped.ale.lives()  # type: ignore[attr-defined] # ale-py's own
    return lives
