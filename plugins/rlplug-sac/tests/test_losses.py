"""Targets and losses, with numbers that a reader can check by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_sac import SACConfig, SACModule, TD3Config, TD3Module
from rlplug_sac.losses import (
    critic_loss,
    expected_values,
    sac_loss,
    sac_targets,
    smoothed,
    td3_loss,
    td3_targets,
)
from torch import nn, tensor

from rlplug import Batch, Loss

LINE = spaces.Box(-10, 10, (2,), numpy.float32)
ONE = spaces.Box(-1, 1, (1,), numpy.float32)
THREE = spaces.Discrete(3)
SAC_OPTIMIZERS = ("critic", "actor", "temperature")

AT_0 = 0.5 * math.log(2 * math.pi)
"""Minus the log-density of a standard normal number at 0, where tanh has the slope 1."""


def constant(network: nn.Module, values: list[float]) -> None:
    """Let a network give the same outputs whatever it sees."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        list(network.parameters())[-1].copy_(tensor(values))


def made(space: Any = ONE, **options: Any) -> SACModule:
    """A policy of mean 0 and deviation 1, or of equal chances; critics that say 2 and 1."""
    module = SACModule(LINE, space, SACConfig(**{"net_arch": (4,), **options}))
    width = 1 if space is ONE else 3
    constant(module.actor, [0.0] * (2 if space is ONE else 3))
    constant(module.critics.first, [2.0] * width)
    constant(module.critics.second, [1.0] * width)
    module.target.copy()
    return module


def linear(module: TD3Module) -> None:
    """Let both critics value an action by itself, the second one by 1 more."""
    with torch.no_grad():
        for offset, head in enumerate((module.critics.first, module.critics.second)):
            constant(head, [0.0])
            into, out = head.advantage[0], head.advantage[-1]
            # A hidden unit of action + 2 is never cut off by ReLU.
            into.weight[0, -1], into.bias[0] = 1.0, 2.0
            out.weight[0, 0], out.bias[0] = 1.0, -2.0 + offset
    module.critics_target.copy()


def made_td3(**options: Any) -> TD3Module:
    """An actor that always says 0, and critics that say what the action is."""
    module = TD3Module(LINE, ONE, TD3Config(**{"net_arch": (4,), **options}))
    constant(module.actor, [0.0])
    module.actor_target.copy()
    linear(module)
    return module


def rows(**columns: Any) -> Batch:
    """Three rows: one that goes on, a truncated one, a terminated one."""
    given = {
        "observations": torch.zeros(3, 2),
        "next_observations": torch.zeros(3, 2),
        "actions": torch.zeros(3, 1),
        "rewards": torch.ones(3),
        "terminated": tensor([False, False, True]),
        "truncated": tensor([False, True, False]),
        "discounts": torch.full((3,), 0.5),
        "targets": torch.full((3,), 4.0),
        "noise": torch.zeros(3, 1),
    }
    return Batch({**given, **columns})


def loss_of(module: SACModule, batch: Batch, optimizers: tuple[str, ...] = SAC_OPTIMIZERS) -> Loss:
    return sac_loss(module, batch, module.forward_train(batch), optimizers)


def parts_of(loss: Loss | None) -> dict[str, Any]:
    """The loss of each optimizer."""
    assert loss is not None
    assert isinstance(loss.value, dict)
    return {name: part.item() for name, part in loss.value.items()}


def test_targets_add_the_lower_value_and_the_entropy_and_end_where_episodes_terminate() -> None:
    module = made(ent_coef=0.5)
    targets = sac_targets(module, rows(), 0.99, torch.zeros(3, 1))
    on = 1 + 0.5 * (1 + 0.5 * AT_0)
    assert targets.tolist() == pytest.approx([on, on, 1.0])


def test_the_entropy_of_a_draw_has_the_correction_of_tanh() -> None:
    module = made(ent_coef=1.0)
    targets = sac_targets(module, rows(), 0.99, torch.full((3, 1), 0.5))
    density = math.exp(-0.125) / math.sqrt(2 * math.pi) / (1 - math.tanh(0.5) ** 2)
    assert targets[0].item() == pytest.approx(1 + 0.5 * (1 - math.log(density)))


def test_the_loss_of_the_critics_is_half_the_sum_of_their_squared_errors() -> None:
    assert critic_loss(tensor([2.0]), tensor([1.0]), tensor([4.0])).item() == 0.5 * (4 + 9)
    assert parts_of(loss_of(made(), rows()))["critic"] == pytest.approx(6.5)


def test_the_actor_is_rewarded_for_the_lower_value_and_for_entropy() -> None:
    parts = parts_of(loss_of(made(ent_coef=0.5), rows(), ("critic", "actor")))
    assert parts["actor"] == pytest.approx(-(1 + 0.5 * AT_0))


def test_the_loss_of_the_critics_does_not_move_the_actor() -> None:
    module = made()
    loss = loss_of(module, rows())
    assert isinstance(loss.value, dict)
    found = torch.autograd.grad(
        loss.value["critic"], list(module.actor.parameters()), allow_unused=True
    )
    assert all(gradient is None for gradient in found)


@pytest.mark.parametrize(("target", "sign"), [(AT_0 - 0.5, 0.5), (AT_0 + 0.5, -0.5)])
def test_the_temperature_falls_where_entropy_is_above_its_target_and_rises_below(
    target: float, sign: float
) -> None:
    module = made(target_entropy=target, ent_coef_init=math.e)
    loss = loss_of(module, rows())
    assert isinstance(loss.value, dict)
    (gradient,) = torch.autograd.grad(loss.value["temperature"], [module.log_ent_coef])
    # An optimizer goes against it. The loss is the logarithm, 1, times the excess.
    assert gradient.item() == pytest.approx(sign)
    assert loss.value["temperature"].item() == pytest.approx(sign)


def test_auto_aims_at_minus_one_for_each_number_of_an_action() -> None:
    space = spaces.Box(-1, 1, (2, 3), numpy.float32)
    module = SACModule(LINE, space, SACConfig(net_arch=(4,)))
    assert module.excess_entropy(tensor([-6.0, 0.0]), None).tolist() == [0.0, 6.0]


def test_auto_aims_at_a_share_of_the_largest_entropy_that_a_mask_allows() -> None:
    module = made(THREE)
    most = tensor([math.log(3), math.log(2), 0.0])
    assert (most - module.excess_entropy(most, None))[0].item() == pytest.approx(0.89 * math.log(3))
    mask = tensor([[1, 1, 1], [1, 0, 1], [0, 1, 0]], dtype=torch.int8)
    wanted = most - module.excess_entropy(most, mask)
    assert wanted.tolist() == pytest.approx([0.89 * math.log(3), 0.89 * math.log(2), 0.0])


def test_discrete_values_are_means_under_the_policy() -> None:
    module = SACModule(LINE, spaces.Discrete(2), SACConfig(net_arch=(4,)))
    logits = tensor([[0.0, math.log(3)]])
    values, entropy = expected_values(
        module, logits, tensor([[4.0, 2.0]]), tensor([[3.0, 5.0]]), None
    )
    assert values.item() == pytest.approx(0.25 * 3 + 0.75 * 2)
    assert entropy.item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


def test_discrete_targets_look_at_allowed_actions_only() -> None:
    module = made(THREE, ent_coef=1.0)
    mask = tensor([[True, True, True], [True, False, True], [False, True, False]])
    targets = sac_targets(module, rows(next_action_mask=mask), 0.99, None)
    wanted = [1 + 0.5 * (1 + math.log(3)), 1 + 0.5 * (1 + math.log(2)), 1.0]
    assert targets.tolist() == pytest.approx(wanted)


def test_the_noise_of_target_actions_is_scaled_and_clipped() -> None:
    noise = smoothed(tensor([0.5, 3.0, -9.0]), 0.2, 0.5)
    assert noise.tolist() == pytest.approx([0.1, 0.5, -0.5])


def test_td3_targets_take_the_lower_value_of_the_target_action_with_noise() -> None:
    noise = tensor([[0.25], [-0.5], [0.25]])
    targets = td3_targets(made_td3(), rows(), 0.99, noise)
    assert targets.tolist() == pytest.approx([1 + 0.5 * 0.25, 1 - 0.5 * 0.5, 1.0])


def test_the_actor_of_td3_climbs_the_first_critic() -> None:
    module = made_td3(policy_delay=1)
    batch = rows()
    loss = td3_loss(module, batch, module.forward_train(batch), ("critic", "actor"))
    assert parts_of(loss)["actor"] == pytest.approx(0.0)
    assert loss is not None
    assert isinstance(loss.value, dict)
    bias = list(module.actor.parameters())[-1]
    (gradient,) = torch.autograd.grad(loss.value["actor"], [bias])
    # The value rises by 1 with the action, and that by 1 with the input of tanh at 0.
    assert gradient.tolist() == pytest.approx([-1.0])


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_the_actor_is_left_out_of_the_losses_until_its_turn(delay: int) -> None:
    module = made_td3(policy_delay=delay)
    batch = rows()
    named = []
    for _ in range(6):
        loss = td3_loss(module, batch, module.forward_train(batch), ("critic", "actor"))
        named.append("actor" in parts_of(loss))
        module.actor_target.update()
        module.critics_target.update()
    assert named == [turn % delay == 0 for turn in range(1, 7)]
