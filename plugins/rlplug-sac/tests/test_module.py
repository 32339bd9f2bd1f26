"""The modules: how they act, within which bounds, and what they know of masks."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_sac import SACConfig, SACModule, TD3Config, TD3Module
from rlplug_sac.actions import BoxActions
from torch import nn, tensor

from rlplug import ActInput

LINE = spaces.Box(-10, 10, (2,), numpy.float32)
WIDE = spaces.Box(numpy.array([[-2.0, 0.0]]), numpy.array([[2.0, 10.0]]), (1, 2), numpy.float64)
FIVE = spaces.Discrete(5, start=3)


def sac(space: Any = WIDE, **options: Any) -> SACModule:
    torch.manual_seed(0)
    return SACModule(LINE, space, SACConfig(**{"net_arch": (8,), **options}))


def td3(space: Any = WIDE, **options: Any) -> TD3Module:
    torch.manual_seed(0)
    return TD3Module(LINE, space, TD3Config(**{"net_arch": (8,), **options}))


def seen(rows: int = 200, timestep: int = 1_000, seed: int = 0, **more: Any) -> ActInput:
    random = numpy.random.default_rng(seed)
    observations = random.standard_normal((rows, 2), numpy.float32)
    return ActInput(observations, timestep=timestep, random=random, **more)


def last_bias(network: nn.Module, values: list[float]) -> None:
    """Let a network give the same outputs whatever it sees."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        list(network.parameters())[-1].copy_(tensor(values))


@pytest.mark.parametrize("make", [sac, td3])
def test_before_learning_starts_actions_are_uniform(make: Any) -> None:
    module = make(learning_starts=10)
    last_bias(module.actor, [9.0, 9.0, -3.0, -3.0] if make is sac else [9.0, 9.0])
    actions = module.forward_exploration(seen(20_000, timestep=9)).actions.reshape(-1, 2)
    assert actions.mean(0) == pytest.approx([0.0, 5.0], abs=0.1)
    # The deviation of uniform numbers is their range / √12.
    assert actions.std(0) == pytest.approx([4 / 12**0.5, 10 / 12**0.5], rel=0.02)
    after = module.forward_exploration(seen(200, timestep=10)).actions.reshape(-1, 2)
    assert after.mean(0) == pytest.approx([2.0, 10.0], rel=0.1)


def test_td3_explores_with_noise_of_the_deviation_asked_for() -> None:
    module = td3(action_noise=0.05)
    last_bias(module.actor, [0.0, 0.0])
    actions = module.forward_exploration(seen(20_000)).actions.reshape(-1, 2)
    # Of scaled actions: 2 and 5 in the units of the environment are 1.
    assert actions.std(0) == pytest.approx([0.05 * 2, 0.05 * 5], rel=0.02)
    assert actions.mean(0) == pytest.approx([0.0, 5.0], abs=0.02)


def test_td3_gives_its_actor_stretched_over_the_bounds() -> None:
    module = td3()
    last_bias(module.actor, [0.5, -0.5])
    action = module.forward_inference(seen(1)).actions[0, 0]
    assert action == pytest.approx([2 * numpy.tanh(0.5), 5 + 5 * numpy.tanh(-0.5)])


@pytest.mark.parametrize("timestep", [0, 1_000])
def test_discrete_actions_are_drawn_as_often_as_their_log_probabilities_say(timestep: int) -> None:
    module = sac(FIVE, learning_starts=10)
    last_bias(module.actor, numpy.log([1.0, 2.0, 3.0, 4.0, 5.0]).tolist())
    mask = numpy.tile(numpy.array([1, 0, 1, 1, 1], numpy.int8), (20_000, 1))
    act = seen(20_000, timestep=timestep, action_mask=mask, wants_log_prob=True)
    acted = module.forward_exploration(act)
    # Of 1, 3, 4 and 5, which add up to 13; at random, of four.
    said = [1 / 13, 0, 3 / 13, 4 / 13, 5 / 13] if timestep else [1 / 4, 0, 1 / 4, 1 / 4, 1 / 4]
    drawn = numpy.bincount(acted.actions - 3, minlength=5) / 20_000
    assert drawn == pytest.approx(said, abs=0.015)
    expected = numpy.array(said)[acted.actions - 3]
    assert numpy.exp(acted.extras["log_prob"]) == pytest.approx(expected, rel=1e-5)


def test_scaled_actions_lie_between_minus_one_and_one() -> None:
    box = BoxActions(WIDE)
    actions = tensor([[[-2.0, 0.0]], [[0.0, 5.0]], [[1.0, 10.0]]])
    assert box.scaled(actions).tolist() == [[-1.0, -1.0], [0.0, 0.0], [0.5, 1.0]]
    numpy.testing.assert_allclose(box.for_env(box.scaled(actions).numpy()), actions)
    assert box.for_env(numpy.zeros((1, 2))).dtype == numpy.float64


def test_a_fixed_coefficient_is_no_parameter() -> None:
    module = sac(ent_coef=0.25)
    assert module.log_ent_coef is None
    assert module.temperature().item() == 0.25
    assert sac(ent_coef_init=0.5).temperature().item() == pytest.approx(0.5)


def test_the_critics_share_an_encoder_and_nothing_else() -> None:
    image = spaces.Box(0, 255, (3, 40, 40), numpy.uint8)
    module = SACModule(image, WIDE, SACConfig(net_arch=(8,)))
    critics = module.critics
    encoders = {id(one) for one in critics.body.parameters()}
    heads = [{id(one) for one in head.parameters()} for head in (critics.first, critics.second)]
    assert encoders
    assert not heads[0] & heads[1]
    assert {id(one) for one in critics.parameters()} == encoders | heads[0] | heads[1]
    assert not {id(one) for one in module.actor.parameters()} & encoders
