"""Actions of a batch are those of the module's space; others are refused by row."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces

import rlplug
from rlplug import Batch
from rlplug.envs.agents.team import stored_space
from rlplug.errors import RequestError, RunFailedError
from rlplug.learner import Learner

OBSERVATIONS = spaces.Box(-1, 1, (2,))
DISCRETE = spaces.Discrete(3)
LATER = spaces.Discrete(3, start=2)
UNEVEN = spaces.MultiDiscrete([3, 2])
UNEVEN_LATER = spaces.MultiDiscrete([3, 2], start=[-1, 4])
SQUARE = spaces.MultiDiscrete([[2, 3], [4, 5]])
BINARY = spaces.MultiBinary(3)
BOARD = spaces.MultiBinary((2, 2))


def learner(space: spaces.Space[Any], **options: Any) -> Learner:
    return rlplug.build_learner("bc", OBSERVATIONS, space, options=options, seed=1)


def batch(actions: Any, observations: Any = None) -> Batch:
    rows = len(actions)
    seen = numpy.zeros((rows, 2), numpy.float32) if observations is None else observations
    columns = {
        "observations": seen,
        "next_observations": seen,
        "actions": actions,
        "rewards": numpy.ones(rows, numpy.float32),
        "terminated": numpy.ones(rows, bool),
        "truncated": numpy.zeros(rows, bool),
    }
    return Batch(columns)


def every_action(space: spaces.Space[Any]) -> Any:
    """Rows in which each choice takes its least and its greatest action."""
    if isinstance(space, spaces.MultiBinary):
        return numpy.stack([numpy.zeros(space.shape, int), numpy.ones(space.shape, int)])
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return numpy.stack([space.start, space.start + count - 1])


@pytest.mark.parametrize(
    "space", [DISCRETE, LATER, UNEVEN, UNEVEN_LATER, SQUARE, BINARY, BOARD], ids=str
)
def test_all_actions_of_the_space_are_learned_from_whatever_type_they_have(space: Any) -> None:
    one, actions = learner(space), every_action(space)
    losses = [
        float(one.update_from_batch(batch(given), timestep=1)["default"]["loss"])
        for given in (
            actions,
            actions.astype(numpy.int8),
            actions.astype(numpy.float32),
            torch.from_numpy(actions),
            torch.from_numpy(actions).bfloat16(),
            numpy.asfortranarray(actions)[::-1],
        )
    ]
    assert numpy.isfinite(losses).all()


@pytest.mark.parametrize("arrays", ["auto", "off"])
@pytest.mark.parametrize("as_tensor", [True, False])
@pytest.mark.parametrize(
    ("space", "place", "action", "told"),
    [
        (DISCRETE, (1,), 3, "has 3 in row 1, where Discrete with 3 values takes 0 to 2"),
        (DISCRETE, (0,), -1, "has -1 in row 0, where Discrete with 3 values takes 0 to 2"),
        (LATER, (1,), 1, "has 1 in row 1, where Discrete with 3 values, from 2 takes 2 to 4"),
        (UNEVEN, (1, 1), 2, "has 2 in row 1, column 1, where MultiDiscrete of [3, 2] takes 0 to 1"),
        (UNEVEN, (0, 0), -1, "has -1 in row 0, column 0, where MultiDiscrete of [3, 2] takes 0 to"),
        (
            UNEVEN_LATER,
            (1, 1),
            3,
            "has 3 in row 1, column 1, where MultiDiscrete of [3, 2] takes 4",
        ),
        (
            SQUARE,
            (1, 1, 0),
            4,
            "has 4 in row 1, column 1, 0, where MultiDiscrete of [[2, 3], [4, 5",
        ),
        (
            BINARY,
            (0, 2),
            7,
            "has 7 in row 0, column 2, where MultiBinary of shape (3,) takes 0 to 1",
        ),
        (BINARY, (1, 0), -1, "has -1 in row 1, column 0, where MultiBinary of shape (3,) takes 0"),
        (BOARD, (1, 0, 1), 2, "has 2 in row 1, column 0, 1, where MultiBinary of shape (2, 2) tak"),
    ],
    ids=str,
)
def test_an_action_beyond_the_space_is_refused_by_module_row_and_range(
    space: Any, place: Any, action: int, told: str, as_tensor: bool, arrays: str
) -> None:
    one, actions = learner(space, **{"compute.arrays": arrays}), every_action(space)
    one.update_from_batch(batch(actions), timestep=1)
    before = {name: value.clone() for name, value in one.modules["default"].state_dict().items()}
    wrong = actions.copy()
    wrong[place] = action
    with pytest.raises(RequestError) as raised:
        one.update_from_batch(batch(torch.from_numpy(wrong) if as_tensor else wrong), timestep=2)
    assert str(raised.value).startswith(f"'actions' of the batch for module 'default' {told}")
    assert (one.timestep, one.updates) == (1, 1)
    for name, value in one.modules["default"].state_dict().items():
        assert torch.equal(value, before[name])


def test_a_float_beyond_the_space_is_refused_and_so_is_a_fraction_of_a_binary_action() -> None:
    with pytest.raises(RequestError, match="has 3 in row 1, where Discrete"):
        learner(DISCRETE).update_from_batch(batch(numpy.array([0.0, 3.0])))
    with pytest.raises(RunFailedError, match=r"action 0\.5 of row 1 is no whole number"):
        learner(BINARY).update_from_batch(batch(numpy.array([[0.0, 1, 0], [1, 0.5, 0]])))


def test_an_unsigned_action_beyond_the_space_is_found() -> None:
    with pytest.raises(RequestError, match="has 255 in row 1, where"):
        learner(DISCRETE).update_from_batch(batch(numpy.array([0, 255], numpy.uint8)))


def test_neural_linucb_refuses_an_arm_that_there_is_not_by_row() -> None:
    one = rlplug.build_learner("neural-linucb", OBSERVATIONS, DISCRETE, seed=1)
    with pytest.raises(RequestError, match="has 3 in row 2, where Discrete with 3 values takes 0"):
        one.update_from_batch(batch(numpy.array([0, 1, 3])))


def test_agents_of_a_team_who_are_absent_have_0_in_place_of_an_action() -> None:
    stored = stored_space(OBSERVATIONS, LATER, 2, None)
    one = rlplug.build_learner("vdn", OBSERVATIONS, LATER, seed=1)
    one.training_spaces["default"] = stored
    rows = {
        "observation": numpy.zeros((2, 2, 2), numpy.float32),
        "present": numpy.array([[1, 0], [1, 1]], numpy.int8),
        "action_mask": numpy.ones((2, 2, 3), numpy.int8),
    }
    one._check({"default": batch(numpy.array([[2, 0], [4, 3]]), rows)})
    with pytest.raises(RequestError, match="has 5 in row 1, column 1, where Discrete with 3 value"):
        one._check({"default": batch(numpy.array([[2, 0], [4, 5]]), rows)})
    one.training_spaces.clear()
    with pytest.raises(RequestError, match=r"has shape \(2, 2\), where Discrete with 3 values"):
        one._check({"default": batch(numpy.array([[2, 0], [4, 3]]))})


def test_the_space_that_counts_is_that_of_a_module_as_it_was_built_last() -> None:
    one = learner(DISCRETE)
    one.update_from_batch(batch(numpy.array([0, 2])))
    one.add_module("other", (OBSERVATIONS, LATER))
    one.update({"other": batch(numpy.array([2, 4]))}, timestep=9)
    with pytest.raises(RequestError, match="for module 'other' has 0 in row 0"):
        one.update({"other": batch(numpy.array([0, 2]))}, timestep=9)
    one.remove_module("other")
    one.set_state(learner(spaces.Discrete(4, start=2)).get_state(), rebuild=True)
    one.update_from_batch(batch(numpy.array([2, 5])))
    with pytest.raises(RequestError, match="for module 'default' has 0 in row 0"):
        one.update_from_batch(batch(numpy.array([0, 2])))
