"""`LinearBandit-v0`: its contexts, its noise, and how its parameters drift."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplug.bandits import LinearBandit, Rounds
from rlplug.bandits.problem import DriftingParameters, unit_rows


def drawn(steps: int, n: int, **options: Any) -> Rounds:
    source = LinearBandit(**options).start(seed=3)
    return source.draw(numpy.random.default_rng(4), steps, n)


@settings(max_examples=25)
@given(num_arms=st.integers(2, 20), context_dim=st.integers(2, 30), drift=st.sampled_from([0, 0.1]))
def test_contexts_have_norm_1_and_no_arm_pays_more_than_the_best(
    num_arms: int, context_dim: int, drift: float
) -> None:
    rounds = drawn(5, 7, num_arms=num_arms, context_dim=context_dim, drift=drift)
    assert rounds.observations.shape == (5, 7, context_dim)
    assert numpy.linalg.norm(rounds.observations, axis=2) == pytest.approx(numpy.ones((5, 7)))
    assert rounds.expected.shape == (5, 7, num_arms)
    assert (rounds.expected <= rounds.best[..., None]).all()
    assert (abs(rounds.expected) <= 1.0 + 1e-12).all()


def test_an_arm_pays_the_product_of_its_parameters_and_the_context() -> None:
    rounds = drawn(1, 50, num_arms=3, context_dim=4)
    theta = DriftingParameters(3, 4, drift=0.0, seed=3).rows
    assert rounds.expected[0] == pytest.approx(rounds.observations[0] @ theta.T)


def test_noise_has_the_deviation_that_was_asked_for() -> None:
    rounds = drawn(100, 100, noise=0.5)
    noise = (rounds.rewards - rounds.expected)[:, :, 0]
    assert noise.mean() == pytest.approx(0.0, abs=0.02)
    assert noise.std() == pytest.approx(0.5, abs=0.02)
    quiet = drawn(100, 100, noise=0.0)
    assert numpy.array_equal(quiet.rewards, quiet.expected)


def test_unit_rows_of_3_4_are_six_tenths_and_eight_tenths() -> None:
    assert unit_rows(numpy.array([[3.0, 4.0], [0.0, -2.0]])).tolist() == [[0.6, 0.8], [0.0, -1.0]]


def test_parameters_without_drift_stay_where_they_are() -> None:
    hidden = DriftingParameters(3, 4, drift=0.0, seed=1)
    before = hidden.rows.copy()
    hidden.products(numpy.ones((5, 6, 4)))
    assert numpy.array_equal(hidden.rows, before)


def test_drifting_parameters_stay_on_the_sphere_and_move_by_about_the_drift() -> None:
    hidden = DriftingParameters(2000, 50, drift=0.01, seed=1)
    before = hidden.rows.copy()
    hidden.products(numpy.zeros((1, 1, 50)))
    assert numpy.linalg.norm(hidden.rows, axis=1) == pytest.approx(numpy.ones(2000))
    moved = numpy.linalg.norm(hidden.rows - before, axis=1).mean()
    assert moved == pytest.approx(0.01, rel=0.03)


def test_many_environments_drift_as_far_per_step_as_one_does() -> None:
    """100 steps of one environment and 1 step of 100 are 100 steps both."""
    distances = []
    for steps, n in ((100, 1), (1, 100)):
        hidden = DriftingParameters(2000, 50, drift=0.01, seed=1)
        before = hidden.rows.copy()
        hidden.products(numpy.zeros((steps, n, 50)))
        distances.append(numpy.linalg.norm(hidden.rows - before, axis=1).mean())
    assert distances[0] == pytest.approx(0.1, rel=0.03)
    assert distances[1] == pytest.approx(0.1, rel=0.03)


def test_drift_is_part_of_the_problem_and_not_of_the_stream() -> None:
    """Whatever is drawn in one call or in two, the parameters pass the same places."""
    contexts = numpy.random.default_rng(0).standard_normal((6, 2, 4))
    whole = DriftingParameters(3, 4, drift=0.1, seed=1).products(contexts)
    parts = DriftingParameters(3, 4, drift=0.1, seed=1)
    halves = [parts.products(contexts[:2]), parts.products(contexts[2:])]
    assert numpy.array_equal(numpy.concatenate(halves), whole)
    still = contexts @ DriftingParameters(3, 4, drift=0.0, seed=1).rows.T
    assert whole[0] == pytest.approx(still[0])
    assert abs(whole[5] - still[5]).max() > 0.01
