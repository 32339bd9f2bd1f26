"""Off-policy estimators and judgements: numbers by hand, identities, intervals, models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplug import ope
from rlplug.config.sections import DataSection
from rlplug.logs import Log
from rlplug.ope import (
    Choices,
    EpisodeChoices,
    RewardModel,
    bootstrap,
    cumulative_log_weights,
    dm,
    dr,
    effective_sample_size,
    fit_q,
    importance_weights,
    ips,
    judge,
    per_decision_is,
    per_decision_wis,
    replay,
    sequential_dr,
    sndr,
    snips,
    state_features,
    switch_dr,
    trajectory_is,
    trajectory_wis,
    weighted_dr,
)
from rlplug.ope.bootstrap import interval
from rlplug.ope.reward_model import features

# -- ope judge -------------------------------------------------------------------------------------


REWARDS = numpy.array([1.0, 0.0, 2.0, 4.0])
PROPENSITIES = numpy.array([0.5, 0.25, 0.5, 0.05])
CHOICES = Choices(
    rewards=REWARDS,
    propensities=PROPENSITIES,
    probabilities=numpy.array([1.0, 0.0, 1.0, 1.0]),
    q_logged=numpy.array([0.5, 0.5, 2.0, 3.0]),
    q_policy=numpy.array([0.5, 1.0, 2.0, 3.0]),
    mrdr_q_logged=numpy.array([0.0, 1.0, 1.0, 4.0]),
    mrdr_q_policy=numpy.array([1.0, 1.0, 1.0, 2.0]),
    unseen=numpy.zeros(4),
)
"""Weights are 2, 0, 2 and 20."""

EPISODES = EpisodeChoices(
    rewards=numpy.array([[1.0, 2.0], [3.0, 0.0]]),
    log_ratios=numpy.log([[2.0, 1.5], [0.5, 1.0]]),
    steps=3,
    gamma=0.5,
    q_logged=numpy.array([[1.0, 1.0], [2.0, 0.0]]),
    q_policy=numpy.array([[2.0, 1.0], [1.0, 0.0]]),
)
"""Weights are 2, 3 and 1/2, returns 2 and 3."""


# -- intervals -------------------------------------------------------------------------------------


def test_samples_without_an_estimate_are_left_out_of_the_interval() -> None:
    found = interval(numpy.array([1.0, math.nan, 2.0, math.inf, 4.0]))
    assert (found.value, found.standard_error) == (1.0, 1.0)
    assert (found.low, found.high) == pytest.approx((2.05, 3.95))
    for values in ([math.nan, 1.0], [math.inf, 1.0], [1.0, math.nan], [1.0]):
        found = interval(numpy.array(values))
        assert found.value == pytest.approx(values[0], nan_ok=True)
        assert numpy.isnan([found.low, found.high, found.standard_error]).all()


# -- bootstraps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [8192, 8193, 20_000])
@pytest.mark.parametrize("weighted", [False, True])
def test_estimates_of_any_number_of_rows_are_those_of_all_of_them(n: int, weighted: bool) -> None:
    random = numpy.random.default_rng(n)
    rewards, weights = random.standard_normal(n) + 1, random.uniform(0.5, 2, n)
    counts = random.integers(0, 3, n).astype(float)
    terms = {"ips": ips(rewards, weights), "snips": snips(rewards, weights)}
    drawn = bootstrap(terms, samples=40, seed=1, weights=counts if weighted else None)
    stand_for = counts if weighted else numpy.ones(n)
    ipw = (stand_for * weights * rewards).sum() / stand_for.sum()
    normalized = (stand_for * weights * rewards).sum() / (stand_for * weights).sum()
    assert (drawn["ips"][0], drawn["snips"][0]) == pytest.approx((ipw, normalized))
    for name, value in (("ips", ipw), ("snips", normalized)):
        # A deviation of about 1.5 over the root of n, of each of 40 samples.
        near = 5 * 3 / math.sqrt(n)
        assert abs(drawn[name][1:] - value).max() < near
        assert 0.2 * near / 5 < drawn[name][1:].std() < near / 5


def test_many_rows_count_as_often_as_poisson_variables_say() -> None:
    """Of mean and variance 1; the share of rows that count k times is exp(-1) / k!."""
    n = 8193
    each = [n * numpy.eye(1, n, row)[0] for row in range(0, n, 80)]
    # Of a row of n and others of 0, samples are the count of that row over the mean count.
    drawn = bootstrap({f"{row}": dm(one) for row, one in enumerate(each)}, samples=200)
    values = numpy.stack([drawn[f"{row}"] for row in range(len(each))])
    assert values[:, 0] == pytest.approx(1.0)
    counted = numpy.round(values[:, 1:]).astype(int).reshape(-1)
    assert abs(values[:, 1:].reshape(-1) - counted).max() < 0.5
    shares = numpy.bincount(counted, minlength=9) / len(counted)
    expected = [math.exp(-1) / math.factorial(k) for k in range(9)]
    assert shares[:9] == pytest.approx(expected, abs=0.015)


# -- judgements ------------------------------------------------------------------------------------


def values_of(terms: Any) -> dict[str, float]:
    return {name: one.value for name, one in terms.items()}


def test_all_estimates_of_choices_by_hand() -> None:
    expected = {
        "replay": 7 / 3,
        "dm": 6.5 / 4,
        # 2·1, 0, 2·2 and 20·4; weights sum to 24.
        "ips": 86 / 4,
        "snips": 86 / 24,
        # Corrections 2·0.5, 0, 0 and 20·1.
        "dr": (6.5 + 21) / 4,
        "sndr": 6.5 / 4 + 21 / 24,
        # Of the weights, 20 is above 10.
        "switch_dr": (6.5 + 1) / 4,
        # Corrections 2·1, 0, 2·1 and 0.
        "mrdr": (5 + 4) / 4,
        "snmrdr": 5 / 4 + 4 / 24,
    }
    assert values_of(CHOICES.terms()) == pytest.approx(expected)
    clipped = values_of(CHOICES.terms(max_weight=3.0))
    assert clipped["ips"] == pytest.approx((2 + 4 + 12) / 4)
    assert clipped["snips"] == pytest.approx(18 / 7)
    assert values_of(CHOICES.terms(switch=20.0))["switch_dr"] == pytest.approx(expected["dr"])
    # Rows that the policy would have chosen with a probability below 1 are none of its choices.
    unsure = attrs.evolve(CHOICES, probabilities=numpy.array([1.0, 0.0, 0.999, 1 - 1e-12]))
    assert values_of(unsure.terms())["replay"] == pytest.approx(5 / 2)


def test_a_judgement_of_choices() -> None:
    told = judge(CHOICES, samples=50, seed=3)
    drawn = bootstrap({**CHOICES.terms(), "logged": dm(REWARDS)}, samples=50, seed=3)
    for name, one in told.estimates.items():
        assert told.samples[name] == pytest.approx(drawn[name], nan_ok=True), name
        assert one == interval(drawn[name])
    assert set(told.estimates) == set(CHOICES.terms())
    assert told.logged == interval(drawn["logged"])
    assert told.logged.value == 7 / 4
    assert (told.rows, told.steps, told.matches, told.max_weight) == (4, 0, 3, 20.0)
    assert told.effective == pytest.approx(24**2 / 408)
    assert judge(CHOICES, samples=50, seed=3, confidence=0.5).estimates["dm"] == interval(
        drawn["dm"], 0.5
    )
    assert judge(CHOICES).samples["dm"].shape == (201,)
    assert judge(CHOICES).samples["dm"] == pytest.approx(bootstrap(CHOICES.terms())["dm"])
    clipped = judge(CHOICES, samples=5, max_weight=3.0, switch=2.5)
    assert clipped.max_weight == 3.0
    assert clipped.estimates["ips"].value == pytest.approx(18 / 4)
    assert clipped.estimates["switch_dr"].value == pytest.approx(7.5 / 4)
    weighted = attrs.evolve(CHOICES, weights=numpy.array([3.0, 1.0, 1.0, 1.0]))
    assert judge(weighted, samples=5).logged.value == pytest.approx((3 + 0 + 2 + 4) / 6)
    nothing = attrs.evolve(CHOICES, probabilities=numpy.zeros(4))
    assert judge(nothing, samples=5).max_weight == 0.0


def test_all_estimates_of_episodes_by_hand() -> None:
    expected = {
        # 3·2 and ½·3; weights sum to 3.5.
        "trajectory_is": 7.5 / 2,
        "trajectory_wis": 7.5 / 3.5,
        # 2·1 + ½·3·2 and ½·3.
        "per_decision_is": (5 + 1.5) / 2,
        # (2·1 + ½·3) / 2.5 and ½·3·2 / 3.5.
        "per_decision_wis": 1.4 + 3 / 3.5,
        "dm": 1.5,
        # 2 + 2·0 + ½ (2·1 + 3·1) and 1 + ½·1.
        "sequential_dr": (4.5 + 1.5) / 2,
        # 1.5 + ½·1/2.5 + ½ (2·1/2.5) + ½ (3·1/3.5).
        "weighted_dr": 1.5 + 0.2 + 0.4 + 1.5 / 3.5,
    }
    assert values_of(EPISODES.terms()) == pytest.approx(expected)
    clipped = values_of(EPISODES.terms(max_weight=1.0))
    # Weights are 1, 1 and ½.
    assert clipped["trajectory_is"] == pytest.approx((2 + 1.5) / 2)
    assert clipped["per_decision_wis"] == pytest.approx(2.5 / 1.5 + 1 / 1.5)
    for without in (attrs.evolve(EPISODES, q_logged=None), attrs.evolve(EPISODES, q_policy=None)):
        assert set(values_of(without.terms())) == set(list(expected)[:4])
    assert EpisodeChoices(rewards=REWARDS, log_ratios=REWARDS, steps=1).gamma == 1.0


def test_weights_of_episodes_stop_before_they_are_infinite() -> None:
    log_weights = cumulative_log_weights(numpy.array([[400.0, 400.0, -200.0]]))
    assert log_weights.tolist() == [[400.0, 700.0, 600.0]]
    rewards = numpy.array([[0.0, 0.0, 1.0]])
    assert numpy.isfinite(trajectory_is(rewards, log_weights).value)
    assert effective_sample_size(numpy.zeros(3)) == 0.0
    assert effective_sample_size(numpy.array([0.0, 2.0, 2.0])) == 2.0


def uniform(n: int, **values: Any) -> Choices:
    """Rows of one arm of two, logged with probability 1/2, half of which the policy chooses."""
    chosen = (numpy.arange(n) % 2).astype(float)
    half = numpy.full(n, 0.5)
    made = Choices(
        rewards=chosen,
        propensities=half,
        probabilities=chosen,
        q_logged=half,
        q_policy=half,
        mrdr_q_logged=half,
        mrdr_q_policy=half,
        unseen=numpy.zeros(n),
    )
    return attrs.evolve(made, **values)


def test_warnings_begin_where_estimates_may_be_wrong() -> None:
    assert judge(uniform(200), samples=2).warnings == ()
    # 99 rows of equal weight say as much as 99 rows.
    (few,) = judge(uniform(198), samples=2).warnings
    assert few == (
        "the log says as much about the policy as 99 rows of its own: intervals are not to be "
        "trusted."
    )
    least = numpy.full(200, 9e-7)
    assert judge(uniform(200, unseen=least), samples=2).warnings == ()
    (unseen,) = judge(uniform(200, unseen=numpy.full(200, 0.015)), samples=2).warnings
    assert unseen == (
        "1.5% of the policy's choices are arms that the log never could have chosen: estimates "
        "leave those rewards out, or extrapolate."
    )


def test_weights_whose_mean_is_not_1_are_told() -> None:
    """Weights of 2 and 0: their mean misses 1 by 3 or by 5 standard errors."""
    for rows, told in ((800, False), (2400, True)):
        chosen = (numpy.arange(rows) % 20 < 9).astype(float)
        mean, error = 0.9, 2 * math.sqrt(0.45 * 0.55) / math.sqrt(rows)
        assert (abs(mean - 1) > 4 * error) == told
        choices = uniform(rows, probabilities=chosen)
        warnings = judge(choices, samples=2).warnings
        expected = (
            f"importance weights have the mean 0.900 ± {error:.3f} instead of 1: support is "
            "missing, or the propensities are not those that were acted on."
        )
        assert warnings == ((expected,) if told else ())
        # Clipped ones have another mean.
        for most in (1.0, 5.0):
            assert judge(choices, samples=2, max_weight=most).warnings == ()
    # Rounding is no reason.
    assert judge(uniform(200, probabilities=numpy.full(200, 0.5)), samples=2).warnings == ()


def test_episodes_are_called_episodes() -> None:
    few = judge(EPISODES, samples=2).warnings
    assert few[0].startswith("the log says as much about the policy as 1 episodes of its own")
    # Weights of 3 and ½ have the mean 1.75 ± 0.88, those of 3 and 3 the mean 3.
    assert len(few) == 1
    same = attrs.evolve(EPISODES, log_ratios=numpy.log([[2.0, 1.5], [2.0, 1.5]]))
    assert "have the mean 3.000 ± 0.000 instead of 1" in judge(same, samples=2).warnings[1]
    for most in (1.0, 2.0):
        assert len(judge(same, samples=2, max_weight=most).warnings) == 1
    never = attrs.evolve(EPISODES, log_ratios=numpy.full((2, 2), -numpy.inf))
    told = judge(never, samples=2)
    assert told.warnings == (
        "the policy would have left every one of 2 logged episodes before its end: estimates are "
        "of first steps, or extrapolate; intervals are not to be trusted.",
    )
    rows = attrs.evolve(CHOICES, probabilities=numpy.zeros(4))
    assert judge(rows, samples=2).warnings == (
        "the policy that logged never chose what this policy wants, in none of 4 rows: only the "
        "direct method has an estimate, and it extrapolates.",
    )


# -- models ----------------------------------------------------------------------------------------


def test_features_of_arms_by_hand() -> None:
    """The constant, the context, the arm's features, and products of the two."""
    context, arms = numpy.array([[2.0, 3.0], [4.0, 5.0]]), numpy.array([1, 0])
    featured = numpy.array([[[1.0], [10.0]], [[100.0], [1000.0]]])
    assert features({}, arms).tolist() == [[1.0], [1.0]]
    assert features({"context": context}, arms).tolist() == [[1.0, 2.0, 3.0], [1.0, 4.0, 5.0]]
    assert features({"arms": featured}, arms).tolist() == [[1.0, 10.0], [1.0, 100.0]]
    both = {"context": context, "arms": featured}
    assert features(both, arms).tolist() == [
        [1.0, 2.0, 3.0, 10.0, 20.0, 30.0],
        [1.0, 4.0, 5.0, 100.0, 400.0, 500.0],
    ]
    # Expected features of a policy; what absent arms hold is nothing.
    shares = numpy.array([[0.5, 0.5], [1.0, 0.0]])
    featured[1, 1] = numpy.nan
    assert features({"arms": featured}, shares).tolist() == [[1.0, 5.5], [1.0, 100.0]]


@pytest.mark.parametrize("l2", [1.0, 10.0])
def test_coefficients_are_shrunk_and_the_constant_is_not(l2: float) -> None:
    """Contexts of mean 0: the constant is the mean reward, the slope Σ x r / (Σ x² + l2)."""
    context = numpy.array([[-1.0], [1.0], [-2.0], [2.0]])
    rewards = 5.0 + 3.0 * context[:, 0]
    folds = numpy.zeros(4, int)
    options = {} if l2 == 1.0 else {"l2": l2}
    model = RewardModel(1, featured=False, folds=1, **options)
    model.add({"context": context}, folds, rewards, folds)
    found = model.predict({"context": context}, folds, folds)
    assert found == pytest.approx(5.0 + context[:, 0] * 30 / (10 + l2), rel=1e-5)


@pytest.mark.parametrize("featured", [False, True])
@pytest.mark.parametrize("folds", [1, 2, 3])
def test_influences_are_those_of_weights_on_the_predictions(featured: bool, folds: int) -> None:
    """Of one model of all rows, and of models of the other folds; policies' rows have weights."""
    random = numpy.random.default_rng(1)
    n = 30
    columns: dict[str, Any] = {"context": random.standard_normal((n, 1))}
    if featured:
        columns["arms"] = random.standard_normal((n, 3, 2))
    arms, shares = random.integers(0, 3, n), random.dirichlet([1.0] * 3, n)
    rewards, fold = random.standard_normal(n), numpy.arange(n) % folds
    rows = random.uniform(0.5, 2.0, n)

    def model_of(weights: Any) -> RewardModel:
        model = RewardModel(3, featured=featured, folds=folds)
        model.add(columns, arms, rewards, fold, weights)
        return model

    def total(weights: Any) -> float:
        return float(rows @ model_of(weights).predict_policy(columns, shares, fold))

    model = model_of(numpy.ones(n))
    # In two parts, as a log is read.
    for part in (slice(0, 12), slice(12, n)):
        seen = {name: column[part] for name, column in columns.items()}
        model.add_policy(seen, shares[part], fold[part], rows[part])
    influence = model.influence(columns, arms, rewards, fold)
    for row in (0, 1, 14, 29):
        weights = numpy.ones(n)
        weights[row] += 1e-5
        moved = (total(weights) - total(numpy.ones(n))) / 1e-5
        assert influence[row] == pytest.approx(moved, rel=1e-3, abs=1e-6)


def test_numbers_of_a_state_are_standardized_and_multiplied() -> None:
    """Two numbers of which one does not vary, and the time: x, t, x², x t and t²."""
    observations = numpy.array([[1.0, 7.0], [2.0, 7.0]])
    times = numpy.array([0.5, 1.0])
    found = state_features(observations, times, 100)
    assert found is not None
    assert found == pytest.approx(
        numpy.array([[1.0, -1.0, 0.5, 1.0, -0.5, 0.25], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    )
    # Six features, three without products; there is no model of fewer.
    for most, size in ((6, 6), (5, 3), (3, 3)):
        found = state_features(observations, times, most)
        assert found is not None
        assert found.shape == (2, size)
    assert state_features(observations, times, 2) is None
    # 22 numbers and the time: 1 + 23 + 276 features are as many as there may be.
    random = numpy.random.default_rng(0)
    for numbers, size in ((22, 300), (23, 25)):
        found = state_features(random.standard_normal((4, numbers)), numpy.ones(4), 2000)
        assert found is not None
        assert found.shape == (4, size)


@pytest.mark.parametrize("gamma", [None, 0.5])
def test_a_fitted_q_solves_its_equation_with_the_rows_of_other_folds(gamma: float | None) -> None:
    """Compared with the equation, written row by row."""
    random = numpy.random.default_rng(3)
    rows, size = 24, 3
    x = random.standard_normal((rows, size))
    actions, rewards = random.integers(0, 2, rows), random.standard_normal(rows)
    shares = random.dirichlet([1.0, 1.0], rows)
    ended = numpy.arange(rows) % 4 == 3
    folds = numpy.arange(rows) // 4 % 3
    options: dict[str, Any] = {} if gamma is None else {"gamma": gamma, "l2": 0.25}
    discount, l2 = (1.0, 1.0) if gamma is None else (gamma, 0.25)
    q_logged, q_policy = fit_q(x, actions, rewards, ended, shares, folds, **options)
    for fold in range(3):
        left, right = l2 * numpy.eye(2 * size), numpy.zeros(2 * size)
        for row in numpy.flatnonzero(folds != fold):
            here = numpy.kron(numpy.eye(2)[actions[row]], x[row])
            after = numpy.zeros(2 * size)
            if not ended[row]:
                after = numpy.kron(shares[row + 1], x[row + 1])
            left += numpy.outer(here, here - discount * after)
            right += here * rewards[row]
        theta = numpy.linalg.solve(left, right)
        for row in numpy.flatnonzero(folds == fold):
            logged = numpy.kron(numpy.eye(2)[actions[row]], x[row]) @ theta
            assert q_logged[row] == pytest.approx(logged)
            assert q_policy[row] == pytest.approx(numpy.kron(shares[row], x[row]) @ theta)
    # With one fold, rows are predicted by the model that they made.
    q_logged, _ = fit_q(x, actions, rewards, ended, shares, 0 * folds, l2=1e-9, gamma=0.0)
    for action in (0, 1):
        there = actions == action
        theta = numpy.linalg.lstsq(x[there], rewards[there], rcond=None)[0]
        assert q_logged[there] == pytest.approx(x[there] @ theta)


def test_a_fitted_q_of_many_rows_is_that_of_all_of_them() -> None:
    """Two states with rewards 1 and 2 by turns, 10 000 rows: parts are joined without a gap."""
    rows = 10_000
    states = numpy.arange(rows) % 2
    q_logged, q_policy = fit_q(
        numpy.eye(2)[states],
        numpy.zeros(rows, int),
        numpy.where(states == 0, 1.0, 2.0),
        states == 1,
        numpy.ones((rows, 1)),
        numpy.zeros(rows, int),
        l2=1e-9,
    )
    assert q_logged == pytest.approx(numpy.where(states == 0, 3.0, 2.0))
    assert q_policy == pytest.approx(q_logged)


# -- ope -------------------------------------------------------------------------------------------


UNEVEN = numpy.array([0.5, 0.25, 0.5, 0.2])
MATCHES = numpy.array([True, False, True, True])
WEIGHTS = importance_weights(MATCHES.astype(float), UNEVEN)
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


# -- ope episodes ----------------------------------------------------------------------------------


TWO_EPISODES = numpy.array([[1.0, 2.0], [3.0, 0.0]])
"""Two episodes, of two steps and of one; gamma is 1/2."""
LOG_RATIOS = numpy.log([[2.0, 0.5], [0.5, 1.0]])
LOG_WEIGHTS = cumulative_log_weights(LOG_RATIOS)


@given(st.integers(1, 12), st.integers(1, 5), st.floats(0.1, 1.0), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_estimators_agree_where_theory_says_so_of_episodes(
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
    given = TWO_EPISODES, LOG_WEIGHTS
    tiny = TWO_EPISODES, LOG_WEIGHTS - 2000.0
    for estimator in (trajectory_wis, per_decision_wis):
        assert estimator(*tiny).value == pytest.approx(estimator(*given).value)
    assert trajectory_is(*tiny).value == 0


def test_a_bootstrap_sample_of_quotients_per_step_is_that_of_its_episodes() -> None:
    terms = {"wis": per_decision_wis(TWO_EPISODES, LOG_WEIGHTS), "plain": dm(TWO_EPISODES[:, 0])}
    drawn = bootstrap(terms, samples=20, seed=3)
    # Two episodes: drawn are both, or one of them twice; the plain mean says which.
    alone = [per_decision_wis(TWO_EPISODES[[row]], LOG_WEIGHTS[[row]]).value for row in (0, 1)]
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


def test_intervals_hold_the_truth_as_often_as_they_say_of_episodes() -> None:
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


# -- ope open bandit -------------------------------------------------------------------------------


@pytest.mark.parametrize("behavior", ["random", "bts"])
def test_estimates_are_those_of_open_bandit_pipeline(behavior: str) -> None:
    obp = pytest.importorskip("obp", reason="the test extra installs it")
    from obp import ope as theirs

    folder = Path(obp.__file__).parent / "dataset" / "obd" / behavior / "all"
    rows = Log.open(DataSection(files=(str(folder),), format="obd")).whole()
    n, arms, random = len(rows), 80, numpy.random.default_rng(0)
    # Half of the users are shown arm 5, the others arms by a distribution that prefers some.
    policy = numpy.where(
        rows["context"][:, 1:2] > 0, numpy.eye(arms)[5], random.dirichlet(numpy.ones(arms))
    )
    q, robust = random.uniform(0, 0.02, (2, n, arms))
    r, actions = rows["reward"], rows["action"]
    every = numpy.arange(n)
    w = ope.importance_weights(policy[every, actions], rows["propensity"])
    model = q[every, actions], (policy * q).sum(1)
    mine = [
        (theirs.ReplayMethod(), ope.replay(r, policy[every, actions] == 1)),
        (theirs.DirectMethod(), ope.dm(model[1])),
        (theirs.InverseProbabilityWeighting(), ope.ips(r, w)),
        (theirs.SelfNormalizedInverseProbabilityWeighting(), ope.snips(r, w)),
        (theirs.DoublyRobust(), ope.dr(r, w, *model)),
        (theirs.SelfNormalizedDoublyRobust(), ope.sndr(r, w, *model)),
        (theirs.SwitchDoublyRobust(tau=10.0), ope.switch_dr(r, w, *model, threshold=10.0)),
    ]
    given: dict[str, Any] = {
        "reward": r,
        "action": actions,
        "pscore": rows["propensity"],
        "position": numpy.zeros(n, int),
        "action_dist": policy[:, :, None],
        "estimated_rewards_by_reg_model": q[:, :, None],
    }
    for estimator, terms in mine:
        found = estimator.estimate_policy_value(**given)
        assert terms.value == pytest.approx(found, abs=1e-6, rel=1e-6), type(estimator).__name__
    # MRDR is DR with a model that was fitted for it.
    given["estimated_rewards_by_reg_model"] = robust[:, :, None]
    mrdr = ope.dr(r, w, robust[every, actions], (policy * robust).sum(1)).value
    assert mrdr == pytest.approx(theirs.DoublyRobust().estimate_policy_value(**given), abs=1e-6)
