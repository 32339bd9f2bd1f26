"""Atari games by what they say of their lives: when episodes end, in training and in evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces

from rlplug import Acted, ActInput, Algorithm, Module, evaluate, run
from rlplug.envs.wrappers import EpisodicLife, FireReset
from rlplug.feeds import Stream
from rlplug.registry import Registry

OVER, CUT = "over", "cut"


class Script(gymnasium.Env[Any, Any]):
    """A game that goes as written: lives after the reset and each step, and how it ends."""

    observation_space = spaces.Box(0, 99, (2,), numpy.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, *told: int, ends: str = "") -> None:
        self.ale = self
        self.told, self.ends = told, ends
        self.games = self.taken = 0
        self.pressed: list[int] = []

    def lives(self) -> int:
        return self.told[self.taken]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.games, self.taken = self.games + 1, 0
        return self._seen(), {"reset": self.games, "last": "reset"}

    def step(self, action: Any) -> Any:
        self.pressed.append(action)
        self.taken += 1
        end = self.taken == len(self.told) - 1
        return (
            self._seen(),
            0.0,
            end and self.ends == OVER,
            end and self.ends == CUT,
            {"last": "step"},
        )

    def _seen(self) -> Any:
        return numpy.array([self.games, self.taken], numpy.float32)


def ended(env: Any, steps: int) -> list[bool]:
    """Which of these steps terminate the episode, after a reset from a seed."""
    env.reset(seed=0)
    return [bool(env.step(0)[2]) for _ in range(steps)]


def test_a_lost_life_ends_an_episode_and_no_lives_do_not_before_the_game_is_over() -> None:
    assert ended(EpisodicLife(Script(3, 2)), 1) == [True]
    assert ended(EpisodicLife(Script(1, 0, 0, ends=OVER)), 2) == [False, True]


@pytest.mark.parametrize("ends", [OVER, CUT])
def test_only_games_that_ended_and_seeds_really_reset(ends: str) -> None:
    env = EpisodicLife(Script(3, 3, ends=ends))
    ended(env, 1)
    assert env.reset()[0].tolist() == [2, 0]
    env = EpisodicLife(Script(3, 2, 2))
    ended(env, 1)
    assert env.reset(seed=1)[0].tolist() == [2, 0]
    # The no-op, or FIRE, is the last step of the first game.
    env = EpisodicLife(Script(2, 1, 1, ends=ends))
    ended(env, 1)
    assert env.reset()[0].tolist() == [2, 0]
    assert FireReset(Script(1, 1, ends=ends)).reset()[0].tolist() == [2, 0]


def pressed(env: Script, steps: int) -> list[int]:
    """What was pressed after the FIRE of a reset, where action 0 was chosen in these steps."""
    fires = FireReset(env)
    fires.reset(seed=0)
    for _ in range(steps):
        fires.step(0)
    assert env.pressed[0] == 1
    return env.pressed[1:]


def test_fire_is_pressed_once_for_each_lost_life_and_for_nothing_else() -> None:
    assert pressed(Script(3, 3, 2, 2, 2), 3) == [0, 1, 0]
    assert pressed(Script(2, 2, 1, 1, 1), 3) == [0, 1, 0]
    assert pressed(Script(1, 1, 2, 2, 1, 1), 4) == [0, 0, 0, 1]
    # Nobody waits for FIRE without lives.
    assert pressed(Script(1, 1, 0, 0, 0), 3) == [0, 0, 0]


class Screens(gymnasium.Env[Any, Any]):
    """Three lives; eight frames of action 1 lose one: two steps of four frames."""

    observation_space = spaces.Box(0, 255, (84, 84), numpy.uint8)
    action_space = spaces.Discrete(2)
    meanings: tuple[str, ...] = ("NOOP", "RIGHT")

    def __init__(self, frameskip: int) -> None:
        self._frameskip = frameskip
        self.ale = self
        self.taken = 0

    def get_action_meanings(self) -> list[str]:
        return list(self.meanings)

    def lives(self) -> int:
        return 3 - self.taken // 8

    def getScreenGrayscale(self, screen: Any) -> None:  # noqa: N802 # the name of ale-py
        screen.fill(self.taken)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return numpy.zeros((84, 84), numpy.uint8), {}

    def step(self, action: Any) -> Any:
        self.taken += int(action)
        return numpy.zeros((84, 84), numpy.uint8), 1.0, self.lives() == 0, False, {}


class RightModule(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.ones(len(act.observations), numpy.int64))

    forward_inference = forward_exploration


class Right(Algorithm):
    """Chooses action 1."""

    def feed(self) -> Stream:
        return Stream()

    def build(self) -> Module:
        return RightModule()

    def configure_optimizers_for_module(self) -> None:
        return None


@pytest.fixture
def opencv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of OpenCV: these screens have the size that is wanted."""
    (tmp_path / "cv2.py").write_text(
        "INTER_AREA = 3\ndef resize(image, size, interpolation):\n    return image\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("home", "opencv")
def test_training_ends_episodes_with_lives_and_evaluations_play_whole_games() -> None:
    options = {"env.atari": True, "evaluation.episodes": 2, "tracking.enabled": False}
    result = run(Right, Screens, steps=12, options=options)
    assert result.metrics["rollout/length_mean"] == 2.0
    assert result.metrics["eval/length_mean"] == 6.0
    again = evaluate(result.run_id, env=Screens, episodes=2, registry=Registry.of(right=Right))
    assert again.metrics["eval/length_mean"] == 6.0
