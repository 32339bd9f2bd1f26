"""`FeatureBandit-v0`: arms that come and go, known by their features."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplug.bandits import FeatureBandit, Rounds
from rlplug.bandits.problem import DriftingParameters


def drawn(steps: int, n: int, **options: Any) -> Rounds:
    source = FeatureBandit(**options).start(seed=3)
    return source.draw(numpy.random.default_rng(4), steps, n)


@settings(max_examples=25)
@given(num_arms=st.integers(2, 12), context_dim=st.integers(2, 9), arm_dim=st.integers(2, 9))
def test_present_arms_have_norm_1_and_absent_ones_are_zeros_that_pay_nothing(
    num_arms: int, context_dim: int, arm_dim: int
) -> None:
    rounds = drawn(
        3, 20, num_arms=num_arms, min_arms=1, context_dim=context_dim, arm_dim=arm_dim, drift=0.1
    )
    present = rounds.present
    assert present is not None
    seen = rounds.observations
    assert numpy.array_equal(seen["action_mask"], present)
    assert numpy.linalg.norm(seen["context"], axis=2) == pytest.approx(numpy.ones((3, 20)))
    assert numpy.linalg.norm(seen["arms"], axis=3) == pytest.approx(present.astype(float))
    assert not rounds.rewards[~present].any()
    assert not rounds.expected[~present].any()
    assert (rounds.expected[present] <= rounds.best.repeat(present.sum(axis=2).ravel())).all()


def test_an_arm_pays_a_bilinear_part_and_a_linear_part() -> None:
    rounds = drawn(1, 40, num_arms=4, min_arms=4, context_dim=3, arm_dim=2)
    rows = DriftingParameters(2, 4, drift=0.0, seed=3).rows
    W, v = rows[:, :3].T, rows[:, 3]
    contexts, arms = rounds.observations["context"][0], rounds.observations["arms"][0]
    by_hand = [[c @ W @ a + v @ a for a in row] for c, row in zip(contexts, arms, strict=True)]
    assert rounds.expected[0] == pytest.approx(numpy.array(by_hand))


def test_every_number_of_arms_and_every_slot_is_as_likely_as_another() -> None:
    rounds = drawn(1, 30_000, num_arms=4, min_arms=2)
    assert rounds.present is not None
    counts = rounds.present[0].sum(axis=1)
    assert numpy.bincount(counts, minlength=5)[:2].tolist() == [0, 0]
    shares = numpy.bincount(counts, minlength=5)[2:] / 30_000
    assert shares == pytest.approx(numpy.full(3, 1 / 3), abs=0.015)
    # With 2, 3 or 4 of 4 arms present, each slot is filled in three quarters of the contexts.
    assert rounds.present[0].mean(axis=0) == pytest.approx(numpy.full(4, 0.75), abs=0.015)


def test_no_arm_is_ever_seen_twice() -> None:
    arms = drawn(2, 50, num_arms=3, min_arms=3).observations["arms"].reshape(-1, 8)
    assert len(numpy.unique(arms, axis=0)) == 300


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
