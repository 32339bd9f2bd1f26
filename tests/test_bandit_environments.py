"""What holds for all bandit environments, in both of their forms."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import gymnasium
import numpy
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug.bandits import (
    BanditEnv,
    BanditVectorEnv,
    Rounds,
)
from rlplug.errors import ConfigError, RequestError

IDS = ("LinearBandit-v0", "FeatureBandit-v0", "ClassificationBandit-v0")


def single(name: str, **options: Any) -> BanditEnv:
    env = gymnasium.make(f"rlplug.bandits:{name}", **options).unwrapped
    assert isinstance(env, BanditEnv)
    return env


def vector(name: str, n: int, **options: Any) -> BanditVectorEnv:
    envs = gymnasium.make_vec(f"rlplug.bandits:{name}", num_envs=n, **options)
    assert isinstance(envs, BanditVectorEnv)
    return envs


def flat(observations: Any) -> numpy.ndarray[Any, Any]:
    """Observations as one row of numbers per context."""
    parts = observations.values() if isinstance(observations, dict) else [observations]
    return numpy.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def played(envs: BanditVectorEnv, steps: int) -> numpy.ndarray[Any, Any]:
    """All numbers that steps with arms 0, 1, 0, 1 … return."""
    numbers = []
    for step in range(steps):
        seen, rewards, _, _, infos = envs.step(numpy.full(envs.num_envs, step % 2))
        numbers += [flat(seen).ravel(), rewards, infos["regret"]]
    return numpy.concatenate(numbers)


@pytest.mark.parametrize("name", [*IDS, "MultiArmedBandit-v0", "RingsBandit-v0"])
def test_the_single_form_passes_gymnasiums_check_without_a_warning(name: str) -> None:
    check_env(single(name))


@pytest.mark.parametrize("name", IDS)
def test_every_step_ends_all_episodes_and_brings_the_next_contexts(name: str) -> None:
    envs = vector(name, 500)
    before, _ = envs.reset(seed=1)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    for arm in (0, 1):
        after, rewards, terminated, truncated, infos = envs.step(numpy.full(500, arm))
        assert envs.observation_space.contains(before)
        assert (flat(before) != flat(after)).any()
        assert rewards.shape == (500,)
        assert terminated.all()
        assert not truncated.any()
        assert infos["_regret"].all()
        assert (infos["regret"] >= 0.0).all()
        assert (infos["regret"] > 0.0).any()
        before = after


@pytest.mark.parametrize("name", IDS)
def test_seeds_and_copies_give_the_same_stream_and_other_seeds_another(name: str) -> None:
    envs, others = vector(name, 4), vector(name, 4)
    first, _ = envs.reset(seed=7)
    kept = flat(first).copy()
    others.reset(seed=7)
    stream = played(envs, 300)
    assert numpy.array_equal(played(others, 300), stream)
    assert numpy.array_equal(played(copy.deepcopy(envs), 300), played(envs, 300))
    # What was returned is not written again.
    assert numpy.array_equal(flat(first), kept)
    envs.reset(seed=7)
    assert numpy.array_equal(played(envs, 300), stream)
    envs.reset(seed=8)
    assert not numpy.array_equal(played(envs, 300), stream)


@pytest.mark.parametrize("name", IDS)
def test_the_single_form_plays_what_one_vectorized_environment_plays(name: str) -> None:
    env, envs = single(name), vector(name, 1)
    seen, _ = env.reset(seed=3)
    all_seen, _ = envs.reset(seed=3)
    for step in range(600):
        assert env.observation_space.contains(seen)
        assert all(numpy.array_equal(a, b[0]) for a, b in pairs(seen, all_seen))
        after, reward, terminated, truncated, info = env.step(step % 2)
        assert all(numpy.array_equal(a, b) for a, b in pairs(after, seen))
        all_seen, rewards, _, _, infos = envs.step(numpy.array([step % 2]))
        assert (reward, terminated, truncated) == (rewards[0], True, False)
        assert info == {key: infos[key][0] for key in infos if not key.startswith("_")}
        seen, _ = env.reset()


def pairs(one: Any, other: Any) -> list[tuple[Any, Any]]:
    if isinstance(one, dict):
        return [(one[key], other[key]) for key in one]
    return [(one, other)]


def test_environments_of_one_problem_seed_share_their_hidden_parameters() -> None:
    """Noiseless rewards of one arm are a linear function of the context: the same for all."""
    makers = [lambda: single("LinearBandit-v0", noise=0.0, problem_seed=4)] * 8
    apart = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    together = vector("LinearBandit-v0", 8, noise=0.0, problem_seed=4)
    thetas = []
    for seed, envs in ((1, apart), (2, together)):
        seen, _ = envs.reset(seed=seed)
        rewards = envs.step(numpy.zeros(8, dtype=numpy.int64))[1]
        thetas.append(numpy.linalg.solve(seen, rewards))
    assert thetas[0] == pytest.approx(thetas[1], abs=1e-8)
    envs = vector("LinearBandit-v0", 1)
    envs.reset(seed=1)
    first = envs.problem_seed
    envs.reset()
    assert envs.problem_seed == first
    envs.reset(seed=2)
    assert envs.problem_seed != first
    fixed = vector("LinearBandit-v0", 1, problem_seed=first)
    fixed.reset(seed=2)
    assert fixed.problem_seed == first


# -- a problem whose numbers can be read off -------------------------------------------------------


@attrs.frozen(kw_only=True)
class TwoContexts:
    """In context 0 arm 2 is best (0.75); in context 1 arm 2 is absent and the others lose."""

    num_arms: int = 3
    problem_seed: int | None = None

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (1,), numpy.float64)

    def start(self, seed: int) -> TwoContexts:
        return self

    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        rewards = numpy.array([[0.625, 0.375, 0.875], [-1.25, -0.75, 0.0]])
        expected = numpy.array([[0.5, 0.25, 0.75], [-1.0, -0.5, 0.0]])
        present = numpy.array([[True, True, True], [True, True, False]])
        return Rounds(
            observations=numpy.tile(numpy.array([[0.0], [1.0]]), (steps, 1, 1)),
            rewards=numpy.tile(rewards, (steps, 1, 1)),
            expected=numpy.tile(expected, (steps, 1, 1)),
            best=numpy.tile(numpy.array([0.75, -0.5]), (steps, 1)),
            present=numpy.tile(present, (steps, 1, 1)),
        )


class TwoContextsVectorEnv(BanditVectorEnv):
    kind = TwoContexts


@pytest.mark.parametrize(
    ("actions", "rewards", "expected", "regret", "absent"),
    [
        ([1, 0], [0.375, -1.25], [0.25, -1.0], [0.5, 0.5], [False, False]),
        ([2, 1], [0.875, -0.75], [0.75, -0.5], [0.0, 0.0], [False, False]),
        # An absent arm earns nothing, and never beats the best.
        ([2, 2], [0.875, 0.0], [0.75, 0.0], [0.0, 0.0], [False, True]),
    ],
)
def test_regret_is_the_best_expected_reward_less_that_of_the_chosen_arm(
    actions: list[int], rewards: Any, expected: Any, regret: Any, absent: Any
) -> None:
    for kind in (numpy.int64, numpy.int32, numpy.uint8):
        envs = TwoContextsVectorEnv(2)
        assert envs.reset(seed=0)[0].tolist() == [[0.0], [1.0]]
        _, earned, _, _, infos = envs.step(numpy.array(actions, kind))
        assert earned.tolist() == rewards
        assert infos["best_reward"].tolist() == [0.75, -0.5]
        assert infos["expected_reward"].tolist() == expected
        assert infos["regret"].tolist() == regret
        assert infos["absent_arm"].tolist() == absent


def test_actions_that_are_no_arms_are_refused_and_steps_before_the_first_reset() -> None:
    envs = TwoContextsVectorEnv(2)
    with pytest.raises(ResetNeeded, match="TwoContextsVectorEnv: call reset before step"):
        envs.step(numpy.array([0, 0]))
    envs.reset(seed=0)
    for actions, told in (
        ([0, -1], "action -1 in row 1 is no arm: there are 3"),
        ([3, 0], "action 3 in row 0 is no arm: there are 3"),
        ([0, 1, 2], r"shape \(2,\), found int64 of shape \(3,\)"),
        ([0.0, 1.0], r"whole numbers of shape \(2,\), found float64"),
    ):
        with pytest.raises(RequestError, match=told):
            envs.step(numpy.array(actions))


# -- options ---------------------------------------------------------------------------------------


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        single("LinearBandit-v0", num_arms=1, noise="loud", context_dims=3)
    text = str(caught.value)
    assert "3 problems in the options of LinearBanditEnv:" in text
    assert "must be at least 2, got 1" in text
    assert "expected float, got str 'loud'" in text
    assert "unknown option, did you mean 'context_dim'?" in text
    with pytest.raises(ConfigError, match="min_arms must be at most num_arms, got 5 and 3"):
        vector("FeatureBandit-v0", 2, num_arms=3, min_arms=5)
    with pytest.raises(RequestError, match="LinearBanditVectorEnv has nothing to draw"):
        vector("LinearBandit-v0", 1, render_mode="ansi")
