"""The bandit batch: what it holds, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from rlplug.bandits import BanditBatch
from rlplug.batch import Batch
from rlplug.errors import RequestError

NAN, INF = numpy.nan, numpy.inf


def columns(**changes: Any) -> dict[str, Any]:
    """Two rows of two context features and three arms of one feature each."""
    return {
        "context": numpy.array([[1.0, 2.0], [3.0, 4.0]]),
        "arms": numpy.array([[[10.0], [11.0], [12.0]], [[20.0], [21.0], [22.0]]]),
        "action_mask": numpy.array([[1, 1, 1], [1, 0, 1]], dtype=numpy.int8),
        "actions": numpy.array([1, 2]),
        "rewards": numpy.array([0.5, -0.5]),
        **changes,
    }


def refusal(**changes: Any) -> str:
    with pytest.raises(RequestError) as caught:
        BanditBatch(**columns(**changes))
    return caught.value.message


def test_the_effective_weight_is_weight_times_importance_weight() -> None:
    weights, importance = numpy.array([2.0, 3.0]), numpy.array([0.5, 4.0])
    for given, expected in (
        ({"weights": weights, "importance_weight": importance}, [1.0, 12.0]),
        ({"weights": weights}, [2.0, 3.0]),
        ({"importance_weight": importance}, [0.5, 4.0]),
        ({}, [1.0, 1.0]),
    ):
        batch = BanditBatch(**columns(**given))
        assert (batch.effective_weight.tolist(), batch.weighted) == (expected, bool(given))


def test_the_features_of_the_chosen_arm_are_gathered() -> None:
    assert BanditBatch(**columns()).chosen_arm.tolist() == [[11.0], [22.0]]
    with pytest.raises(RequestError, match="fixed arms have no features"):
        _ = BanditBatch(**columns(arms=None)).chosen_arm


def test_a_batch_of_featured_arms_survives_the_way_through_batch() -> None:
    extra = {
        "label": numpy.array([1.0, 0.0]),
        "weights": numpy.array([2.0, 3.0]),
        "importance_weight": numpy.array([0.5, 4.0]),
        "action_log_prob": numpy.array([-0.5, 0.0]),
    }
    given = columns(**extra)
    batch = BanditBatch(**given).to_batch()
    assert sorted(batch) == sorted(["observations", "actions", "rewards", *extra])
    assert sorted(batch.array("observations")) == ["action_mask", "arms", "context"]
    back = BanditBatch.of(batch)
    for name, column in given.items():
        assert numpy.shares_memory(getattr(back, name), column)
    assert (len(back), back.num_arms) == (2, 3)


def test_contexts_and_arms_may_be_alone_or_not_at_all() -> None:
    batch = BanditBatch(**columns(arms=None, action_mask=None)).to_batch()
    assert batch.array("observations").tolist() == [[1.0, 2.0], [3.0, 4.0]]
    back = BanditBatch.of(batch)
    assert back.num_arms is None
    assert back.label is back.rewards
    arms = numpy.ones((1, 2, 1))
    chosen: dict[str, Any] = {"actions": numpy.array([1]), "rewards": numpy.ones(1)}
    for seen in (arms, {"arms": arms}):
        back = BanditBatch.of(Batch({"observations": seen, **chosen}))
        assert (back.context, back.num_arms, back.chosen_arm.tolist()) == (None, 2, [[1.0]])
        assert BanditBatch.of(back.to_batch()).arms is arms
    neither = BanditBatch(**chosen)
    assert (neither.num_arms, neither.observations.shape) == (None, (1, 0))
    empty = BanditBatch(
        context=numpy.empty((0, 2)), actions=numpy.empty(0, int), rewards=arms[:0, 0, 0]
    )
    assert (len(empty), empty.effective_weight.tolist()) == (0, [])


def test_tensors_and_a_mask_beside_the_observations_are_understood() -> None:
    given: dict[str, Any] = {
        "observations": torch.tensor([[1.0, 2.0]]),
        "action_mask": torch.tensor([[True, False]]),
        "actions": torch.tensor([0]),
        "rewards": torch.tensor([1.0]),
    }
    back = BanditBatch.of(Batch(given))
    assert back.action_mask is not None
    assert (back.action_mask.tolist(), back.num_arms) == ([[True, False]], 2)
    del given["rewards"]
    with pytest.raises(RequestError, match=r"'rewards' is missing .*: observations, action_mask"):
        BanditBatch.of(Batch(given))


def test_what_is_not_validated_and_features_of_absent_arms_may_be_anything() -> None:
    given = columns(rewards=numpy.array([NAN, 0.0]))
    batch = BanditBatch.of(BanditBatch(**given, validate=False).to_batch(), validate=False)
    assert numpy.isnan(batch.rewards[0])
    arms = columns()["arms"].copy()
    arms[1, 1] = NAN
    assert len(BanditBatch(**columns(arms=arms))) == 2
    told = "column 'arms', row 1, value 1, 0: is missing or NaN."
    assert refusal(arms=arms, action_mask=None) == told


@pytest.mark.parametrize(
    ("name", "column", "expected"),
    [
        ("context", numpy.zeros(2), "numbers of shape (2, features)"),
        ("arms", numpy.zeros((2, 3)), "numbers of shape (2, arms, features)"),
        ("action_mask", numpy.zeros((2, 4), int), "0 and 1 or booleans of shape (2, arms)"),
        ("actions", numpy.zeros(2), "whole numbers of shape (2,)"),
        ("rewards", numpy.array(["a", "b"]), "numbers of shape (2,)"),
        ("action_log_prob", numpy.zeros((2, 2)), "numbers of shape (2,)"),
    ],
)
def test_a_wrong_shape_or_type_is_named_with_column_expected_and_found(
    name: str, column: Any, expected: str
) -> None:
    assert refusal(**{name: column}) == (
        f"column {name!r}: expected {expected}, found {column.dtype} of shape {column.shape}."
    )


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("context", [[0.0, 0.0], [NAN, 0.0]], "'context', row 1, value 0: is missing or NaN."),
        ("arms", [[[0.0]] * 3, [[0.0], [0.0], [INF]]], "'arms', row 1, value 2, 0: is infinite."),
        ("rewards", [INF, -INF], "'rewards', row 0: is infinite."),
        ("weights", [1.0, -2.0], "'weights', row 1: is -2, below 0."),
        ("importance_weight", [-0.5, 1.0], "'importance_weight', row 0: is -0.5, below 0."),
        ("action_log_prob", [0.0, 1.0], "'action_log_prob', row 1: is 1.0, no log-probability."),
        ("actions", [0, 3], "'actions', row 1: is 3, the arms are 0 to 2."),
        ("actions", [0, 1], "'actions', row 1: is 1, an arm that is absent there."),
    ],
)
def test_the_first_value_that_cannot_be_is_told_with_its_place(
    name: str, values: Any, told: str
) -> None:
    assert refusal(**{name: numpy.array(values)}) == f"column {told}"
