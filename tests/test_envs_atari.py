"""Atari games by what they say of their lives: when episodes end, in training and in evaluation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces

from rlplug import Acted, ActInput, Algorithm, Module, evaluate, run
from rlplug.envs.atari import EpisodicLife, FireReset, atari
from rlplug.errors import RequestError
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


def test_a_life_that_is_lost_in_the_first_step_ends_the_episode() -> None:
    assert ended(EpisodicLife(Script(3, 2)), 1) == [True]


def test_a_life_that_was_won_can_be_lost() -> None:
    assert ended(EpisodicLife(Script(3, 4, 3)), 2) == [False, True]


def test_no_lives_are_no_end_before_the_game_is_over() -> None:
    assert ended(EpisodicLife(Script(1, 0, 0, ends=OVER)), 2) == [False, True]


@pytest.mark.parametrize("ends", [OVER, CUT])
def test_a_game_that_ended_is_really_reset(ends: str) -> None:
    env = EpisodicLife(Script(3, 3, ends=ends))
    ended(env, 1)
    assert env.reset()[0].tolist() == [2, 0]


def test_a_seed_really_resets_a_game_that_goes_on() -> None:
    env = EpisodicLife(Script(3, 2, 2))
    ended(env, 1)
    assert env.reset(seed=1)[0].tolist() == [2, 0]


@pytest.mark.parametrize("ends", [OVER, CUT])
def test_a_game_that_ends_in_the_step_of_a_reset_is_really_reset(ends: str) -> None:
    env = EpisodicLife(Script(2, 1, 1, ends=ends))
    ended(env, 1)
    # The no-op is the last step of the first game.
    assert env.reset()[0].tolist() == [2, 0]
    fires = FireReset(Script(1, 1, ends=ends))
    assert fires.reset()[0].tolist() == [2, 0]


def test_the_first_reset_is_a_real_one_also_without_a_seed() -> None:
    env = Script(3, 3, 3)
    assert EpisodicLife(env).reset()[0].tolist() == [1, 0]
    assert env.pressed == []


def test_a_reset_right_after_another_goes_on_with_the_same_game() -> None:
    env = EpisodicLife(Script(3, 3, 3))
    assert [env.reset()[0].tolist() for _ in range(2)] == [[1, 0], [1, 1]]


def test_lives_that_a_reset_finds_are_those_that_can_be_lost() -> None:
    env = EpisodicLife(Script(3, 2, 3, 2, 2))
    assert ended(env, 1) == [True]
    # The no-op of this reset wins a life.
    assert env.reset()[0].tolist() == [1, 2]
    assert [env.step(0)[2] for _ in range(2)] == [True, False]


def test_a_first_step_without_a_reset_loses_no_life_and_presses_what_was_chosen() -> None:
    assert not EpisodicLife(Script(3, 2, 1)).step(0)[2]
    env = Script(3, 2, 1)
    FireReset(env).step(0)
    assert env.pressed == [0]


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


def test_a_life_that_is_lost_as_fire_is_pressed_was_lost_before_the_first_step() -> None:
    assert pressed(Script(3, 2, 2, 2), 2) == [0, 0]


def test_a_lost_life_is_forgotten_with_its_game() -> None:
    game = Script(3, 3, 2, 2)
    env = FireReset(game)
    for _ in range(2):
        env.reset(seed=0)
        env.step(0)
    env.reset(seed=0)
    env.step(0)
    assert game.pressed == [1, 0, 1, 0, 1, 0]


def test_infos_of_a_reset_are_those_of_the_game_that_is_played() -> None:
    # What the step tells comes after what the reset told.
    assert FireReset(Script(3, 3, 3)).reset()[1] == {"reset": 1, "last": "step"}
    for ends in (OVER, CUT):
        assert FireReset(Script(1, 1, ends=ends)).reset()[1] == {"reset": 2, "last": "reset"}
        lives = EpisodicLife(Script(2, 1, 1, ends=ends))
        ended(lives, 1)
        assert lives.reset()[1] == {"reset": 2, "last": "reset"}


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


@pytest.mark.usefixtures("opencv")
@pytest.mark.parametrize(
    ("meanings", "expected"),
    [
        (("NOOP", "FIRE", "UP"), True),
        (("NOOP", "UP", "FIRE"), False),
        (("NOOP", "UP"), False),
        (("NOOP",), False),
    ],
)
def test_fire_is_pressed_in_games_where_it_is_the_action_after_the_no_op(
    meanings: tuple[str, ...], expected: bool
) -> None:
    game = Screens(1)
    game.meanings = meanings
    env = atari(game, episodic_life=False)
    env.reset(seed=0)
    # No-ops add nothing, each frame of the step of FIRE one.
    assert game.taken == (4 if expected else 0)


def test_without_opencv_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(RequestError, match=r"^env\.atari needs OpenCV") as raised:
        atari(Screens(1), episodic_life=False)
    assert "pip install 'rlplug[atari]'" in str(raised.value)


@pytest.mark.usefixtures("home", "opencv")
def test_training_ends_episodes_with_lives_and_evaluations_play_whole_games() -> None:
    options = {"env.atari": True, "evaluation.episodes": 2, "tracking.enabled": False}
    result = run(Right, Screens, steps=12, options=options)
    assert result.metrics["rollout/length_mean"] == 2.0
    assert result.metrics["eval/length_mean"] == 6.0
    again = evaluate(result.run_id, env=Screens, episodes=2, registry=Registry.of(right=Right))
    assert again.metrics["eval/length_mean"] == 6.0
