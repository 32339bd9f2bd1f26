"""Environments for tests of workers: each worker imports this, which is soon done."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import gymnasium
import numpy
import torch


class Walk(gymnasium.Env[Any, Any]):
    """Random numbers; ends or is cut off at random; regret, and action masks if it has any."""

    observation_space: Any = gymnasium.spaces.Box(-9, 9, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, masks: bool = False) -> None:
        self.masks, self.taken = masks, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen(), self._info()

    def step(self, action: Any) -> Any:
        ends, cut = self.np_random.random(2) < (0.2, 0.1)
        info = {**self._info(), "regret": float(self.np_random.random())}
        return self._seen(), float(action) + self.np_random.random(), ends, cut, info

    def _seen(self) -> Any:
        return self.np_random.normal(size=2).astype(numpy.float32)

    def _info(self) -> dict[str, Any]:
        self.taken += 1
        mask = numpy.array([True, self.taken % 2 == 0, True])
        return {"action_mask": mask} if self.masks else {}


class Numbered(gymnasium.Env[Any, Any]):
    """Observes environment, episode, step and length; some steps take longer than others.

    In the `fail_at`-th step of its first life, it does what `fails` says.
    """

    observation_space = gymnasium.spaces.Box(0, 2**31, (4,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, slow: float = 0.002, fails: str = "", fail_at: int = 0) -> None:
        self.slow, self.fails, self.fail_at = slow, fails, fail_at
        self.number = self.episode = self.count = self.taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is None:
            self.episode += 1
        else:
            self.number, self.episode = seed, 0
        self.count, self.length = 0, int(self.np_random.integers(1, 7))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.taken == self.fail_at:
            self._fail()
        time.sleep(self.slow * float(self.np_random.random()))
        self.count += 1
        ended = self.count == self.length
        is_cut = bool(self.length % 2)
        reward = self.count + float(action) / 10
        return self._seen(), reward, ended and not is_cut, ended and is_cut, {}

    def _fail(self) -> None:
        if self.fails == "raises":
            raise ZeroDivisionError("no more")
        if self.fails == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fails == "hangs":
            time.sleep(600)

    def _seen(self) -> Any:
        return numpy.array([self.number, self.episode, self.count, self.length], numpy.float64)


class Late(Numbered):
    """Takes half a second for a step if its number is odd, and no time otherwise."""

    def step(self, action: Any) -> Any:
        time.sleep(0.5 if self.number % 2 else 0.0)
        return super().step(action)


class Draws(Walk):
    """Observes what its own generator and the global one of its process draw."""

    def _seen(self) -> Any:
        return numpy.array([self.np_random.random(), numpy.random.random()])

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), numpy.float64)


class Tells(gymnasium.Env[Any, Any]):
    """Has episodes of nine steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        return numpy.zeros(2, numpy.float32), 1.0, self.taken == 9, False, {}


class DrawsAll(Tells):
    """Draws from the global generators of its process."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,), numpy.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._drawn(), {}

    def step(self, action: Any) -> Any:
        _, _, *rest = super().step(action)
        seen = self._drawn()
        return seen, float(seen[0]), *rest

    def _drawn(self) -> Any:
        drawn = [numpy.random.random(), random.random(), float(torch.rand(()))]
        return numpy.array(drawn, numpy.float32)


gymnasium.register("DrawsAll-v0", DrawsAll)  # type: ignore[arg-type] # callables are allowed
