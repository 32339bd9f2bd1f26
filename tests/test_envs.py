"""Environments are made from ids, import paths and callables, with the options of `[env]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit

import rlplug as library
from rlplug.config.sections import EnvSection
from rlplug.envs import long_episodes, make_environments
from rlplug.envs.sync import SyncVector
from rlplug.errors import EnvironmentFailedError, RequestError
from tests.envs import Counts, OneStep, Told, limited


def stepped(section: EnvSection, steps: int = 1, env: Any = limited) -> Any:
    """What one environment shows after some steps."""
    made = make_environments(env, 1, section)
    observation, _ = made.reset(0)
    for _ in range(steps):
        observation, *_ = made.vector.step(numpy.array([0]))
    return observation


def test_the_own_vector_form_is_used_where_it_is_ahead() -> None:
    def kind(env: Any, num_envs: int, how: str = "auto", **options: Any) -> str:
        section = EnvSection(**options)
        made = make_environments(env, num_envs, section, vectorization=how)
        made.close()
        return type(made.vector).__name__

    assert kind("LinearBandit-v0", 1) == "LinearBanditVectorEnv"
    assert kind("CartPole-v1", 8) == "SyncVector"
    assert kind("CartPole-v1", 16) == "CartPoleVectorEnv"
    assert kind("CartPole-v1", 1, "native") == "CartPoleVectorEnv"
    assert kind("CartPole-v1", 64, "sync") == "SyncVector"
    assert kind("CartPole-v1", 2, "async") == "AsyncVectorEnv"
    assert kind("CartPole-v1", 16, time_feature=True) == "SyncVector"


@pytest.mark.parametrize("env", ["LinearBandit", "FeatureBandit", "ClassificationBandit"])
def test_our_own_environments_pass_the_check_of_gymnasium(env: str) -> None:
    check_env(gymnasium.make(f"rlplug.bandits:{env}-v0").unwrapped, skip_render_check=True)


def broken(**arguments: Any) -> gymnasium.Env[Any, Any]:
    raise OSError("no display")


def lacking() -> gymnasium.Env[Any, Any]:
    raise gymnasium.error.DependencyNotInstalled("pip install physics")


class Masked(OneStep):
    observation_space = spaces.Dict(seen=spaces.Box(0, 1, (2,)), action_mask=spaces.MultiBinary(2))


ONE = OneStep()

REFUSED: list[tuple[Any, dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    # In Gymnasium's own words, below ours.
    ("CartPoll-v1", {}, {}, ("'CartPoll-v1'", "Did you mean: `CartPole`?")),
    ("CartPole-v7", {}, {}, ("'CartPole-v7'", "`v1`")),
    ("ALE/Pong-v5", {}, {}, ("'ALE/Pong-v5'", "ale_py:ALE/")),
    ("rlplug.bandits:Nothing", {}, {}, ("'rlplug.bandits:Nothing'",)),
    ("no_such_package:Thing-v0", {}, {}, ("no_such_package:Thing-v0", "pip install no_such_pack")),
    ("MountainCar-v0", {"arguments": {"velocty": 1}}, {}, ("velocty=1", "unexpected keyword")),
    ("LinearBandit-v0", {"arguments": {"num_arms": 1}}, {}, ("env.num_arms", "at least 2")),
    (broken, {"arguments": {"size": 2}}, {}, ("'broken'", "size=2", "OSError: no display")),
    (lacking, {}, {}, ("pip install physics", "try: install what it needs")),
    (dict, {}, {}, ("made dict", "no gymnasium.Env")),
    (ONE, {}, {}, ("a OneStep was given",)),
    (lambda: TimeLimit(ONE, 9), {}, {}, ("the same OneStep was given twice",)),
    (Masked, {"frame_stack": 3}, {}, ("env.frame_stack = 3", "action_mask")),
    (Counts, {"time_feature": True}, {}, ("TimeLimit",)),
    ("CartPole-v1", {"atari": True}, {}, ("env.atari",)),
    ("MountainCar-v0", {}, {"vectorization": "native"}, ("no vector form of its own",)),
    (limited, {}, {"vectorization": "native"}, ("no vector form of its own",)),
    ("CartPole-v1", {"frame_stack": 2}, {"vectorization": "native"}, ("env.frame_stack",)),
    (limited, {"wrappers": ("sys:nothing", "no_such_module:X", "sys")}, {}, (
        "env.wrappers[0]   'sys' has no 'nothing'", "[1]", "package.module:name",
    )),
    (limited, {"wrappers": ("builtins:id",)}, {}, ("made int",)),
]  # fmt: skip


@pytest.mark.parametrize(("env", "options", "how", "said"), REFUSED)
def test_what_cannot_be_made_is_refused(
    env: Any, options: dict[str, Any], how: dict[str, Any], said: tuple[str, ...]
) -> None:
    with pytest.raises(RequestError) as raised:
        make_environments(env, 2, EnvSection(**options), **how)
    for words in said:
        assert words in str(raised.value)


def test_an_environment_of_training_is_not_one_of_evaluations(home: Path) -> None:
    with pytest.raises(RequestError, match="the same OneStep was given twice as an environment"):
        library.run("ppo", lambda: ONE, steps=8, options={"tracking.enabled": False})


# -- steps --------------------------------------------------------------------------------------


def test_each_part_of_an_observation_has_a_row_for_each_environment() -> None:
    space = spaces.Dict(
        at=spaces.Discrete(9), seen=spaces.Tuple([spaces.Box(0, 9, (2,)), spaces.MultiBinary(1)])
    )
    shown = [{"at": at, "seen": (numpy.full(2, at), [at % 2])} for at in range(8)]
    vector = SyncVector([partial(Told, space, shown[first:]) for first in (0, 4)])
    assert vector.reset()[0]["at"].tolist() == [0, 4]
    vector.step([0, 0])
    seen, *_, infos = vector.step([0, 0])
    assert infos["final_obs"]["at"].tolist() == [2, 6]
    assert infos["final_obs"]["seen"][0].tolist() == [[2, 2], [6, 6]]
    assert seen["seen"][1].shape == (2, 1)


class PaysText(OneStep):
    """Pays a text, as long as its option says."""

    def __init__(self, length: int = 1) -> None:
        super().__init__()
        self.length = length

    def step(self, action: Any) -> Any:
        seen, _, *rest = super().step(action)
        return seen, "1" * self.length, *rest


@pytest.mark.parametrize("backend", ["in_process", "workers"])
@pytest.mark.parametrize("length", [1, 100_000])
def test_a_reward_that_is_text_is_refused_in_the_first_step(
    backend: str, length: int, home: Path
) -> None:
    options = {"num_envs": 2, "sampling.backend": backend, "env.length": length}
    options |= {"sampling.num_workers": 1} if backend == "workers" else {}
    with pytest.raises(EnvironmentFailedError) as raised:
        library.run("ppo", PaysText, options={"tracking.enabled": False, **options})
    message = raised.value.message
    assert message.startswith("environment 'PaysText' (1 of 2) failed in step after 0 steps: Type")
    assert "it gave reward = '1" in message
    assert len(message) < 3_000


# -- what is put around one environment ---------------------------------------------------------


def test_wrappers_are_imported_and_put_around_from_the_inside_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_wrappers.py").write_text(
        "import gymnasium\n"
        "class Add(gymnasium.ObservationWrapper):\n"
        "    def observation(self, seen): return seen + 1\n"
        "class Double(gymnasium.ObservationWrapper):\n"
        "    def observation(self, seen): return seen * 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert stepped(EnvSection(wrappers=("my_wrappers:Add", "my_wrappers:Double")))[0, 0] == 4.0
    sys.modules.pop("my_wrappers")


def test_the_time_is_appended_as_a_fraction_of_the_limit() -> None:
    section = EnvSection(time_feature=True)
    # After the fourth step an episode begins anew.
    assert [stepped(section, steps)[0, 2] for steps in range(6)] == [0, 0.25, 0.5, 0.75, 0, 0.25]
    assert make_environments(limited, 1, section).observation_space.shape == (3,)


def test_the_last_frames_are_seen_at_once_the_newest_last() -> None:
    for frames in (2, 3):
        made = make_environments(limited, 1, EnvSection(frame_stack=frames))
        assert (made.frame_stack, made.observation_space.shape) == (frames, (frames, 2))
    assert make_environments(limited, 1, EnvSection(frame_stack=1)).observation_space.shape == (2,)
    assert stepped(EnvSection(frame_stack=3), 1)[0, :, 0].tolist() == [0.0, 0.0, 1.0]
    assert stepped(EnvSection(frame_stack=3), 3)[0, :, 0].tolist() == [1.0, 2.0, 3.0]


# -- bandits ------------------------------------------------------------------------------------


class OneArm(OneStep):
    """Refuses every arm but the second, as its mask says, in its observations or beside them."""

    action_space = spaces.Discrete(6)

    def __init__(self, beside: bool) -> None:
        super().__init__()
        self.beside = beside
        if not beside:
            self.observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(6)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, infos = super().reset(seed=seed)
        mask = {"action_mask": numpy.array([0, 1, 0, 0, 0, 0], numpy.int8)}
        return (observation, mask) if self.beside else (mask, infos)

    def step(self, action: Any) -> Any:
        if action != 1:
            raise ValueError(f"arm {action} is absent")
        observation, *rest = super().step(action)
        return observation if self.beside else {"action_mask": numpy.ones(6, numpy.int8)}, *rest


class Half(OneStep):
    def step(self, action: Any) -> Any:
        seen, reward, _, cut, info = super().step(action)
        return seen, reward, 0.5, cut, info


def test_environments_whose_episodes_have_one_step_are_bandits() -> None:
    def is_bandit(env: str | Callable[..., Any]) -> bool:
        return all(long_episodes(env, {}, seed) is None for seed in range(3))

    assert all(map(is_bandit, (OneStep, "LinearBandit-v0")))
    assert is_bandit(lambda: TimeLimit(gymnasium.make("CartPole-v1"), 1))
    assert is_bandit(lambda: OneArm(beside=True))
    assert is_bandit(lambda: OneArm(beside=False))
    assert not is_bandit(CartPoleEnv)
    with pytest.raises(EnvironmentFailedError, match=r"'Half' failed in its first step"):
        is_bandit(Half)
