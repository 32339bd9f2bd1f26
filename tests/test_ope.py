"""Off-policy estimators: numbers to check by hand, identities, intervals and warnings."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplug.ope import (
    Choices,
    RewardModel,
    bootstrap,
    dm,
    dr,
    importance_weights,
    ips,
    judge,
    replay,
    sndr,
    snips,
    switch_dr,
)

REWARDS = numpy.array([1.0, 0.0, 2.0, 4.0])
PROPENSITIES = numpy.array([0.5, 0.25, 0.5, 0.2])
MATCHES = numpy.array([True, False, True, True])
WEIGHTS = importance_weights(MATCHES.astype(float), PROPENSITIES)
Q_LOGGED = numpy.array([0.5, 0.5, 2.0, 3.0])
Q_POLICY = numpy.array([0.5, 1.0, 2.0, 3.0])


arrays = st.lists(st.floats(-10, 10), min_size=3, max_size=20).map(numpy.array)


@given(arrays, st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_estimators_agree_where_theory_says_so(rewards: Any, seed: int) -> None:
    random = numpy.random.default_rng(seed)
    n = len(rewards)
    weights, q = random.uniform(0, 3, n), random.standard_normal(n)
    q_policy, zero = random.standard_normal(n), numpy.zeros(n)
    one = numpy.ones(n)
    # Without a model, DR is IPS; a perfect model leaves DM; the logged policy itself earned r.
    assert dr(rewards, weights, zero, zero).value == pytest.approx(ips(rewards, weights).value)
    assert sndr(rewards, weights, zero, zero).value == pytest.approx(snips(rewards, weights).value)
    assert dr(rewards, weights, rewards, q_policy).value == pytest.approx(dm(q_policy).value)
    assert dr(rewards, one, q, q).value == pytest.approx(rewards.mean())
    assert switch_dr(rewards, weights, q, q_policy, numpy.inf).value == pytest.approx(
        dr(rewards, weights, q, q_policy).value
    )
    assert switch_dr(rewards, weights + 0.1, q, q_policy, 0.0).value == pytest.approx(
        dm(q_policy).value
    )
    # Uniform propensities: replay is SNIPS. SNIPS moves with the rewards, IPS does not.
    matches = random.random(n) < 0.7
    matches[0] = True
    uniform = importance_weights(matches.astype(float), numpy.full(n, 0.25))
    assert replay(rewards, matches).value == pytest.approx(snips(rewards, uniform).value)
    assert snips(rewards + 5, uniform).value == pytest.approx(snips(rewards, uniform).value + 5)


def test_rows_of_weight_two_count_twice() -> None:
    terms = {"snips": snips(REWARDS, WEIGHTS), "dr": dr(REWARDS, WEIGHTS, Q_LOGGED, Q_POLICY)}
    weighted = bootstrap(terms, samples=2, weights=numpy.array([2.0, 1.0, 1.0, 1.0]))
    index = [0, 0, 1, 2, 3]
    parts = [column[index] for column in (REWARDS, WEIGHTS, Q_LOGGED, Q_POLICY)]
    assert weighted["snips"][0] == pytest.approx(snips(*parts[:2]).value)
    assert weighted["dr"][0] == pytest.approx(dr(*parts).value)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """60 logs of 1500 rows: 95 % intervals."""
    held = dict.fromkeys(("ips", "snips", "dr"), 0)
    for repetition in range(60):
        choices, truth = synthetic(1500, repetition)
        found = judge(choices, samples=200, seed=repetition).estimates
        for name in held:
            held[name] += found[name].low <= truth <= found[name].high
    # At 95 %, fewer than 52 of 60 have a probability of 0.3 %.
    assert min(held.values()) >= 52, held


def synthetic(n: int, seed: int) -> tuple[Choices, float]:
    """A log of three arms with propensities of 0.6, 0.3 and 0.1; the policy wants arm x > 0."""
    random = numpy.random.default_rng(seed)
    x = random.standard_normal(n)
    arms = random.choice(3, n, p=[0.6, 0.3, 0.1])
    wanted = (x > 0).astype(int)
    means = 0.5 + 0.3 * (arms == wanted)
    rewards = (random.random(n) < means).astype(float)
    propensities = numpy.array([0.6, 0.3, 0.1])[arms]
    model = 0.6 + 0.1 * (arms == wanted)
    choices = Choices(
        rewards=rewards,
        propensities=propensities,
        probabilities=(arms == wanted).astype(float),
        q_logged=model,
        q_policy=numpy.full(n, 0.7),
        mrdr_q_logged=model,
        mrdr_q_policy=numpy.full(n, 0.7),
        unseen=numpy.zeros(n),
    )
    return choices, 0.8


def test_a_log_without_what_the_policy_wants_has_no_estimate_but_the_model() -> None:
    choices, _ = synthetic(500, 0)
    import attrs

    none = attrs.evolve(choices, probabilities=numpy.zeros(500))
    told = judge(none, samples=20)
    assert told.matches == 0
    assert "never chose what this policy wants, in none of 500 rows" in told.warnings[0]
    assert numpy.isnan([told.estimates[name].value for name in ("replay", "snips", "sndr")]).all()
    assert told.estimates["dm"].value == pytest.approx(0.7)


def test_replay_is_called_biased_where_actions_were_not_logged_uniformly() -> None:
    import attrs

    choices, _ = synthetic(5000, 0)
    (told,) = judge(choices, samples=20).warnings
    assert told == (
        "Replay is biased: the log chose with probabilities of 0.3 to 0.6 what the policy would "
        "have chosen, not uniformly at random."
    )
    third = attrs.evolve(choices, propensities=numpy.full(5000, 1 / 3))
    assert not any("Replay" in one for one in judge(third, samples=20).warnings)
    # It has no estimate of a policy that chooses at random.
    random = attrs.evolve(choices, probabilities=choices.propensities)
    assert judge(random, samples=20).warnings == ()


def test_the_reward_model_is_a_ridge_regression_of_the_other_fold() -> None:
    from sklearn.linear_model import Ridge

    random = numpy.random.default_rng(0)
    context, arms = random.standard_normal((200, 3)), random.integers(0, 2, 200)
    rewards, weights = random.standard_normal(200), random.uniform(0.5, 2, 200)
    folds = numpy.arange(200) % 2
    model = RewardModel(2, featured=False, l2=1.0)
    model.add({"context": context}, arms, rewards, folds, weights)
    predicted = model.predict({"context": context}, arms, folds)
    for fold in (0, 1):
        for arm in (0, 1):
            there = (folds != fold) & (arms == arm)
            ridge = Ridge(alpha=1.0, solver="cholesky")
            ridge.fit(context[there], rewards[there], sample_weight=weights[there])
            mine = (folds == fold) & (arms == arm)
            assert numpy.allclose(predicted[mine], ridge.predict(context[mine]), atol=1e-6)
