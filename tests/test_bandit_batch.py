"""The bandit batch: what it holds, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from rlplug.bandits import BanditBatch
from rlplug.batch import Batch
from rlplug.errors import RequestError


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
    return str(caught.value)


def test_the_label_is_the_reward_unless_it_is_given() -> None:
    assert BanditBatch(**columns()).label.tolist() == [0.5, -0.5]
    assert BanditBatch(**columns(label=numpy.array([1.0, 0.0]))).label.tolist() == [1.0, 0.0]


def test_the_effective_weight_is_weight_times_importance_weight() -> None:
    weights, importance = numpy.array([2.0, 3.0]), numpy.array([0.5, 4.0])
    both = BanditBatch(**columns(weights=weights, importance_weight=importance))
    assert both.effective_weight.tolist() == [1.0, 12.0]
    assert BanditBatch(**columns(weights=weights)).effective_weight.tolist() == [2.0, 3.0]
    one = BanditBatch(**columns(importance_weight=importance))
    assert one.effective_weight.tolist() == [0.5, 4.0]
    assert BanditBatch(**columns()).effective_weight.tolist() == [1.0, 1.0]


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
    assert len(back) == 2
    assert back.num_arms == 3


def test_a_batch_of_fixed_arms_is_a_plain_array_of_contexts() -> None:
    fixed = BanditBatch(**columns(arms=None, action_mask=None))
    batch = fixed.to_batch()
    assert batch.array("observations").tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert sorted(batch) == ["actions", "observations", "rewards"]
    back = BanditBatch.of(batch)
    assert back.num_arms is None
    assert back.label is back.rewards


def test_tensors_and_a_mask_beside_the_observations_are_understood() -> None:
    back = BanditBatch.of(
        Batch(
            {
                "observations": torch.tensor([[1.0, 2.0]]),
                "action_mask": torch.tensor([[True, False]]),
                "actions": torch.tensor([0]),
                "rewards": torch.tensor([1.0]),
            }
        )
    )
    assert back.action_mask is not None
    assert back.action_mask.tolist() == [[True, False]]
    assert back.num_arms == 2


def test_a_missing_column_is_named_with_those_that_there_are() -> None:
    with pytest.raises(RequestError, match=r"'rewards' is missing .*: observations, actions"):
        BanditBatch.of(Batch({"observations": numpy.ones((1, 1)), "actions": numpy.zeros(1, int)}))


@pytest.mark.parametrize("alone", [True, False])
def test_arms_need_no_context(alone: bool) -> None:
    arms = numpy.ones((1, 2, 1))
    chosen = {"actions": numpy.array([1]), "rewards": numpy.ones(1)}
    batch = BanditBatch.of(Batch({"observations": arms if alone else {"arms": arms}, **chosen}))
    assert batch.context is None
    assert (len(batch), batch.num_arms, batch.chosen_arm.tolist()) == (1, 2, [[1.0]])
    assert BanditBatch.of(batch.to_batch()).arms is arms


def test_fixed_arms_need_no_context_either() -> None:
    batch = BanditBatch(actions=numpy.array([1, 0]), rewards=numpy.ones(2))
    assert (len(batch), batch.num_arms) == (2, None)
    assert batch.observations.shape == (2, 0)
    assert len(BanditBatch.of(batch.to_batch())) == 2


def test_features_of_absent_arms_may_be_anything() -> None:
    arms = columns()["arms"].copy()
    arms[1, 1] = numpy.nan
    assert len(BanditBatch(**columns(arms=arms))) == 2
    text = refusal(arms=arms, action_mask=None)
    assert "column 'arms', row 1, arm 1, column 0: must be finite" in text


def test_ids_of_arms_are_kept_and_checked() -> None:
    ids = numpy.array([[7, 8, 9], [9, 8, 7]])
    assert BanditBatch.of(BanditBatch(**columns(arm_ids=ids)).to_batch()).arm_ids is ids
    assert "column 'arm_ids': expected whole numbers" in refusal(arm_ids=ids * 0.5)
    assert "column 'arm_ids': expected shape (2, 3)" in refusal(arm_ids=ids[:, :2])


def test_a_batch_that_is_not_validated_is_read_as_it_is() -> None:
    given = columns(rewards=numpy.array([numpy.nan, 0.0]))
    batch = BanditBatch.of(BanditBatch(**given, validate=False).to_batch(), validate=False)
    assert numpy.isnan(batch.rewards[0])
    tensors = Batch({name: torch.ones(1) for name in ("observations", "actions", "rewards")})
    assert isinstance(
        BanditBatch.of(tensors, read=tensors.__getitem__, validate=False).rewards, torch.Tensor
    )


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("context", (2,), "(2, features)"),
        ("arms", (2, 3), "(2, arms, features)"),
        ("arms", (1, 3, 1), "(2, arms, features)"),
        ("action_mask", (2, 4), "(2, 3)"),
        ("actions", (2, 1), "(2,)"),
        ("rewards", (3,), "(2,)"),
        ("label", (2, 1), "(2,)"),
        ("weights", (1,), "(2,)"),
        ("importance_weight", (), "(2,)"),
        ("action_log_prob", (2, 2), "(2,)"),
    ],
)
def test_a_wrong_shape_is_named_with_column_expected_and_found(
    name: str, shape: tuple[int, ...], expected: str
) -> None:
    text = refusal(**{name: numpy.zeros(shape)})
    assert f"column {name!r}: expected shape {expected}, found {shape}." in text


@pytest.mark.parametrize(
    ("name", "place", "where"),
    [
        ("context", (1, 0), "row 1, column 0"),
        ("arms", (1, 2, 0), "row 1, arm 2, column 0"),
        ("rewards", (1,), "row 1"),
        ("label", (0,), "row 0"),
        ("weights", (1,), "row 1"),
        ("importance_weight", (0,), "row 0"),
        ("action_log_prob", (1,), "row 1"),
    ],
)
@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf, -numpy.inf])
def test_a_number_that_is_not_finite_is_named_with_row_and_column(
    name: str, place: tuple[int, ...], where: str, bad: float
) -> None:
    column = numpy.array(columns().get(name, numpy.zeros(2)))
    column[place] = bad
    assert f"column {name!r}, {where}: must be finite, found {bad}." in refusal(**{name: column})


def test_two_infinities_that_cancel_are_found_too() -> None:
    assert "row 0: must be finite" in refusal(rewards=numpy.array([numpy.inf, -numpy.inf]))


def test_numbers_of_the_wrong_sign_are_refused() -> None:
    wrong = numpy.array([1.0, -2.0])
    assert "'weights', row 1: must not be negative, found -2.0" in refusal(weights=wrong)
    text = refusal(importance_weight=wrong)
    assert "'importance_weight', row 1: must not be negative, found -2.0" in text
    assert "'action_log_prob', row 0: must be at most 0" in refusal(action_log_prob=wrong)


def test_actions_that_are_no_arms_are_refused() -> None:
    text = refusal(actions=numpy.array([0, 3]))
    assert "column 'actions', row 1: must be below 3, the arms, found 3." in text
    assert "must not be negative, found -1" in refusal(actions=numpy.array([-1, 0]))
    text = refusal(actions=numpy.array([0.0, 1.0]))
    assert "column 'actions': expected whole numbers, found float64." in text


def test_columns_that_hold_no_numbers_are_refused() -> None:
    text = refusal(rewards=numpy.array(["a", "b"]))
    assert "column 'rewards': expected numbers, found <U1." in text
    text = refusal(action_mask=numpy.zeros((2, 3)))
    assert "column 'action_mask': expected 0 and 1 or booleans, found float64." in text


def test_a_batch_without_rows_is_a_batch() -> None:
    empty = BanditBatch(
        context=numpy.empty((0, 2)), actions=numpy.empty(0, dtype=int), rewards=numpy.empty(0)
    )
    assert len(empty) == 0
    assert empty.effective_weight.tolist() == []
