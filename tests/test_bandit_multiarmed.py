"""`MultiArmedBandit-v0`: no context, and arms that pay their hidden means."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.utils.env_checker import check_env

import rlplug.bandits  # noqa: F401 # registers the environments
from rlplug.bandits import MultiArmedBandit, Rounds


def drawn(steps: int, n: int, **options: Any) -> Rounds:
    source = MultiArmedBandit(**options).start(seed=3)
    return source.draw(numpy.random.default_rng(4), steps, n)


def test_an_arm_always_expects_the_same_and_the_best_is_the_highest_of_all() -> None:
    rounds = drawn(4, 5, num_arms=3)
    means = rounds.expected[0, 0]
    assert (rounds.expected == means).all()
    assert ((means >= 0) & (means <= 1)).all()
    assert (rounds.best == means.max()).all()
    assert drawn(1, 1, num_arms=3).expected[0, 0].tolist() == means.tolist()


def test_bernoulli_arms_pay_0_or_1_and_on_average_their_mean() -> None:
    rounds = drawn(100, 100, num_arms=3)
    assert set(numpy.unique(rounds.rewards)) == {0.0, 1.0}
    # Four standard deviations of the mean of 10,000 draws are at most 0.02.
    assert rounds.rewards.mean((0, 1)) == pytest.approx(rounds.expected[0, 0], abs=0.02)


def test_gaussian_arms_pay_their_mean_plus_noise() -> None:
    rounds = drawn(100, 100, num_arms=3, rewards="gaussian", noise=0.2)
    noise = rounds.rewards - rounds.expected
    assert noise.mean() == pytest.approx(0.0, abs=0.01)
    assert noise.std() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("vectorized", [True, False])
def test_the_environment_shows_the_same_observation_in_every_episode(vectorized: bool) -> None:
    if vectorized:
        vector = gymnasium.make_vec("MultiArmedBandit-v0", 2)
        assert vector.reset(seed=0)[0].tolist() == [0, 0]
        observations, _, terminated, _, infos = vector.step(numpy.array([0, 1]))
        assert (observations.tolist(), terminated.tolist()) == ([0, 0], [True, True])
        assert (infos["regret"] >= 0).all()
    else:
        env = gymnasium.make("MultiArmedBandit-v0")
        check_env(env.unwrapped)
        observation, _ = env.reset(seed=0)
        assert env.observation_space.contains(observation)
        observation, _, terminated, _, _ = env.step(0)
        assert env.observation_space.contains(observation)
        assert terminated
