"""Value functions and features of observations and of States: what is 0, what is refused."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs
import numpy
import pytest
import torch
from torch import Tensor, nn, tensor
from torch.optim import SGD

from rlplug.approximation import (
    DummyCheckpointer,
    FeatureNetwork,
    FixedTarget,
    QContinuous,
    QDist,
    QNetwork,
    VNetwork,
)
from rlplug.errors import RequestError
from tests.learner.small import line

X = tensor([[2.0]])
QUIET: Any = {"checkpointer": DummyCheckpointer()}


def test_a_q_network_is_zero_where_terminated_when_it_is_told() -> None:
    q = QNetwork(nn.Identity(), target=FixedTarget(1), **QUIET)
    values, terminated = tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([False, True])
    for ask in (q, q.no_grad, q.eval, q.target):
        assert ask(values, terminated=terminated).tolist() == [[1.0, 2.0], [0.0, 0.0]]
        assert ask(values, [1, 1], terminated).tolist() == [2.0, 0.0]
        assert ask(values, [1, 1], [True, False]).tolist() == [0.0, 4.0]


@pytest.mark.parametrize("columns", [2, 4])
def test_values_of_several_columns_are_refused(columns: int) -> None:
    for shape in ((4, 3), (2, 4, 3)):
        seen = torch.zeros(shape)
        found = re.escape(f"for each observation, found the shape {(*shape[:-1], columns)}")
        with pytest.raises(RequestError, match=found):
            VNetwork(nn.Linear(3, columns), **QUIET)(seen)
        with pytest.raises(RequestError, match=found):
            QContinuous(nn.Linear(4, columns), **QUIET)(seen, seen[..., :1])


class Adds(nn.Module):
    """The sum of each row, whatever the type of its input."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.float().sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("actions", [[[-0.7]], tensor([[-0.7]]), numpy.array([[-0.7]])])
def test_continuous_actions_keep_their_fractions(dtype: torch.dtype, actions: Any) -> None:
    q = QContinuous(Adds(), **QUIET)
    assert q(torch.ones(1, 1, dtype=dtype), actions).item() == pytest.approx(0.3)
    with pytest.raises(RuntimeError):
        q(torch.ones(2, 1, dtype=dtype), actions)


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
    for terminated in (tensor([True, False]), tensor([[True], [False]]), [True, False]):
        assert v(tensor([[1.0], [2.0]]), terminated).tolist() == [0.0, 6.0]


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
