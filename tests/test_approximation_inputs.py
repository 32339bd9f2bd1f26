"""Value functions refuse inputs and outputs that they would misread, and say what they found."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn, tensor

from rlplug.approximation import DummyCheckpointer, QContinuous, QDist, QNetwork, VNetwork
from rlplug.errors import RequestError

QUIET: Any = {"checkpointer": DummyCheckpointer()}
TWO = tensor([[1.0, 2.0], [3.0, 4.0]])
NAN = float("nan")


def state(mask: Any) -> Any:
    return SimpleNamespace(observation=TWO, mask=mask)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3)])
@pytest.mark.parametrize("columns", [2, 4])
def test_values_of_several_columns_are_refused(shape: tuple[int, ...], columns: int) -> None:
    seen = torch.zeros(shape)
    found = re.escape(f"one value for each observation, found the shape {(*shape[:-1], columns)}")
    for model, ask in (
        (nn.Linear(3, columns), lambda one: VNetwork(one, None, **QUIET)(seen)),
        (nn.Linear(4, columns), lambda one: QContinuous(one, None, **QUIET)(seen, seen[..., :1])),
    ):
        with pytest.raises(RequestError, match=found):
            ask(model)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (1, 3), (2, 4, 3)])
def test_values_may_have_a_last_dimension_or_none(shape: tuple[int, ...]) -> None:
    seen = torch.zeros(shape)
    column = VNetwork(nn.Linear(3, 1), None, **QUIET)(seen)
    assert column.shape == shape[:-1]
    flat = VNetwork(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), None, **QUIET)
    assert flat(torch.zeros(5, 3)).shape == (5,)
    squeezed = VNetwork(nn.Sequential(nn.Linear(3, 6), nn.AvgPool1d(6), Squeeze()), None, **QUIET)
    assert squeezed(torch.zeros(2, 4, 3)).shape == (2, 4)


class Squeeze(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.squeeze(-1)


@pytest.mark.parametrize("seen", [TWO.numpy(), TWO.tolist(), {"a": TWO}], ids=lambda one: type(one))
def test_continuous_values_of_what_is_no_tensor_are_refused(seen: Any) -> None:
    q = QContinuous(nn.Linear(3, 1), None, **QUIET)
    said = rf"observations of approximation 'q' are a tensor, found {type(seen).__name__}\."
    for one in (seen, SimpleNamespace(observation=seen, mask=torch.ones(2))):
        with pytest.raises(RequestError, match=said):
            q(one, TWO[:, :1])


@pytest.fixture
def q() -> QNetwork:
    return QNetwork(nn.Identity(), **QUIET)


@pytest.fixture
def dist() -> QDist:
    return QDist(nn.Identity(), None, 2, 3, -1, 1, **QUIET)


@pytest.mark.parametrize("shape", [(2, 12), (4, 3), (2, 5), (5,), (2, 3, 6), (2, 2, 3)])
def test_distributions_of_another_width_are_refused(dist: QDist, shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=r"approximation 'q_dist' gives 6 columns") as told:
        dist(torch.zeros(shape))
    assert f"found the shape {shape}" in str(told.value)
    assert len(told.value.hints) == 1


def test_distributions_of_one_observation_and_of_none(dist: QDist) -> None:
    assert dist(torch.zeros(6)).shape == (1, 2, 3)
    assert dist(torch.zeros(0, 6), [], []).shape == (0, 3)


class Adds(nn.Module):
    """The sum of each row, whatever the type of its input."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.float().sum(-1, keepdim=True)


def test_actions_beside_whole_observations_keep_their_fractions() -> None:
    q = QContinuous(Adds(), **QUIET)
    for kind in (torch.uint8, torch.int64, torch.bool):
        observations = torch.ones(1, 1, dtype=kind)
        for actions in ([[-0.7]], [tensor([-0.7])], tensor([[-0.7]]), numpy.array([[-0.7]])):
            assert q(observations, actions).item() == pytest.approx(0.3)


def test_actions_beside_real_observations_take_their_type() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(model.weight, 1.0)
    q = QContinuous(model, **QUIET)
    assert q(torch.ones(1, 1).double(), tensor([[0.5]])).tolist() == [1.5]
    assert q(torch.ones(1, 1).double(), [[2]]).tolist() == [3.0]


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (None, "continuous actions are real numbers, found None"),
        ("a", "continuous actions are real numbers, found 'a'"),
        (["a", "b"], r"continuous actions are real numbers, found \['a', 'b'\]"),
        ([None, [1.0]], "continuous actions are real numbers, found"),
        (tensor([[1j], [0j]]), "continuous actions are real numbers, found torch.complex64"),
        ([], r"actions have the shape \(0,\) beside observations of \(2, 2\)"),
        ([0.5, 0.5], r"actions have the shape \(2,\) beside observations of \(2, 2\)"),
        ([[0.5], [0.5, 1.0]], "continuous actions are real numbers, found"),
        ([[0.5]], r"actions have the shape \(1, 1\) beside observations of \(2, 2\)"),
        (0.5, r"actions have the shape \(\) beside observations of \(2, 2\)"),
    ],
)
def test_continuous_actions_that_do_not_fit_are_refused(actions: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as told:
        QContinuous(nn.Linear(3, 1), **QUIET)(TWO, actions)
    assert len(told.value.hints) == 1


def test_no_observations_have_no_continuous_actions() -> None:
    q = QContinuous(nn.Linear(3, 1), **QUIET)
    assert q(TWO[:0], torch.zeros(0, 1)).shape == (0,)
    with pytest.raises(RequestError, match=r"the shape \(0,\)"):
        q(TWO[:0], [])


def test_discrete_actions_that_are_complex_are_refused(q: QNetwork) -> None:
    with pytest.raises(RequestError, match=r"whole numbers, found torch\.complex64"):
        q(TWO, tensor([1j, 0]))


@pytest.mark.parametrize(
    "ask",
    [
        {"terminated": [True, False]},
        {"actions": 1},
        {"actions": [1]},
        {"actions": [1, 0], "terminated": [True, False]},
    ],
)
def test_values_of_one_observation_have_no_rows(q: QNetwork, ask: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"one row for each observation, found .* \(2,\)") as e:
        q(TWO[0], **ask)
    assert e.value.hints == ("try: observations.unsqueeze(0)",)
    assert q(TWO[0]).tolist() == [1.0, 2.0]


def test_values_of_more_than_rows_and_columns_are_refused(q: QNetwork) -> None:
    for ask in ({"actions": [0, 1]}, {"terminated": [True, False]}):
        with pytest.raises(RequestError, match=r"each observation, found .* \(2, 3, 4\)"):
            q(torch.ones(2, 3, 4), **ask)


def test_the_value_of_one_row_without_columns_is_one_value() -> None:
    v = VNetwork(nn.Flatten(0), **QUIET)
    assert v(tensor([[5.0]]), [False]).tolist() == [5.0]
    assert v(tensor([[5.0]]), [True]).tolist() == [0.0]
    with pytest.raises(RequestError, match="2 values of terminated for 1 row"):
        v(tensor([[5.0]]), [True, False])


@pytest.mark.parametrize("kind", [QNetwork, VNetwork, QContinuous, QDist])
def test_models_that_give_no_tensor_are_refused(kind: Any) -> None:
    inputs = (TWO, TWO) if kind is QContinuous else (TWO,)
    model = nn.LSTM(4 if kind is QContinuous else 2, 1)
    with pytest.raises(RequestError, match="model of approximation 'q' gives tensors, found a tu"):
        kind(model, name="q", **QUIET)(*inputs)


@pytest.mark.parametrize(
    ("probabilities", "positions", "said"),
    [
        ([[0.5, 0.5]], [[0.0, 1.0]], "are tensors, found list"),
        (tensor([[0.5, 0.5]]), tensor([[0.0]]), r"found \(1, 2\) and \(1, 1\)"),
        (tensor([0.5, 0.5]), tensor([0.0, 1.0]), r"found \(2,\) and \(2,\)"),
        (tensor([[0.5, 0.5]]), tensor([[NAN, 0.0]]), "the positions that .* have NaN"),
        (tensor([[NAN, 0.5]]), tensor([[0.0, 0.0]]), "the probabilities that .* have NaN"),
    ],
)
def test_what_cannot_be_projected_is_refused(
    dist: QDist, probabilities: Any, positions: Any, said: str
) -> None:
    with pytest.raises(RequestError, match=said) as told:
        dist.project(probabilities, positions)
    assert "'q_dist'" in str(told.value)
    assert len(told.value.hints) == 1


def test_positions_that_are_infinite_lie_beyond_an_end(dist: QDist) -> None:
    ends = tensor([[-float("inf"), float("inf")]])
    assert dist.project(tensor([[0.25, 0.75]]), ends).tolist() == [[0.25, 0.0, 0.75]]


@pytest.mark.parametrize("mask", [tensor([NAN, 1.0]), [NAN, 1.0], numpy.array([1.0, NAN])])
def test_a_mask_that_is_no_number_is_refused(q: QNetwork, mask: Any) -> None:
    with pytest.raises(RequestError, match="the mask has NaN") as told:
        q(state(mask))
    assert told.value.hints == ("try: 0 where the episode is terminated, 1 elsewhere",)


@pytest.mark.parametrize("mask", [None, "ab", [None, 1]])
def test_a_mask_that_is_none_is_refused(q: QNetwork, mask: Any) -> None:
    with pytest.raises(RequestError, match="the mask is a number for each row, found "):
        q(state(mask))


@pytest.mark.parametrize(
    ("terminated", "found", "hint"),
    [
        ("ab", "'ab'", "one True or False for each row"),
        ([None, True], "[None, True]", "one True or False for each row"),
        ([0, 1], "[0, 1]", "torch.tensor(terminated).bool()"),
        (numpy.array([0, 1]), "array([0, 1])", "torch.tensor(terminated).bool()"),
        (tensor([0, 1]), "torch.int64", "terminated.bool()"),
    ],
)
def test_ends_that_are_no_booleans_are_named_as_they_were_given(
    q: QNetwork, terminated: Any, found: str, hint: str
) -> None:
    with pytest.raises(RequestError) as told:
        q(TWO, terminated=terminated)
    said = f"terminated is boolean, found {found}."
    assert (told.value.message, told.value.hints) == (said, (f"try: {hint}",))


def test_an_empty_list_is_no_rows(q: QNetwork) -> None:
    assert q(TWO[:0], [], []).shape == (0,)
    assert VNetwork(nn.Linear(2, 1), **QUIET)(TWO[:0], []).shape == (0,)
    with pytest.raises(RequestError, match="0 values of terminated for 2 rows"):
        q(TWO, terminated=[])
