"""Atari games as agents are used to see them."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium
from gymnasium.wrappers import AtariPreprocessing

from rlplug.errors import RequestError

__all__ = ["EpisodicLife", "FireReset", "atari"]

AnyEnv: TypeAlias = "gymnasium.Env[Any, Any]"


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode with each life; the next one goes on where the game stands.

    Only when all lives are lost does a reset begin a new game.
    """

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
        """A new game, or one step without doing anything in the old one."""
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
    """Presses fire after a reset and after a lost life, in games that wait for it.

    Evaluation plays whole games: who never learned to fire would wait there for their time limit.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._lives = 0
        self._waits = False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step of the game; fire instead, if it waits for that."""
        answer = self.env.step(1 if self._waits else action)
        lives = lives_of(self.env)
        self._waits, self._lives = 0 < lives < self._lives, lives
        return answer

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin to play."""
        answer = self._begun(seed, options)
        self._waits, self._lives = False, lives_of(self.env)
        return answer

    def _begun(self, seed: int | None, options: Any) -> tuple[Any, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        started, _, terminated, truncated, started_info = self.env.step(1)
        if terminated or truncated:
            return self.env.reset(options=options)
        return started, {**info, **started_info}


def atari(env: AnyEnv, *, episodic_life: bool) -> AnyEnv:
    """No-ops at the start, every fourth frame, greyscale of 84 × 84; lives and fire."""
    if not hasattr(env.unwrapped, "ale"):
        raise no_game(str(env.unwrapped))
    try:
        env = AtariPreprocessing(env)
    except gymnasium.error.DependencyNotInstalled as error:
        raise RequestError(
            "env.atari needs OpenCV to shrink frames.", "try: pip install 'rlplug[atari]'"
        ) from error
    if episodic_life:
        env = EpisodicLife(env)
    meanings: list[str] = getattr(env.unwrapped, "get_action_meanings", list)()
    return FireReset(env) if "FIRE" in meanings[1:2] else env


def no_game(name: str) -> RequestError:
    """What is said of an environment that has no frames to choose from."""
    return RequestError(
        f"env.atari: {name} is no Atari game.",
        "try: --env ale_py:ALE/Breakout-v5, with pip install 'rlplug[atari]'",
    )


def lives_of(env: AnyEnv) -> int:
    """How many lives are left."""
    lives: int = env.unwrapped.ale.lives()  # type: ignore[attr-defined] # ale-py's own
    return lives
