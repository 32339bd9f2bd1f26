"""Off-policy estimators of episodes: numbers to check by hand, identities, a fitted Q."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplug.ope import (
    EpisodeChoices,
    bootstrap,
    cumulative_log_weights,
    dm,
    dr,
    ips,
    judge,
    per_decision_is,
    per_decision_wis,
    sequential_dr,
    sndr,
    snips,
    trajectory_is,
    trajectory_wis,
    weighted_dr,
)

REWARDS = numpy.array([[1.0, 2.0], [3.0, 0.0]])
"""Two episodes, of two steps and of one; gamma is 1/2."""
LOG_RATIOS = numpy.log([[2.0, 0.5], [0.5, 1.0]])
LOG_WEIGHTS = cumulative_log_weights(LOG_RATIOS)


@given(st.integers(1, 12), st.integers(1, 5), st.floats(0.1, 1.0), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_estimators_agree_where_theory_says_so(
    episodes: int, steps: int, gamma: float, seed: int
) -> None:
    random = numpy.random.default_rng(seed)
    shape = episodes, steps
    rewards, q_policy = random.standard_normal(shape), random.standard_normal(shape)
    log_weights = cumulative_log_weights(random.normal(0, 0.7, shape))
    zero = numpy.zeros(shape)

    def equal(one: Any, other: Any) -> None:
        assert one.value == pytest.approx(other.value, rel=1e-6, abs=1e-9)

    given = rewards, log_weights
    # Without a model, DR is importance sampling per decision.
    equal(sequential_dr(*given, zero, zero, gamma), per_decision_is(*given, gamma))
    equal(weighted_dr(*given, zero, zero, gamma), per_decision_wis(*given, gamma))
    # With a model that is right, Q = r + γ V of the next state, DR is the direct method.
    following = numpy.concatenate([q_policy[:, 1:], numpy.zeros((episodes, 1))], axis=1)
    right = rewards + gamma * following
    equal(sequential_dr(*given, right, q_policy, gamma), dm(q_policy[:, 0]))
    equal(weighted_dr(*given, right, q_policy, gamma), dm(q_policy[:, 0]))
    # The policy that logged: what was earned.
    earned = dm(rewards @ gamma ** numpy.arange(steps))
    for estimator in (trajectory_is, trajectory_wis, per_decision_is, per_decision_wis):
        equal(estimator(rewards, zero, gamma), earned)
    for robust in (sequential_dr, weighted_dr):
        equal(robust(rewards, zero, q_policy, q_policy, gamma), earned)
    # Of single steps, they are those of bandits.
    first, w = rewards[:, :1], numpy.exp(log_weights[:, 0])
    one = first, log_weights[:, :1]
    for estimator in (trajectory_is, per_decision_is):
        equal(estimator(*one), ips(rewards[:, 0], w))
    for estimator in (trajectory_wis, per_decision_wis):
        equal(estimator(*one), snips(rewards[:, 0], w))
    q = right[:, :1], q_policy[:, :1]
    equal(sequential_dr(*one, *q), dr(rewards[:, 0], w, right[:, 0], q_policy[:, 0]))
    equal(weighted_dr(*one, *q), sndr(rewards[:, 0], w, right[:, 0], q_policy[:, 0]))


def test_self_normalized_estimates_do_not_depend_on_the_scale_of_tiny_weights() -> None:
    given = REWARDS, LOG_WEIGHTS
    tiny = REWARDS, LOG_WEIGHTS - 2000.0
    for estimator in (trajectory_wis, per_decision_wis):
        assert estimator(*tiny).value == pytest.approx(estimator(*given).value)
    assert trajectory_is(*tiny).value == 0


def test_a_bootstrap_sample_of_quotients_per_step_is_that_of_its_episodes() -> None:
    terms = {"wis": per_decision_wis(REWARDS, LOG_WEIGHTS), "plain": dm(REWARDS[:, 0])}
    drawn = bootstrap(terms, samples=20, seed=3)
    # Two episodes: drawn are both, or one of them twice; the plain mean says which.
    alone = [per_decision_wis(REWARDS[[row]], LOG_WEIGHTS[[row]]).value for row in (0, 1)]
    expected = {2.0: terms["wis"].value, 1.0: alone[0], 3.0: alone[1]}
    for plain, found in zip(drawn["plain"], drawn["wis"], strict=True):
        assert found == pytest.approx(expected[float(plain)])


def walks(episodes: int, seed: int) -> tuple[EpisodeChoices, float]:
    """Three steps of a chain: action 1 (logged in half of the steps) earns 1 and goes on, 0 ends.

    The policy takes 1 with probability 3/4: it earns 3/4 + 9/16 + 27/64, and Gaussian noise.
    """
    random = numpy.random.default_rng(seed)
    actions = random.integers(0, 2, (episodes, 3))
    alive = numpy.concatenate(
        [numpy.ones((episodes, 1), bool), actions[:, :-1].cumprod(1).astype(bool)], axis=1
    )
    ratios = numpy.where(actions == 1, 1.5, 0.5)
    noise = 0.3 * random.standard_normal(actions.shape)
    values = numpy.array([0.75 + 0.5625 + 0.421875, 0.75 + 0.5625, 0.75])
    following = numpy.append(values[1:], 0.0)
    choices = EpisodeChoices(
        rewards=alive * (actions + noise),
        log_ratios=alive * numpy.log(ratios),
        steps=int(alive.sum()),
        q_logged=alive * actions * (1 + following),
        q_policy=alive * values,
    )
    return choices, float(values[0])


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """60 logs of 400 episodes: 95 % intervals."""
    held: dict[str, int] = {}
    for repetition in range(60):
        choices, truth = walks(400, repetition)
        found = judge(choices, samples=200, seed=repetition).estimates
        for name, one in found.items():
            held[name] = held.get(name, 0) + (one.low <= truth <= one.high)
    # The direct method has the right values, and no variance.
    assert held.pop("dm") == 60
    assert len(held) == 6
    # At 95 %, fewer than 52 of 60 have a probability of 0.3 %.
    assert min(held.values()) >= 52, held
