"""What regressions know can be read, and is what the formulas say; nobody writes it."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces
from rlplug_linucb import (
    Layout,
    LinTSConfig,
    LinTSModule,
    LinUCBConfig,
    LinUCBModule,
    NeuralLinUCBConfig,
    NeuralLinUCBModule,
)
from rlplug_linucb.linucb import RidgeRegressions

from rlplug.errors import RunFailedError

TWO = Layout(num_arms=2, context_dim=2)
X = numpy.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
R = numpy.array([1.0, 0.0, 1.0])
OF_ARM_0 = numpy.zeros(3, dtype=int)


def module(**options: Any) -> LinUCBModule:
    """Arm 0 has learned the rows: A = [[2, 1], [1, 2]], b = (2, 1); arm 1 none."""
    one = LinUCBModule(TWO, LinUCBConfig(**options))
    one.update(X, OF_ARM_0, R)
    return one


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("on_numpy", [True, False])
def test_the_estimates_of_a_disjoint_model_are_those_of_each_arm(
    one_by_one: bool, on_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_numpy:
        monkeypatch.setattr(RidgeRegressions, "numpy_devices", frozenset())
    one = module() if not one_by_one else LinUCBModule(TWO)
    for row in range(3) if one_by_one else ():
        one.update(X[row : row + 1], OF_ARM_0[:1], R[row : row + 1])
    assert one.A.tolist() == [[[2, 1], [1, 2]], [[0, 0], [0, 0]]]
    assert one.b.tolist() == [[2, 1], [0, 0]]
    # (A + I)⁻¹ = [[3, 1], [1, 3]]⁻¹
    assert numpy.asarray(one.A_inv[0]) == pytest.approx(numpy.array([[3, -1], [-1, 3]]) / 8)
    assert one.A_inv[1].tolist() == [[1, 0], [0, 1]]
    assert numpy.asarray(one.theta) == pytest.approx(numpy.array([[5 / 8, 1 / 8], [0, 0]]))
    assert one.shared_estimates() is None


def test_the_estimates_of_a_joint_model_are_those_of_its_only_regression() -> None:
    one = LinUCBModule(Layout(num_arms=2, arm_dim=2))
    one.update_params(X, R)
    assert one.A.tolist() == [[2, 1], [1, 2]]
    assert one.b.tolist() == [2, 1]
    assert one.A_inv == pytest.approx(numpy.array([[3, -1], [-1, 3]]) / 8)
    assert one.theta == pytest.approx([5 / 8, 1 / 8])


@pytest.mark.parametrize("batch", [1, 60])
def test_the_estimates_of_a_hybrid_model_are_blocks_of_one_ridge_regression(batch: int) -> None:
    layout, random = Layout(num_arms=3, context_dim=2, arm_dim=2), numpy.random.default_rng(0)
    options = LinUCBConfig(model="hybrid", use_interaction_features=False, l2_lambda=0.5)
    one = LinUCBModule(layout, options)
    context, features = random.standard_normal((60, 2)), random.standard_normal((60, 3, 2))
    arms, rewards = random.integers(0, 3, 60), random.standard_normal(60)
    for start in range(0, 60, batch):
        part = slice(start, start + batch)
        one.update({"context": context[part], "arms": features[part]}, arms[part], rewards[part])
    # Rows [z, e_arm ⊗ x]: 2 shared columns, then 2 for each of 3 arms.
    rows = numpy.zeros((60, 8))
    rows[:, :2] = features[range(60), arms]
    for column in range(2):
        rows[range(60), 2 + 2 * arms + column] = context[:, column]
    ridge = rows.T @ rows + 0.5 * numpy.eye(8)
    whole = numpy.linalg.solve(ridge, rows.T @ rewards)
    shared = one.shared_estimates()
    assert shared is not None
    assert shared.theta == pytest.approx(whole[:2])
    assert shared.A_inv == pytest.approx(numpy.linalg.inv(ridge)[:2, :2])
    assert numpy.linalg.inv(shared.A + 0.5 * numpy.eye(2)) == pytest.approx(shared.A_inv)
    assert shared.A_inv @ shared.b == pytest.approx(shared.theta)
    assert one.theta == pytest.approx(whole[2:].reshape(3, 2))
    for arm in range(3):
        block = slice(2 + 2 * arm, 4 + 2 * arm)
        assert one.A[arm] == pytest.approx((rows.T @ rows)[block, block])
        assert one.b[arm] == pytest.approx((rows.T @ rewards)[block])
        assert one.A_inv[arm] == pytest.approx(numpy.linalg.inv(ridge[block, block]))


def test_estimates_cannot_be_written_and_do_not_change_under_the_reader() -> None:
    one = module()
    for name in ("A", "b", "A_inv", "theta"):
        before = getattr(one, name)
        values = before.tolist()
        with pytest.raises(ValueError, match="read-only"):
            before[0] = 5.0
        with pytest.raises(AttributeError):
            setattr(one, name, 5.0)
        one.update(X, OF_ARM_0, R)
        assert before.tolist() == values
        assert getattr(one, name).tolist() != values


def test_every_module_of_the_package_has_estimates() -> None:
    sampling = LinTSModule(TWO, LinTSConfig(v=2.0))
    sampling.update(X, OF_ARM_0, R)
    assert sampling.theta.tolist() == module().theta.tolist()
    neural = NeuralLinUCBModule(spaces.Box(-1, 1, (2,)), 3)
    # 64 hidden units and a column of ones.
    assert neural.A.shape == neural.A_inv.shape == (3, 65, 65)
    assert neural.theta.shape == neural.b.shape == (3, 65)


def test_the_confidence_width_is_by_how_much_the_bound_exceeds_the_prediction() -> None:
    one = module(alpha=2.0)
    # sigma² of (1, 0): 3 / 8 for arm 0, 1 for arm 1.
    probe = numpy.array([[1.0, 0.0]])
    assert one.confidence_width(probe)[0] == pytest.approx([2 * (3 / 8) ** 0.5, 2.0])
    assert one.confidence_width(probe, alpha=0.5)[0] == pytest.approx([0.5 * (3 / 8) ** 0.5, 0.5])
    absent = numpy.array([[True, False]])
    assert one.confidence_width(probe, action_mask=absent)[0, 1] == 0.0


def test_alpha_may_be_given_with_each_call() -> None:
    one, random = module(alpha=0.0), numpy.random.default_rng(0)
    # Arm 0 is predicted to earn 0.625 ± 0.61 alpha, arm 1 0 ± alpha.
    probe = numpy.array([[1.0, 0.0]])
    assert one.choose(probe, random).tolist() == [0]
    assert one.choose(probe, random, alpha=10.0).tolist() == [1]
    assert one.choose(probe, random, alpha=0.1).tolist() == [0]
    assert one.choose(probe, random).tolist() == [0]
    with pytest.raises(RunFailedError, match=r"alpha must be at least 0, found -1\.0"):
        one.choose(probe, random, alpha=-1.0)
    with pytest.raises(RunFailedError, match=r"alpha must be at least 0, found -1\.0"):
        one.set_alpha(-1.0)
    assert float(one.alpha) == 0.0


@pytest.mark.parametrize("on_numpy", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
def test_without_a_penalty_the_pseudo_inverse_is_taken_and_counted(
    batch: int, on_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_numpy:
        monkeypatch.setattr(RidgeRegressions, "numpy_devices", frozenset())
    one = LinUCBModule(Layout(num_arms=2, arm_dim=2), LinUCBConfig(l2_lambda=0.0))
    assert one.theta.tolist() == [0.0, 0.0]
    for start in range(0, 4, batch):
        one.update_params(numpy.ones((batch, 2)), numpy.full(batch, 2.0))
        assert one.A_inv == pytest.approx(numpy.full((2, 2), 0.25 / (start + batch)))
        assert numpy.asarray(one.theta) == pytest.approx([1.0, 1.0])
    assert one.fallbacks() == {"refreshed": 4 / batch, "jittered": 0, "pseudo_inverted": 4 / batch}
    # A second direction makes A regular: least squares, and nothing more to count.
    one.update_params(numpy.array([[1.0, -1.0]]), numpy.array([4.0]))
    assert numpy.asarray(one.theta) == pytest.approx([3.0, -1.0])
    assert one.fallbacks()["pseudo_inverted"] == 4 / batch


@pytest.mark.parametrize("model", ["disjoint", "joint", "hybrid"])
def test_without_a_penalty_every_model_fits_rows_that_a_linear_reward_explains(model: Any) -> None:
    random = numpy.random.default_rng(1)
    one = LinUCBModule(Layout(num_arms=3, context_dim=4), LinUCBConfig(model=model, l2_lambda=0.0))
    context, arms = random.standard_normal((10, 4)), random.integers(0, 3, 10)
    rewards = (context * numpy.eye(4)[arms]).sum(1)
    for row in range(10):
        part = slice(row, row + 1)
        one.update(context[part], arms[part], rewards[part])
    assert one.score(context).pred_label[range(10), arms] == pytest.approx(rewards)
    assert one.fallbacks()["pseudo_inverted"] > 0


def test_the_width_of_draws_and_of_bounds_on_a_network_can_be_read() -> None:
    probe = numpy.array([[1.0, 0.5], [0.0, 2.0]])
    absent = numpy.array([[1, 0], [1, 1]], numpy.int8)
    space, random = spaces.Box(-2, 2, (2,)), numpy.random.default_rng(0)
    drawn = LinTSModule(Layout(num_arms=2, context_dim=2), LinTSConfig(v=2.0))
    drawn.update(probe, [0, 1], [1.0, 0.0])
    assert drawn.confidence_width(probe) == pytest.approx(2 * drawn.score(probe, random).pred_sigma)
    assert drawn.confidence_width(probe, 0.5, absent)[0, 1] == 0.0
    neural = NeuralLinUCBModule(space, 2, NeuralLinUCBConfig(alpha=3.0))
    scores = neural.score(probe, action_mask=absent)
    width = neural.confidence_width(probe, action_mask=absent)
    assert width == pytest.approx(3 * scores.pred_sigma)
    assert width[0, 1] == 0.0
    assert neural.confidence_width(probe, 1.5) == pytest.approx(neural.confidence_width(probe) / 2)
    chosen = neural.choose(probe, random, absent)
    assert chosen[0] == 0
    assert neural.choose(probe, random, absent, alpha=0.0).shape == (2,)
