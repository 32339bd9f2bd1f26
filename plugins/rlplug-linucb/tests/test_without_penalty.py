"""Without a penalty a hybrid model is least squares by the pseudo-inverse of its whole design."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest
import torch
from rlplug_linucb import Layout, LinTSConfig, LinTSModule, LinUCBConfig, LinUCBModule
from rlplug_linucb.linucb import RidgeRegressions

from rlplug import ActInput

FIXED = Layout(num_arms=3, context_dim=2)
FEATURED = Layout(num_arms=3, context_dim=2, arm_dim=2)
LAYOUTS = [FIXED, FEATURED]


def hybrid(layout: Layout = FIXED, **options: Any) -> LinUCBModule:
    return LinUCBModule(layout, LinUCBConfig(model="hybrid", l2_lambda=0.0, alpha=1.0, **options))


def seen(layout: Layout, random: numpy.random.Generator, count: int) -> dict[str, Any]:
    parts = {"context": random.standard_normal((count, 2))}
    if layout.arm_dim:
        parts["arms"] = random.standard_normal((count, 3, 2))
    return parts


def design(layout: Layout, observations: dict[str, Any], arm: int) -> numpy.ndarray:
    """The rows [z, e_arm ⊗ x] of one arm; z is x, or the arm's features and their products."""
    x = observations["context"]
    z = x
    if layout.arm_dim:
        features = observations["arms"][:, arm]
        products = (x[:, :, None] * features[:, None, :]).reshape(len(x), -1)
        z = numpy.concatenate([features, products], 1)
    own = numpy.zeros((len(x), layout.num_arms, 2))
    own[:, arm] = x
    return numpy.concatenate([z, own.reshape(len(x), -1)], 1)


def rows_of(layout: Layout, observations: dict[str, Any], arms: Any) -> numpy.ndarray:
    every = [design(layout, observations, arm) for arm in range(layout.num_arms)]
    return numpy.stack(every)[arms, range(len(arms))]


@pytest.mark.parametrize("on_numpy", [True, False])
@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["fixed", "featured"])
@pytest.mark.parametrize("count", [1, 4, 30])
@pytest.mark.parametrize("seed", range(5))
def test_sigma_and_coefficients_are_those_of_the_pseudo_inverse_of_the_whole_design(
    seed: int,
    count: int,
    layout: Layout,
    one_by_one: bool,
    on_numpy: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not on_numpy:
        monkeypatch.setattr(RidgeRegressions, "numpy_devices", frozenset())
    one, random = hybrid(layout), numpy.random.default_rng(seed)
    observations, arms = seen(layout, random, count), random.integers(3, size=count)
    rewards = random.standard_normal(count)
    for start in range(count) if one_by_one else [0]:
        part = slice(start, start + 1) if one_by_one else slice(None)
        picked = {name: values[part] for name, values in observations.items()}
        one.update(picked, arms[part], rewards[part])
    X = rows_of(layout, observations, arms)
    whole = numpy.linalg.pinv(X)
    covariance, theta = whole @ whole.T, whole @ rewards
    probe = seen(layout, random, 5)
    rows = [design(layout, probe, arm) for arm in range(3)]
    expected_sigma = numpy.sqrt([((each @ covariance) * each).sum(1) for each in rows]).T
    expected_label = (numpy.array(rows) @ theta).T
    scores = one.score(probe)
    assert scores.pred_sigma == pytest.approx(expected_sigma, rel=1e-6, abs=1e-6)
    assert scores.pred_label == pytest.approx(expected_label, rel=1e-6, abs=1e-6)
    shared, width = one.shared_estimates(), X.shape[1] - 6
    assert shared is not None
    assert numpy.asarray(shared.theta) == pytest.approx(theta[:width], rel=1e-6, abs=1e-6)
    assert numpy.asarray(shared.A_inv) == pytest.approx(
        covariance[:width, :width], rel=1e-6, abs=1e-6
    )
    assert numpy.asarray(one.theta).ravel() == pytest.approx(theta[width:], rel=1e-6, abs=1e-6)
    for arm in range(3):
        own = X[:, width + 2 * arm : width + 2 * arm + 2]
        assert numpy.asarray(one.A_inv[arm]) == pytest.approx(
            numpy.linalg.pinv(own.T @ own, 1e-10, hermitian=True), rel=1e-6
        )
    acted = one.forward_export(
        ActInput({name: torch.from_numpy(values).float() for name, values in probe.items()})
    )
    assert acted.actions.tolist() == scores.pred_label.argmax(1).tolist()


def test_a_direction_of_which_nothing_was_learned_is_certain() -> None:
    one = hybrid()
    one.update(numpy.array([[2.0, 0.0]]), [0], [6.0])
    # The least of β + θ_0 = 3: both are 1.5, so that the other arms are predicted 1.5 x.
    scores = one.score(numpy.array([[1.0, 0.0], [0.0, 1.0]]))
    assert scores.pred_label == pytest.approx(numpy.array([[3.0, 1.5, 1.5], [0.0, 0.0, 0.0]]))
    assert scores.pred_sigma == pytest.approx(numpy.array([[0.5, 0.25, 0.25], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["fixed", "featured"])
@pytest.mark.parametrize("count", [4, 30])
def test_draws_have_the_mean_and_the_deviation_that_are_told_with_them(
    layout: Layout, count: int
) -> None:
    one = LinTSModule(layout, LinTSConfig(model="hybrid", l2_lambda=0.0, v=0.5))
    random = numpy.random.default_rng(3)
    observations, arms = seen(layout, random, count), random.integers(3, size=count)
    one.update(observations, arms, random.standard_normal(count))
    probe = seen(layout, random, 1)
    many = {name: numpy.repeat(values, 20_000, axis=0) for name, values in probe.items()}
    draws = one.score(many, random)
    deviations = draws.sampled - draws.pred_label
    rows = numpy.concatenate([design(layout, probe, arm) for arm in range(3)])
    whole = rows @ numpy.linalg.pinv(rows_of(layout, observations, arms))
    covariance = 0.25 * whole @ whole.T
    # Four standard errors of a covariance from 20,000 draws are 0.04 of the variances.
    assert numpy.cov(deviations.T) == pytest.approx(covariance, abs=0.05 * covariance.max())
    assert draws.pred_sigma[0] == pytest.approx(2 * covariance.diagonal() ** 0.5, abs=1e-6)


def test_arms_known_by_ids_are_predicted_as_arms_known_by_place() -> None:
    layout = Layout(num_arms=2, context_dim=2, max_arms=4)
    one, two = hybrid(layout), hybrid()
    random = numpy.random.default_rng(0)
    context, arms, rewards = random.standard_normal((4, 2)), [0, 1, 1, 0], numpy.arange(4.0)
    ids = numpy.tile([[70, 50]], (4, 1))
    one.update({"context": context, "arm_ids": ids}, arms, rewards)
    two.update(context, arms, rewards)
    # The id 90 was never learned, and neither was arm 2.
    probe = {"context": context, "arm_ids": numpy.array([[50, 90], [70, 50], [90, 70], [90, 50]])}
    of_arms = numpy.array([[1, 2], [0, 1], [2, 0], [2, 1]])
    for by_id, by_place in zip(one.score(probe), two.score(context), strict=True):
        assert by_id == pytest.approx(numpy.take_along_axis(by_place, of_arms, 1), abs=1e-9)
    drawn = LinTSModule(layout, LinTSConfig(model="hybrid", l2_lambda=0.0))
    drawn.update({"context": context, "arm_ids": ids}, arms, rewards)
    sampled = drawn.score({name: each[[0] * 9999] for name, each in probe.items()}, random).sampled
    assert sampled.std(0) == pytest.approx(0.25 * one.score(probe).pred_sigma[0], rel=0.05)


@pytest.mark.parametrize("weight", [1.0, 1e6])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_what_is_left_of_an_arm_that_is_removed_is_no_rounding(others: int, weight: float) -> None:
    random = numpy.random.default_rng(0)
    one, two, context = hybrid(), hybrid(), random.standard_normal((20, 2))
    one.update(context, numpy.ones(20, int), numpy.ones(20), numpy.full(20, weight))
    left = random.standard_normal((others, 2))
    if others:
        one.update(left, numpy.zeros(others, int), numpy.ones(others))
        two.update(left, numpy.zeros(others, int), numpy.ones(others))
    one.remove_arm(1)
    two.remove_arm(1)
    for found, expected in zip(one.score(context), two.score(context), strict=True):
        assert found == pytest.approx(expected, abs=1e-6)


def test_a_copy_and_a_saved_state_predict_the_same() -> None:
    one, random = hybrid(FEATURED), numpy.random.default_rng(0)
    one.update(seen(FEATURED, random, 4), [0, 1, 2, 0], numpy.ones(4))
    probe, loaded = seen(FEATURED, random, 6), hybrid(FEATURED)
    loaded.load_state_dict(one.state_dict())
    expected = one.score(probe).ucb.tolist()
    for other in (copy.deepcopy(one), loaded):
        assert other.score(probe).ucb.tolist() == expected


def test_a_long_run_does_not_take_rounding_for_data() -> None:
    # What all arms share and what each has of its own cannot be told apart: rank 6 of 8.
    one, random = hybrid(), numpy.random.default_rng(0)
    for _ in range(20):
        context = random.standard_normal((5_000, 2)) * [1.0, 100.0]
        one.update(context, random.integers(3, size=5_000), random.standard_normal(5_000))
    assert one.score(numpy.ones((1, 2))).pred_sigma.max() < 0.1
