"""Off-policy estimators of episodes: numbers to check by hand, identities, a fitted Q."""

from __future__ import annotations

from typing import Any

import attrs
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
    fit_q,
    ips,
    judge,
    per_decision_is,
    per_decision_wis,
    sequential_dr,
    sndr,
    snips,
    state_features,
    trajectory_is,
    trajectory_wis,
    weighted_dr,
)

REWARDS = numpy.array([[1.0, 2.0], [3.0, 0.0]])
"""Two episodes, of two steps and of one; gamma is 1/2."""
LOG_RATIOS = numpy.log([[2.0, 0.5], [0.5, 1.0]])
LOG_WEIGHTS = cumulative_log_weights(LOG_RATIOS)
Q_LOGGED = numpy.array([[1.0, 1.0], [2.0, 0.0]])
Q_POLICY = numpy.array([[2.0, 1.0], [1.0, 0.0]])


def test_estimates_by_hand() -> None:
    assert numpy.exp(LOG_WEIGHTS) == pytest.approx(numpy.array([[2.0, 1.0], [0.5, 0.5]]))
    given = REWARDS, LOG_WEIGHTS
    # Returns are 1 + 2/2 = 2 and 3, final weights 1 and 1/2.
    assert trajectory_is(*given, 0.5).value == pytest.approx((2 + 1.5) / 2)
    assert trajectory_wis(*given, 0.5).value == pytest.approx(3.5 / 1.5)
    # 2·1 + ½·1·2 = 3 and ½·3.
    assert per_decision_is(*given, 0.5).value == pytest.approx((3 + 1.5) / 2)
    # The first steps: (2·1 + ½·3) / 2.5; the second ones: ½ · (1·2 + ½·0) / 1.5.
    assert per_decision_wis(*given, 0.5).value == pytest.approx(1.4 + 2 / 3)
    # 2 + 2·0 + ½ (2·1 + 1·1) and 1 + ½·1.
    both = sequential_dr(*given, Q_LOGGED, Q_POLICY, 0.5)
    assert both.value == pytest.approx((3.5 + 1.5) / 2)
    # Mean V 1.5, (2·0 + ½·1) / 2.5; ½ of 2·1 / 2.5 and of 1·1 / 1.5.
    weighted = weighted_dr(*given, Q_LOGGED, Q_POLICY, 0.5)
    assert weighted.value == pytest.approx(1.5 + 0.2 + 0.4 + 1 / 3)
    clipped = cumulative_log_weights(LOG_RATIOS, maximum=1.5)
    assert numpy.exp(clipped) == pytest.approx(numpy.array([[1.5, 1.0], [0.5, 0.5]]))


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


def test_a_fitted_q_is_the_solution_of_bellmans_equation() -> None:
    """State 0: reward a, then state 1: reward 10 a, then the end; the policy takes 1 in 3 of 4."""
    episodes = 8
    states = numpy.tile([0, 1], episodes)
    actions = numpy.array([a for e in range(episodes) for a in (e % 2, e // 2 % 2)])
    rewards = actions * numpy.where(states == 0, 1.0, 10.0)
    shares = numpy.tile([0.25, 0.75], (2 * episodes, 1))
    q_logged, q_policy = fit_q(
        numpy.eye(2)[states],
        actions,
        rewards,
        states == 1,
        shares,
        numpy.repeat(numpy.arange(episodes) // 4 % 2, 2),
        gamma=0.5,
        l2=1e-9,
    )
    assert q_policy[states == 1] == pytest.approx(7.5)
    assert q_policy[states == 0] == pytest.approx(0.75 + 0.5 * 7.5)
    assert q_logged == pytest.approx(rewards + 0.5 * 7.5 * (states == 0))


def test_features_have_products_where_they_are_few() -> None:
    random = numpy.random.default_rng(0)
    numbers, times = random.standard_normal((10, 3)), numpy.linspace(0, 1, 10)
    numbers[:, 1] = 7.0
    found = state_features(numbers, times, 1000)
    # 1, two numbers that vary and the time, and six products.
    assert found is not None
    assert found.shape == (10, 10)
    plain = state_features(numbers, times, 5)
    assert plain is not None
    assert plain.shape == (10, 4)
    assert state_features(numbers, times, 3) is None


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


def test_what_the_estimates_rest_on_is_told() -> None:
    choices, _ = walks(400, 0)
    told = judge(choices, samples=20)
    assert (told.rows, told.steps, told.warnings) == (400, choices.steps, ())
    never = attrs.evolve(
        choices, log_ratios=numpy.full((400, 3), -numpy.inf), q_logged=None, q_policy=None
    )
    told = judge(never, samples=20)
    assert "every one of 400 logged episodes before its end" in told.warnings[0]
    assert "dm" not in told.estimates
    assert numpy.isnan(told.estimates["trajectory_wis"].value)
    few = attrs.evolve(choices, log_ratios=3 * choices.log_ratios)
    warnings = judge(few, samples=20).warnings
    assert any("episodes of its own: intervals are not to be trusted" in one for one in warnings)
    assert any("instead of 1" in one for one in warnings)
