"""Targets and losses, worked by hand: a row that goes on, a truncated one, a terminated one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from rlplug_dqn.losses import (
    conservative_penalty,
    distributional_target,
    greedy_actions,
    quantile_huber,
    quantile_target,
    td_loss,
    td_target,
)
from torch import tensor

REWARDS = tensor([1.0, 1.0, 1.0])
TERMINATED = tensor([False, False, True])
HALF = torch.full((3,), 0.5)


def test_one_step_targets_discount_what_follows_unless_the_episode_terminated() -> None:
    # The second row was truncated: 1 + 0.5 * 6. The third terminated: 1.
    values = tensor([4.0, 6.0, 8.0])
    assert td_target(REWARDS, HALF, TERMINATED, values).tolist() == [3.0, 4.0, 1.0]


def test_n_step_targets_discount_by_the_steps_that_were_taken() -> None:
    # Three steps of reward 1 at gamma 0.5 are 1.75, and what follows counts 0.125; an episode
    # truncated after two steps gives 1.5 and 0.25; one terminated after one step gives 1.
    rewards, discounts = tensor([1.75, 1.5, 1.0]), tensor([0.125, 0.25, 0.5])
    targets = td_target(rewards, discounts, TERMINATED, tensor([8.0, 8.0, 8.0]))
    assert targets.tolist() == [2.75, 3.5, 1.0]


def test_the_greedy_action_is_one_that_is_allowed() -> None:
    values = tensor([[1.0, 5.0, 3.0], [1.0, 5.0, 3.0]])
    assert greedy_actions(values, None).tolist() == [1, 1]
    assert greedy_actions(values, tensor([[True, False, True], [1, 0, 0]]).bool()).tolist() == [
        2,
        0,
    ]


def test_distributional_targets_move_all_chances_and_keep_them_on_the_atoms() -> None:
    # Atoms at 0, 1, 2; the chances are a quarter, a quarter and a half, the mean is 1.25.
    support = tensor([0.0, 1.0, 2.0])
    chances = tensor([[0.25, 0.25, 0.5]] * 3)
    targets = distributional_target(REWARDS, HALF, TERMINATED, chances, support)
    # 1 + 0.5 * (0, 1, 2) = 1, 1.5, 2: what lies at 1.5 goes to both sides, 0.125 each. So it is for
    # the truncated row. The terminated one is worth 1 for certain.
    assert targets.tolist() == [[0.0, 0.375, 0.625], [0.0, 0.375, 0.625], [0.0, 1.0, 0.0]]
    assert (targets @ support).tolist() == [1 + 0.5 * 1.25, 1 + 0.5 * 1.25, 1.0]


def test_quantile_targets_move_every_quantile() -> None:
    quantiles = tensor([[0.0, 4.0]] * 3)
    targets = quantile_target(REWARDS, HALF, TERMINATED, quantiles)
    assert targets.tolist() == [[1.0, 3.0], [1.0, 3.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("kind", "losses"),
    [
        # 0.5 * 0.25 below the bend at 1, and 3 - 0.5 above it.
        ("huber", [0.125, 2.5]),
        ("mse", [0.25, 9.0]),
    ],
)
def test_losses_of_values_are_those_that_were_named(kind: str, losses: list[float]) -> None:
    assert td_loss(tensor([0.5, -3.0]), tensor([1.0, 0.0]), kind).tolist() == losses


def test_quantile_losses_weigh_errors_by_their_side() -> None:
    # One quantile at 0.75. The target lies 0.5 above: 0.75 * 0.125; then 3 below: 0.25 * 2.5.
    at = tensor([[0.0]])
    fractions = tensor([0.75])
    above = quantile_huber(at, tensor([[0.5]]), fractions)
    below = quantile_huber(at, tensor([[-3.0]]), fractions)
    assert above.item() == pytest.approx(0.75 * 0.125)
    assert below.item() == pytest.approx(0.25 * 2.5)
    # Averaged over targets, summed over quantiles.
    both = quantile_huber(tensor([[0.0, 0.0]]), tensor([[0.5, -3.0]]), tensor([0.75, 0.75]))
    assert both.item() == pytest.approx(2 * (above.item() + below.item()) / 2)


def test_no_gradient_flows_through_the_weights_of_quantile_losses() -> None:
    at = tensor([[0.0]], requires_grad=True, dtype=torch.float64)

    def loss(value: Any) -> Any:
        return quantile_huber(value, tensor([[0.4, -0.3]], dtype=torch.float64), tensor([0.9]))

    assert torch.autograd.gradcheck(loss, (at,))


def test_the_conservative_penalty_is_the_gap_to_all_allowed_actions() -> None:
    values = tensor([[0.0, 0.0], [math.log(3.0), 0.0]])
    penalties = conservative_penalty(values, tensor([0, 0]), None)
    assert penalties.tolist() == pytest.approx([math.log(2.0), math.log(4.0 / 3.0)])
    allowed = tensor([[True, False], [True, True]])
    masked = conservative_penalty(values, tensor([0, 0]), allowed)
    assert masked.tolist() == pytest.approx([0.0, math.log(4.0 / 3.0)])
