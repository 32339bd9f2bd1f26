"""Heads combine their parts as the papers say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

from rlplug.nn import (
    ContinuousQHead,
    DistributionalHead,
    PolicyHead,
    QHead,
    QuantileHead,
    Streams,
    make_distribution,
    project,
)


def set_constant(stream: Any, values: list[float]) -> None:
    with torch.no_grad():
        stream[-1].weight.zero_()
        stream[-1].bias.copy_(tensor(values))


def test_a_dueling_head_adds_what_an_action_has_above_the_mean() -> None:
    head = QHead(2, 3, Streams(dueling=True))
    set_constant(head.advantage, [1.0, 2.0, 6.0])
    set_constant(head.value, [10.0])
    assert head(torch.zeros(1, 2)).tolist() == [[8.0, 9.0, 13.0]]


def test_a_dueling_head_of_distributions_compares_atom_by_atom() -> None:
    head = DistributionalHead(2, 2, Streams(dueling=True), atoms=2, v_min=0, v_max=1)
    set_constant(head.advantage, [1.0, 0.0, 3.0, 0.0])
    set_constant(head.value, [5.0, 7.0])
    assert head(torch.zeros(1, 2)).tolist() == [[[4.0, 7.0], [6.0, 7.0]]]


def test_the_value_of_a_distribution_is_its_mean() -> None:
    head = DistributionalHead(2, 1, atoms=3, v_min=-1, v_max=1)
    logits = tensor([0.25, 0.25, 0.5]).log()[None, None]
    assert head.values(logits).tolist() == [[0.25]]


def test_the_value_of_quantiles_is_their_mean_and_their_fractions_lie_in_the_middle() -> None:
    head = QuantileHead(2, 1, atoms=4)
    assert head.values(tensor([[[1.0, 2.0, 3.0, 6.0]]])).tolist() == [[3.0]]
    assert head.fractions.tolist() == [0.125, 0.375, 0.625, 0.875]


def test_a_continuous_value_depends_on_the_action() -> None:
    head = ContinuousQHead(2, 3)
    features = torch.zeros(1, 2)
    one, other = head(features, torch.zeros(1, 3)), head(features, torch.ones(1, 3))
    assert one.shape == (1,)
    assert one.item() != other.item()


def test_standard_deviations_are_numbers_of_their_own_or_outputs() -> None:
    box = make_distribution(spaces.Box(-1, 1, (2,)))
    free = PolicyHead(3, box, std_init=0.5)
    assert free(torch.randn(4, 3))[:, 2:].exp().tolist() == [pytest.approx([0.5, 0.5])] * 4
    assert [name for name, _ in free.named_parameters()] == [
        "log_std",
        "linear.weight",
        "linear.bias",
    ]
    dependent = PolicyHead(3, box, state_dependent_std=True, std_init=0.5)
    assert dependent(torch.zeros(1, 3))[0, 2:].exp().tolist() == pytest.approx([0.5, 0.5])
    assert dependent(torch.randn(2, 3))[:, 2:].unique().numel() == 4


@pytest.mark.parametrize(
    ("mass", "positions", "projected"),
    [
        # On an atom it stays, between two it goes to both.
        ([0.5, 0.25, 0.25], [1.0, 2.25, 3.0], [0.0, 0.5, 0.1875, 0.3125]),
        # Beyond an end it goes to the end.
        ([0.25, 0.75], [-7.0, 9.0], [0.25, 0, 0, 0.75]),
        # What does not move stays as it is.
        ([0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 2.0, 3.0], [0.1, 0.2, 0.3, 0.4]),
        # A terminated row has all of it at its reward.
        ([0.25] * 4, [1.5] * 4, [0, 0.5, 0.5, 0]),
    ],
)
def test_mass_goes_to_its_neighbours(
    mass: list[float], positions: list[float], projected: list[float]
) -> None:
    support = tensor([0.0, 1.0, 2.0, 3.0])
    assert project(tensor([mass]), tensor([positions]), support).tolist() == [
        pytest.approx(projected)
    ]


@given(
    reward=st.floats(-30, 30),
    gamma=st.floats(0, 1),
    atoms=st.integers(2, 51),
    seed=st.integers(0, 1000),
)
def test_projection_keeps_all_mass_and_the_mean_where_nothing_is_clamped(
    reward: float, gamma: float, atoms: int, seed: int
) -> None:
    support = torch.linspace(-10, 10, atoms, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(3, atoms, generator=draw, dtype=torch.float64)
    probabilities /= probabilities.sum(1, keepdim=True)
    positions: Tensor = (reward + gamma * support).expand(3, atoms)
    projected = project(probabilities, positions, support)
    assert (projected >= 0).all()
    torch.testing.assert_close(projected.sum(1), torch.ones(3, dtype=torch.float64))
    mean = (projected * support).sum(1)
    clamped = (probabilities * positions.clamp(-10, 10)).sum(1)
    torch.testing.assert_close(mean, clamped, atol=1e-9, rtol=0)
