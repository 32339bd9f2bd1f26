from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

import rlplug as library
from rlplug.config.sections import EnvSection
from rlplug.envs import describe_env, long_episodes, make_environments
from rlplug.envs.sync import SyncVector
from rlplug.errors import ConfigError, EnvironmentFailedError, RequestError


class OneStep(gymnasium.Env[Any, Any]):
    """Pays 1 for action 1."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(2), {}

    def step(self, action: Any) -> Any:
        return self.np_random.random(2), self.scale * float(action), True, False, {}


def test_a_native_vector_is_used_where_there_is_one() -> None:
    made = make_environments("LinearBandit-v0", 3, {"num_arms": 4})
    assert type(made.vector).__name__ == "LinearBanditVectorEnv"
    assert (made.num_envs, made.action_space) == (3, gymnasium.spaces.Discrete(4))


def test_other_ids_become_a_vector_that_resets_in_the_same_step() -> None:
    made = make_environments("MountainCar-v0", 2, {})
    assert (made.num_envs, made.autoreset) == (2, AutoresetMode.SAME_STEP)
    made.vector.close()


def test_a_callable_makes_environments_with_the_arguments() -> None:
    made = make_environments(OneStep, 2, {"scale": 3.0})
    made.vector.reset(seed=0)
    _, rewards, _, _, _ = made.vector.step(numpy.array([0, 1]))
    assert rewards.tolist() == [0.0, 3.0]
    assert (made.name, describe_env(OneStep)) == ("OneStep", "OneStep")


@pytest.mark.parametrize("package", ["", "rlplug.bandits:"])
def test_an_unknown_id_gets_a_suggestion(package: str) -> None:
    wrong, right = f"{package}LinearBandi-v0", f"{package}LinearBandit-v0"
    with pytest.raises(RequestError) as raised:
        make_environments(wrong, 1, {})
    assert raised.value.message == f"unknown environment {wrong!r}. Did you mean {right!r}?"


def test_what_a_module_does_not_have_is_not_looked_for_elsewhere() -> None:
    for path, meant in (
        (f"{__name__}:OneStpe", f"{__name__}:OneStep"),
        ("rlplug.bandits:LinearBandi", "rlplug.bandits:LinearBandit-v0"),
        ("sys:path", ""),
    ):
        with pytest.raises(RequestError) as raised:
            make_environments(path, 1, {})
        assert raised.value.message.startswith(f"unknown environment {path!r}.")
        assert meant in raised.value.message
        assert f"a class or function of {path.partition(':')[0]!r}" in raised.value.hints[0]


def test_an_atari_id_without_its_package_gets_the_whole_id() -> None:
    with pytest.raises(RequestError, match="unknown environment 'ALE/Pong-v5'") as raised:
        make_environments("ALE/Pong-v5", 1, {})
    assert raised.value.hints[0].startswith("try: --env ale_py:ALE/Pong-v5, with pip install")


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(RequestError, match="names a package that cannot be imported"):
        make_environments("no_such_package:Thing-v0", 1, {})


def test_a_package_of_this_folder_is_not_asked_of_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_games.py").write_text("import no_such_package", encoding="utf-8")
    with pytest.raises(RequestError) as raised:
        make_environments("my_games:Thing-v0", 1, {})
    assert raised.value.hints == ("try: python -m rlplug, which finds the my_games of this folder",)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RequestError, match="No module named 'no_such_package'") as raised:
        make_environments("my_games:Thing-v0", 1, {})
    assert raised.value.hints == ("try: fix my_games, or install what it imports",)


def test_an_argument_the_environment_does_not_take_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as raised:
        make_environments("MountainCar-v0", 1, {"goal_velocty": 1})
    assert "env.goal_velocty" in str(raised.value)
    assert "did you mean 'goal_velocity'?" in str(raised.value)


def test_a_wrong_argument_of_a_bandit_is_refused_by_its_own_check() -> None:
    with pytest.raises(ConfigError, match=r"env\.num_arms   must be at least 2, got 1"):
        make_environments("LinearBandit-v0", 1, {"num_arms": 1})


def test_a_constructor_that_raises_is_reported_with_its_arguments() -> None:
    def broken(**arguments: Any) -> gymnasium.Env[Any, Any]:
        raise OSError("no display")

    with pytest.raises(RequestError, match="'broken' could not be made with size=2") as raised:
        make_environments(broken, 1, {"size": 2})
    assert "OSError: no display" in str(raised.value)


def test_a_native_vector_that_raises_is_reported_with_its_arguments() -> None:
    def broken(num_envs: int, **arguments: Any) -> Any:
        raise OSError("no device")

    gymnasium.register("BrokenVector-v0", vector_entry_point=broken)
    try:
        with pytest.raises(RequestError, match="could not be made with size=2") as raised:
            make_environments("BrokenVector-v0", 2, {"size": 2})
    finally:
        del gymnasium.registry["BrokenVector-v0"]
    assert raised.value.hints[0] == "OSError: no device"


def test_what_an_environment_needs_is_to_be_installed() -> None:
    def broken() -> gymnasium.Env[Any, Any]:
        raise gymnasium.error.DependencyNotInstalled("pip install physics")

    with pytest.raises(RequestError, match="pip install physics") as raised:
        make_environments(broken, 1, {})
    assert raised.value.hints[-1].startswith("try: install what it needs ")


def test_a_callable_that_makes_no_environment_is_refused() -> None:
    with pytest.raises(RequestError, match=r"made dict, which is no gymnasium\.Env"):
        make_environments(dict, 1, {})  # type: ignore[arg-type] # the mistake under test


def test_longer_episodes_are_recognised() -> None:
    assert long_episodes(OneStep, {}, seed=0, told=set()) is None
    assert long_episodes("LinearBandit-v0", {}, seed=0, told=set()) is None
    assert long_episodes(CartPoleEnv, {}, seed=0, told=set()) is not None


class OneArm(OneStep):
    """Refuses every arm but the second, as its mask says, in its observations or beside them."""

    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self, beside: bool) -> None:
        super().__init__()
        self.beside = beside
        if not beside:
            mask = gymnasium.spaces.MultiBinary(6)
            self.observation_space = gymnasium.spaces.Dict({"action_mask": mask})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, infos = super().reset(seed=seed)
        mask = {"action_mask": numpy.array([0, 1, 0, 0, 0, 0], numpy.int8)}
        return (observation, mask) if self.beside else (mask, infos)

    def step(self, action: Any) -> Any:
        if action != 1:
            raise ValueError(f"arm {action} is absent")
        observation, *rest = super().step(action)
        return observation if self.beside else {"action_mask": numpy.ones(6, numpy.int8)}, *rest


@pytest.mark.parametrize("beside", [False, True])
def test_actions_that_are_masked_are_not_tried_when_episodes_are_looked_at(beside: bool) -> None:
    for seed in range(5):
        assert long_episodes(lambda: OneArm(beside), {}, seed, set()) is None


def test_an_episode_that_is_cut_after_one_step_is_one_of_a_bandit() -> None:
    assert long_episodes(lambda: TimeLimit(gymnasium.make("CartPole-v1"), 1), {}, 0, set()) is None


def test_an_end_that_is_no_boolean_is_none_when_episodes_are_looked_at() -> None:
    class Half(OneStep):
        def step(self, action: Any) -> Any:
            seen, reward, _, cut, info = super().step(action)
            return seen, reward, 0.5, cut, info

    said = r"'Half' failed in its first step: TypeError: it gave terminated = 0\.5, expected a bool"
    with pytest.raises(EnvironmentFailedError, match=said):
        long_episodes(Half, {}, seed=0, told=set())


def test_as_many_actions_as_environments_are_wanted() -> None:
    vector = SyncVector([lambda: gymnasium.make("CartPole-v1")] * 2)
    vector.reset(seed=0)
    for wrong in (1, 3):
        with pytest.raises(ValueError, match=f"{wrong} actions for 2 environments"):
            vector.step(numpy.zeros(wrong, numpy.int64))
    vector.close()


def test_the_same_environment_is_not_taken_twice(home: Path) -> None:
    one = OneStep()
    with pytest.raises(RequestError, match="the same OneStep was given twice as an environment"):
        make_environments(lambda: gymnasium.wrappers.TimeLimit(one, 9), 2, {})
    # Training and evaluation would move each other's episodes.
    with pytest.raises(RequestError, match="the same OneStep was given twice as an environment"):
        library.run("ppo", lambda: one, steps=8, options={"tracking.enabled": False})


def test_a_mask_among_observations_is_not_stacked() -> None:
    class Masked(OneStep):
        observation_space = gymnasium.spaces.Dict(
            seen=gymnasium.spaces.Box(0, 1, (2,)), action_mask=gymnasium.spaces.MultiBinary(2)
        )

    with pytest.raises(RequestError, match=r"env.frame_stack = 3 would stack the 'action_mask'"):
        make_environments(Masked, 1, EnvSection(frame_stack=3))


def test_an_environment_instead_of_a_way_to_make_one_is_refused() -> None:
    given: Any = OneStep()
    with pytest.raises(RequestError, match="a OneStep was given, where a way to make"):
        make_environments(given, 1, {})
