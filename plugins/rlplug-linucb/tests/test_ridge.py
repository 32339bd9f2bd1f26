"""Ridge regressions: what is solved follows the exact sums, and both survive being moved."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy
import pytest
import sklearn.linear_model
import torch
from rlplug_linucb import LinUCBConfig
from rlplug_linucb.ridge import Ridge


def learned(rows: int, dim: int, *, scale: float = 0.0, **options: Any) -> Ridge:
    """A single regression after rows whose features differ by up to 10^scale in size."""
    ridge = Ridge(1, dim, LinUCBConfig(**options))
    random = numpy.random.default_rng(0)
    for row in random.standard_normal((rows, dim)) * numpy.logspace(0, scale, dim):
        ridge.learn(0, row, numpy.array([row.sum()]))
    return ridge


def test_coefficients_equal_scikit_learns_ridge() -> None:
    random = numpy.random.default_rng(1)
    x, y, weight = random.standard_normal((40, 5)), random.standard_normal(40), random.random(40)
    ridge = Ridge(1, 5, LinUCBConfig(l2_lambda=2.5))
    for row, label, w in zip(x, y, weight, strict=True):
        ridge.learn(0, row, label[None], w)
    theirs = sklearn.linear_model.Ridge(alpha=2.5, fit_intercept=False)
    theirs.fit(x, y, sample_weight=weight)
    assert ridge.theta[0, 0] == pytest.approx(theirs.coef_, abs=1e-12)


@pytest.mark.parametrize("l2_lambda", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("scale", [0.0, 2.0, 4.0])
def test_variances_stay_within_a_hundred_millionth_of_the_exact_ones(
    l2_lambda: float, scale: float
) -> None:
    ridge = learned(3_000, 12, scale=scale, l2_lambda=l2_lambda)
    rows = numpy.random.default_rng(2).standard_normal((50, 12)) * numpy.logspace(0, scale, 12)
    matrix = ridge.A[0] + l2_lambda * numpy.eye(12)
    # Scaling rows and columns to unit diagonal keeps the reference accurate.
    size = numpy.sqrt(matrix.diagonal())
    inverse = numpy.linalg.inv(matrix / numpy.outer(size, size)) / numpy.outer(size, size)
    means, variances = ridge.predict_all(rows)
    expected = numpy.einsum("nd,de,ne->n", rows, inverse, rows)
    assert variances[:, 0] == pytest.approx(expected, rel=1e-8)
    theta = inverse @ ridge.b[0, 0]
    assert means[:, 0, 0] == pytest.approx(rows @ theta, rel=1e-8, abs=1e-8)


def test_inverses_are_solved_anew_as_often_as_refresh_every_says() -> None:
    ridge = learned(30, 3, refresh_every=10)
    ridge.predict_all(numpy.ones((1, 3)))
    assert ridge.solutions.tolist() == [1, 0]
    assert ridge.age.tolist() == [0]


def test_without_a_penalty_directions_without_data_have_neither_reward_nor_variance() -> None:
    ridge = Ridge(1, 3, LinUCBConfig(l2_lambda=0.0))
    for _ in range(4):
        ridge.learn(0, numpy.array([2.0, 0.0, 0.0]), numpy.array([6.0]))
    means, variances = ridge.predict_all(numpy.eye(3))
    assert means[:, 0, 0] == pytest.approx([3.0, 0.0, 0.0])
    assert variances[:, 0] == pytest.approx([1 / 16, 0.0, 0.0])
    assert ridge.solutions.tolist() == [1, 1]


def continued(ridge: Ridge) -> list[float]:
    """What is predicted after one more row: it shows whether arrays still share memory."""
    ridge.learn(0, numpy.array([1.0, 0.0, 2.0]), numpy.array([3.0]))
    means, variances = ridge.predict_all(numpy.eye(3))
    return [*means[:, 0, 0].tolist(), *variances[:, 0].tolist()]


def test_copies_and_loaded_states_learn_on_exactly_where_the_original_stood() -> None:
    ridge, file = learned(70, 3), io.BytesIO()
    torch.save(ridge.state_dict(), file)
    file.seek(0)
    fresh = [Ridge(1, 3, LinUCBConfig()) for _ in range(2)]
    fresh[0].load_state_dict(torch.load(file, weights_only=True))
    fresh[1].load_state_dict(copy.deepcopy(ridge.state_dict()), assign=True)
    copies = [copy.deepcopy(ridge), pickle.loads(pickle.dumps(ridge)), *fresh]
    expected = continued(ridge)
    for other in copies:
        assert continued(other) == expected
        for name, buffer in other.state_dict().items():
            assert torch.equal(buffer, ridge.state_dict()[name]), name
