"""Ridge regressions: what is solved follows the exact sums, and both survive being moved."""

from __future__ import annotations

import copy
import io
import pickle

import numpy
import pytest
import torch
from rlplug_linucb.linucb import RidgeRegressions
from sklearn.linear_model import Ridge


def learned(
    rows: int, dim: int, *, seed: int = 0, scale: float = 0.0, **options: float
) -> RidgeRegressions:
    """A single regression after rows whose features differ by up to 10^scale in size."""
    ridges = RidgeRegressions(1, dim, **options)  # type: ignore[arg-type] # numbers of either kind
    random = numpy.random.default_rng(seed)
    for row in random.standard_normal((rows, dim)) * numpy.logspace(0, scale, dim):
        ridges.update(0, row, numpy.array([row.sum()]), 1.0)
    return ridges


def exact(ridges: RidgeRegressions) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Inverse and coefficients from the sums alone."""
    ridges.add_recent()
    gram, moment = ridges.sums[0, : ridges.dim].numpy(), ridges.sums[0, ridges.dim].numpy()
    matrix = gram + ridges.l2_lambda * numpy.eye(ridges.dim)
    # Scaling rows and columns to unit diagonal keeps the reference accurate.
    size = numpy.sqrt(matrix.diagonal())
    inverse = numpy.linalg.inv(matrix / numpy.outer(size, size)) / numpy.outer(size, size)
    return inverse, inverse @ moment


def test_coefficients_equal_scikit_learns_ridge() -> None:
    random = numpy.random.default_rng(1)
    x, y, weight = random.standard_normal((40, 5)), random.standard_normal(40), random.random(40)
    ridges = RidgeRegressions(1, 5, l2_lambda=2.5)
    for row, label, one in zip(x, y, weight, strict=True):
        ridges.update(0, row, label[None], one)
    theirs = Ridge(alpha=2.5, fit_intercept=False).fit(x, y, sample_weight=weight)
    assert ridges.solved[0, 5].numpy() == pytest.approx(theirs.coef_, abs=1e-12)


@pytest.mark.parametrize("l2_lambda", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("scale", [0.0, 2.0, 4.0])
def test_variances_stay_within_a_hundred_millionth_of_the_exact_ones(
    l2_lambda: float, scale: float
) -> None:
    ridges = learned(3_000, 12, scale=scale, l2_lambda=l2_lambda)
    rows = numpy.random.default_rng(2).standard_normal((50, 12)) * numpy.logspace(0, scale, 12)
    inverse, coefficients = exact(ridges)
    means, spread = ridges.predict(rows)
    assert spread[:, 0] == pytest.approx(numpy.einsum("nd,de,ne->n", rows, inverse, rows), rel=1e-8)
    assert means[:, 0, 0] == pytest.approx(rows @ coefficients, rel=1e-8, abs=1e-8)


def test_inverses_are_solved_anew_as_often_as_refresh_every_says() -> None:
    ridges = learned(30, 3, refresh_every=10)
    assert ridges.is_stale()
    ridges.predict(numpy.ones((1, 3)))
    assert ridges.fallbacks() == {"refreshed": 1, "jittered": 0, "pseudo_inverted": 0}
    assert not ridges.is_stale()
    assert ridges.age.tolist() == [0]


def test_a_row_that_would_cost_digits_is_solved_instead() -> None:
    ridges = RidgeRegressions(1, 2, l2_lambda=1e-9)
    ridges.update(0, numpy.array([1.0, 1.0]), numpy.array([1.0]), 1.0)
    assert ridges.is_stale()


def test_a_matrix_that_rounding_made_indefinite_is_jittered_and_counted() -> None:
    ridges = RidgeRegressions(1, 2, l2_lambda=1e-30)
    ridges.absorb([numpy.ones(1), numpy.array([[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]])], 1)
    means, _ = ridges.predict(numpy.array([[1.0, 1.0]]))
    assert ridges.fallbacks() == {"refreshed": 1, "jittered": 1, "pseudo_inverted": 0}
    assert means[0, 0] == pytest.approx(1.0, abs=1e-6)


def test_a_matrix_that_no_jitter_helps_is_pseudo_inverted_and_counted() -> None:
    ridges = RidgeRegressions(1, 2, l2_lambda=1e-30)
    ridges.absorb([numpy.ones(1), numpy.array([[[1.0, 1.0], [1.0, 0.999], [1.0, 1.0]]])], 1)
    _, spread = ridges.predict(numpy.array([[1.0, 1.0]]))
    assert ridges.fallbacks() == {"refreshed": 1, "jittered": 0, "pseudo_inverted": 1}
    assert numpy.isfinite(spread).all()


def continued(ridges: RidgeRegressions) -> numpy.ndarray:
    """What is predicted after one more row: it shows whether views still are views."""
    ridges.update(0, numpy.array([1.0, 0.0, 2.0]), numpy.array([3.0]), 1.0)
    means, spread = ridges.predict(numpy.eye(3))
    return numpy.concatenate([means[:, 0, 0], spread[:, 0]])


def test_copies_learn_on_exactly_where_the_original_stood_and_apart_from_it() -> None:
    ridges = learned(70, 3)
    copies = [
        copy.deepcopy(ridges),
        pickle.loads(pickle.dumps(ridges)),
        RidgeRegressions(1, 3),
        RidgeRegressions(1, 3),
    ]
    copies[2].load_state_dict(ridges.state_dict())
    copies[3].load_state_dict(copy.deepcopy(ridges.state_dict()), assign=True)
    expected = continued(ridges)
    for one in copies:
        assert continued(one).tolist() == expected.tolist()
        assert one.state_dict().keys() == ridges.state_dict().keys()
    for one in copies:
        for name, buffer in one.state_dict().items():
            assert torch.equal(buffer, ridges.state_dict()[name]), name


def test_a_saved_state_loads_without_pickle() -> None:
    ridges = learned(70, 3)
    file = io.BytesIO()
    torch.save(ridges.state_dict(), file)
    file.seek(0)
    other = RidgeRegressions(1, 3)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert continued(other).tolist() == continued(ridges).tolist()


def test_moving_to_another_type_or_memory_rounds_nothing_and_keeps_views_current() -> None:
    plain, moved = learned(10, 3), learned(10, 3)
    assert moved.to(torch.float32) is moved
    assert moved.half().sums.dtype == torch.float64
    moved.share_memory()
    assert continued(moved).tolist() == continued(plain).tolist()
    assert torch.equal(moved.solved, plain.solved)
