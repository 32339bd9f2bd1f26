"""Value functions and features of observations and of States: what is 0, what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs
import gymnasium
import numpy
import pytest
import torch
from torch import Tensor, nn, tensor
from torch.optim import SGD

from rlplug.approximation import (
    DummyCheckpointer,
    DummyWriter,
    FeatureNetwork,
    FixedTarget,
    Identity,
    QContinuous,
    QDist,
    QNetwork,
    VNetwork,
)
from rlplug.errors import RequestError


def line(weight: float = 1.0) -> nn.Linear:
    """The function weight · x."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


X = tensor([[2.0]])
QUIET: Any = {"checkpointer": DummyCheckpointer()}


def test_a_q_network_gives_all_values_or_those_of_the_actions() -> None:
    q = QNetwork(nn.Identity(), target=FixedTarget(1), **QUIET)
    values, actions = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), tensor([2, 0])
    assert q(values).tolist() == values.tolist()
    for ask in (q, q.no_grad, q.eval, q.target):
        assert ask(values, actions).tolist() == [3.0, 4.0]


def test_a_q_network_is_zero_where_terminated_when_it_is_told() -> None:
    q = QNetwork(nn.Identity(), target=FixedTarget(1), **QUIET)
    values, terminated = tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([False, True])
    for ask in (q, q.no_grad, q.eval, q.target):
        assert ask(values, terminated=terminated).tolist() == [[1.0, 2.0], [0.0, 0.0]]
        assert ask(values, [1, 1], terminated).tolist() == [2.0, 0.0]
        assert ask(values, [1, 1], [True, False]).tolist() == [0.0, 4.0]


@pytest.mark.parametrize(
    "actions",
    [
        [1, 0],
        (1, 0),
        [tensor([1]), tensor([0])],
        numpy.array([1, 0]),
        tensor([[1], [0]]),
        tensor([1.0, 0.0]),
    ],
)
def test_actions_may_be_lists_arrays_and_tensors(actions: Any) -> None:
    q = QNetwork(nn.Identity(), **QUIET)
    assert q(tensor([[1.0, 2.0], [3.0, 4.0]]), actions).tolist() == [2.0, 3.0]
    dist = QDist(nn.Identity(), None, 2, 2, 0, 1, **QUIET)
    logits = tensor([[1.0, 0.0, 0.25, 0.75], [0.5, 0.5, 1.0, 0.0]]).log()
    torch.testing.assert_close(dist(logits, actions), tensor([[0.25, 0.75], [0.5, 0.5]]))


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ([0.9, 1.0], "actions are whole numbers, found 0.9"),
        (tensor([0.0, float("nan")]), "actions are whole numbers, found nan"),
        ([1], "1 actions for 2 rows"),
        ([], "0 actions for 2 rows"),
        (["a", "b"], r"actions are whole numbers, found \['a', 'b'\]"),
        ([None, 0], r"actions are whole numbers, found \[None, 0\]"),
    ],
)
def test_actions_that_are_not_whole_or_not_as_many_as_rows_are_refused(
    actions: Any, said: str
) -> None:
    rows = torch.zeros(2, 4)
    for q in (QNetwork(nn.Identity(), **QUIET), QDist(nn.Identity(), None, 2, 2, 0, 1, **QUIET)):
        with pytest.raises(RequestError, match=said):
            q(rows, actions)


@pytest.mark.parametrize(
    ("actions", "said"),
    [([1, 2], "no action 2: there are 2, counted from 0"), ([-1, 1], "no action -1: there are 2")],
)
def test_actions_that_there_are_not_are_refused(actions: Any, said: str) -> None:
    q, dist = QNetwork(nn.Identity(), **QUIET), QDist(nn.Identity(), None, 2, 2, 0, 1, **QUIET)
    for values, rows in ((q, torch.zeros(2, 2)), (dist, torch.zeros(2, 4))):
        with pytest.raises(RequestError, match=said):
            values(rows, actions)


@pytest.mark.parametrize(
    ("terminated", "said"),
    [
        (tensor([0.0, 1.0]), "terminated is boolean, found torch.float32"),
        (tensor([True]), "1 values of terminated for 2 rows"),
    ],
)
def test_ends_that_are_no_booleans_or_not_as_many_as_rows_are_refused(
    terminated: Any, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        VNetwork(line(), **QUIET)(tensor([[1.0], [2.0]]), terminated)


def test_a_column_of_ends_is_read_row_by_row() -> None:
    v = VNetwork(line(), **QUIET)
    assert v(tensor([[1.0], [2.0]]), tensor([[False], [True]])).tolist() == [1.0, 0.0]


class State(dict[str, Any]):
    """Like the library's: a mapping with properties; its mask is 0 where an episode is over."""

    @property
    def observation(self) -> Any:
        return self["observation"]

    @property
    def mask(self) -> Any:
        return self["mask"]


@attrs.frozen
class FrozenState:
    observation: Any
    mask: Any


class NamedState(NamedTuple):
    observation: Any
    mask: Any


class Fixed:
    """A state whose observation cannot be set."""

    mask = tensor([1])

    @property
    def observation(self) -> Any:
        return X


def test_a_state_that_takes_no_other_observation_is_refused() -> None:
    body = line(3.0)
    features = FeatureNetwork(body, SGD(body.parameters(), 0.1), **QUIET)
    with pytest.raises(RequestError, match="cannot have other observations: ") as refused:
        features(Fixed())
    assert "try: features of state.observation" in refused.value.hints[0]


@pytest.mark.parametrize("kind", [State, SimpleNamespace, FrozenState, NamedState])
@pytest.mark.parametrize("mask", [tensor([1, 0]), tensor([1.0, 0.0]), tensor([True, False])])
def test_states_are_zero_where_their_mask_is(kind: Any, mask: Tensor) -> None:
    state = kind(observation=tensor([[1.0, 2.0], [3.0, 4.0]]), mask=mask)
    adds = nn.Linear(2, 1, bias=False)
    nn.init.constant_(adds.weight, 1.0)
    q = QNetwork(nn.Identity(), target=FixedTarget(1), **QUIET)
    for ask in (q, q.no_grad, q.eval, q.target):
        assert ask(state).tolist() == [[1.0, 2.0], [0.0, 0.0]]
        assert ask(state, [1, 1]).tolist() == [2.0, 0.0]
    assert q(state, [1, 1], [True, False]).tolist() == [0.0, 0.0]
    assert VNetwork(adds, **QUIET)(state).tolist() == [3.0, 0.0]
    both = nn.Linear(3, 1, bias=False)
    nn.init.constant_(both.weight, 1.0)
    assert QContinuous(both, **QUIET)(state, [[5.0], [5.0]]).tolist() == [8.0, 0.0]
    dist = QDist(nn.Identity(), None, n_actions=1, n_atoms=2, v_min=0, v_max=1, **QUIET)
    assert dist(state, [0, 0])[1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("kind", [State, SimpleNamespace, FrozenState, NamedState])
def test_features_of_a_state_are_a_state_that_keeps_its_mask(kind: Any) -> None:
    body, head = line(3.0), line()
    state = kind(observation=X, mask=tensor([1]))
    features = FeatureNetwork(body, SGD(body.parameters(), 0.1), target=FixedTarget(1), **QUIET)
    for seen in (features(state), features.eval(state), features.target(state)):
        assert type(seen) is kind
        assert (seen.observation.tolist(), seen.mask.tolist()) == ([[6.0]], [1])
    assert state.observation is X
    VNetwork(head, **QUIET)(features(state)).sum().backward()
    features.reinforce()
    assert body.weight.item() == pytest.approx(2.8)


def test_a_continuous_q_takes_both_side_by_side_and_is_zero_where_terminated() -> None:
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    q = QContinuous(model, **QUIET)
    observations, actions = tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([[10.0], [20.0]])
    assert q(observations, actions).tolist() == [13.0, 27.0]
    assert q(observations, actions, tensor([False, True])).tolist() == [13.0, 0.0]


def test_a_state_value_is_zero_where_terminated() -> None:
    v = VNetwork(line(3.0), **QUIET)
    assert v(tensor([[1.0], [2.0]])).tolist() == [3.0, 6.0]
    assert v(tensor([[1.0], [2.0]]), tensor([True, False])).tolist() == [0.0, 6.0]


def test_a_distributional_q_gives_probabilities_and_certain_zero_where_terminated() -> None:
    q = QDist(nn.Identity(), None, n_actions=2, n_atoms=3, v_min=-1, v_max=1, **QUIET)
    logits = tensor([[0.25, 0.25, 0.5, 1.0, 1.0, 2.0]]).log()
    assert q.atoms.tolist() == [-1.0, 0.0, 1.0]
    chances = q(logits)
    torch.testing.assert_close(chances, tensor([[[0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]]))
    torch.testing.assert_close(q(logits, tensor([1])), chances[:, 1])
    assert q(logits, tensor([0]), tensor([True])).tolist() == [[0.0, 1.0, 0.0]]
    three = QDist(nn.Identity(), None, n_actions=3, n_atoms=3, v_min=-1, v_max=1, **QUIET)
    ended = three(torch.zeros(2, 9), terminated=tensor([True, True]))
    assert ended.tolist() == [[[0.0, 1.0, 0.0]] * 3] * 2


def test_a_distributional_q_has_51_atoms_from_minus_10_to_10_without_other_ones() -> None:
    q = QDist(nn.Identity(), None, 2, **QUIET)
    torch.testing.assert_close(q.atoms, torch.arange(51) * 0.4 - 10)


def test_a_distributional_q_projects_onto_its_own_atoms() -> None:
    q = QDist(nn.Identity(), None, n_actions=1, n_atoms=3, v_min=-1, v_max=1, **QUIET)
    assert q.project(tensor([[0.5, 0.5]]), tensor([[0.5, 7.0]])).tolist() == [[0, 0.25, 0.75]]


def test_the_identity_learns_nothing_and_gives_what_it_is_given() -> None:
    identity = Identity("cpu")
    given = torch.ones(2, requires_grad=True)
    assert identity(given) is given
    assert identity.reinforce(given.sum()) is identity
    assert given.grad is None


def test_the_identity_takes_the_options_of_an_approximation(tmp_path: Path) -> None:
    identity = Identity("cpu", "same", writer=DummyWriter(tmp_path), target=FixedTarget(1))
    assert (identity.name, identity.device) == ("same", torch.device("cpu"))
    assert identity.target(X) is X
    assert identity.reinforce().step().zero_grad() is identity


def test_the_identity_saves_nothing_and_makes_no_folder(tmp_path: Path) -> None:
    identity = Identity(writer=DummyWriter(tmp_path / "runs"))
    for _ in range(201):
        identity.reinforce().step()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [QNetwork, QContinuous, VNetwork, QDist, FeatureNetwork])
@pytest.mark.parametrize(
    ("model", "found"), [(None, "None"), (nn.Linear, "the class Linear"), (abs, "builtin_function")]
)
def test_the_model_that_was_given_is_checked(kind: Any, model: Any, found: str) -> None:
    with pytest.raises(RequestError, match=f"must be an nn.Module, found {found}"):
        kind(model)


@pytest.mark.parametrize("kind", [QNetwork, QContinuous, VNetwork, FeatureNetwork])
def test_a_checkpointer_in_the_place_of_the_name_is_refused(kind: Any) -> None:
    with pytest.raises(RequestError) as told:
        kind(nn.Linear(1, 1), None, DummyCheckpointer())
    assert str(told.value).splitlines() == [
        f"the name of {kind.__name__} must be a str, found DummyCheckpointer.",
        "  the order is: model, optimizer, name; or give them by name",
    ]


def test_a_name_in_the_place_of_the_device_is_refused() -> None:
    with pytest.raises(RequestError, match="found 'features'") as told:
        Identity("features")
    assert told.value.hints == ("the order is: device, name; or give them by name",)


def test_returns_without_a_support_are_refused() -> None:
    with pytest.raises(RequestError) as told:
        QDist(nn.Identity(), None, DummyCheckpointer(), 1, 5, 5)  # type: ignore[arg-type]
    assert str(told.value).splitlines()[1:] == [
        "  the n_actions of approximation 'q_dist' must be a whole number from 1 on, "
        "found DummyCheckpointer.",
        "  the n_atoms of approximation 'q_dist' must be a whole number from 2 on, found 1.",
        "  the v_max of approximation 'q_dist' must be a finite number above v_min, found 5.",
        "  the order is: model, optimizer, n_actions, n_atoms; or give them by name",
    ]


def test_numbers_in_their_place_are_told_without_the_order_of_arguments() -> None:
    with pytest.raises(RequestError) as told:
        QDist(nn.Identity(), None, 0, 1)
    assert str(told.value).splitlines() == [
        "approximation 'q_dist' cannot be made: 2 problems.",
        "  the n_actions of approximation 'q_dist' must be a whole number from 1 on, found 0.",
        "  the n_atoms of approximation 'q_dist' must be a whole number from 2 on, found 1.",
    ]


def test_distributions_have_as_many_actions_as_a_space_counts() -> None:
    actions: Any = gymnasium.spaces.Discrete(2).n
    q = QDist(nn.Identity(), None, actions, n_atoms=3, **QUIET)
    assert q(torch.zeros(4, 6)).shape == (4, 2, 3)
