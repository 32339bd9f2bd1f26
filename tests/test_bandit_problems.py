"""The problems of the bandit environments: their contexts, their noise, and how they drift."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplug.bandits import FeatureBandit, LinearBandit, MultiArmedBandit, Rounds
from rlplug.bandits.synthetic import DriftingParameters


def drawn(kind: Any, steps: int, n: int, **options: Any) -> Rounds:
    rounds: Rounds = kind(**options).start(seed=3).draw(numpy.random.default_rng(4), steps, n)
    return rounds


# -- linear ----------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(num_arms=st.integers(2, 20), context_dim=st.integers(2, 30), drift=st.sampled_from([0, 0.1]))
def test_contexts_have_norm_1_and_no_arm_pays_more_than_the_best(
    num_arms: int, context_dim: int, drift: float
) -> None:
    rounds = drawn(LinearBandit, 5, 7, num_arms=num_arms, context_dim=context_dim, drift=drift)
    assert rounds.observations.shape == (5, 7, context_dim)
    assert numpy.linalg.norm(rounds.observations, axis=2) == pytest.approx(numpy.ones((5, 7)))
    assert rounds.expected.shape == (5, 7, num_arms)
    assert (rounds.expected <= rounds.best[..., None]).all()
    assert (abs(rounds.expected) <= 1.0 + 1e-12).all()


def test_an_arm_pays_the_product_of_its_parameters_and_the_context_plus_noise() -> None:
    rounds = drawn(LinearBandit, 100, 100, num_arms=3, context_dim=4, noise=0.5)
    theta = DriftingParameters(3, 4, drift=0.0, seed=3).rows
    assert rounds.expected == pytest.approx(rounds.observations @ theta.T)
    noise = (rounds.rewards - rounds.expected)[:, :, 0]
    assert noise.mean() == pytest.approx(0.0, abs=0.02)
    assert noise.std() == pytest.approx(0.5, abs=0.02)
    quiet = drawn(LinearBandit, 100, 100, noise=0.0)
    assert numpy.array_equal(quiet.rewards, quiet.expected)


def test_many_environments_drift_as_far_per_step_as_one_does() -> None:
    """100 steps of one environment and 1 step of 100 are 100 steps both."""
    for steps, n, drift, expected in ((1, 1, 0.01, 0.01), (100, 1, 0.01, 0.1), (1, 100, 0.01, 0.1)):
        hidden = DriftingParameters(2000, 50, drift=drift, seed=1)
        before = hidden.rows
        hidden.products(numpy.zeros((steps, n, 50)))
        assert numpy.linalg.norm(hidden.rows, axis=1) == pytest.approx(numpy.ones(2000))
        moved = numpy.linalg.norm(hidden.rows - before, axis=1).mean()
        assert moved == pytest.approx(expected, rel=0.03)


# -- arms with features ----------------------------------------------------------------------------


@settings(max_examples=25)
@given(num_arms=st.integers(2, 12), context_dim=st.integers(2, 9), arm_dim=st.integers(2, 9))
def test_present_arms_have_norm_1_and_absent_ones_are_zeros_that_pay_nothing(
    num_arms: int, context_dim: int, arm_dim: int
) -> None:
    options = {"num_arms": num_arms, "context_dim": context_dim, "arm_dim": arm_dim}
    rounds = drawn(FeatureBandit, 3, 20, min_arms=1, drift=0.1, **options)
    present, seen = rounds.present, rounds.observations
    assert present is not None
    assert numpy.array_equal(seen["action_mask"], present)
    assert numpy.linalg.norm(seen["context"], axis=2) == pytest.approx(numpy.ones((3, 20)))
    assert numpy.linalg.norm(seen["arms"], axis=3) == pytest.approx(present.astype(float))
    assert not rounds.rewards[~present].any()
    assert not rounds.expected[~present].any()
    assert (rounds.expected[present] <= rounds.best.repeat(present.sum(axis=2).ravel())).all()


def test_an_arm_pays_a_bilinear_part_and_a_linear_part() -> None:
    rounds = drawn(FeatureBandit, 1, 40, num_arms=4, min_arms=4, context_dim=3, arm_dim=2)
    rows = DriftingParameters(2, 4, drift=0.0, seed=3).rows
    W, v = rows[:, :3].T, rows[:, 3]
    contexts, arms = rounds.observations["context"][0], rounds.observations["arms"][0]
    by_hand = [[c @ W @ a + v @ a for a in row] for c, row in zip(contexts, arms, strict=True)]
    assert rounds.expected[0] == pytest.approx(numpy.array(by_hand))
    # No arm is seen twice.
    assert len(numpy.unique(arms.reshape(-1, 2), axis=0)) == 160


def test_choosing_an_absent_arm_earns_0_and_is_flagged() -> None:
    envs = gymnasium.make_vec("rlplug.bandits:FeatureBandit-v0", num_envs=200)
    seen, _ = envs.reset(seed=1)
    absent = seen["action_mask"].argmin(axis=1)
    chosen_absent = seen["action_mask"].min(axis=1) == 0
    _, rewards, _, _, infos = envs.step(absent)
    assert 100 < chosen_absent.sum() < 200
    assert numpy.array_equal(infos["absent_arm"], chosen_absent)
    assert not rewards[chosen_absent].any()
    assert rewards[~chosen_absent].all()


# -- arms without features -------------------------------------------------------------------------


def test_an_arm_always_expects_its_mean_and_pays_0_or_1_or_the_mean_plus_noise() -> None:
    rounds = drawn(MultiArmedBandit, 100, 100, num_arms=3)
    means = rounds.expected[0, 0]
    assert (rounds.expected == means).all()
    assert ((means >= 0) & (means <= 1)).all()
    assert (rounds.best == means.max()).all()
    assert set(numpy.unique(rounds.rewards)) == {0.0, 1.0}
    # Four standard deviations of the mean of 10,000 draws are at most 0.02.
    assert rounds.rewards.mean((0, 1)) == pytest.approx(means, abs=0.02)
    rounds = drawn(MultiArmedBandit, 100, 100, num_arms=3, rewards="gaussian", noise=0.2)
    assert rounds.expected[0, 0].tolist() == means.tolist()
    noise = rounds.rewards - rounds.expected
    assert (noise.mean(), noise.std()) == pytest.approx((0.0, 0.2), abs=0.01)
    vector = gymnasium.make_vec("rlplug.bandits:MultiArmedBandit-v0", 2)
    assert vector.reset(seed=0)[0].tolist() == [0, 0]
    assert vector.step(numpy.array([0, 1]))[0].tolist() == [0, 0]
