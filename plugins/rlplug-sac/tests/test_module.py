"""The modules: how they act, within which bounds, and what they know of masks."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_sac import SACConfig, SACModule, TD3Config, TD3Module
from rlplug_sac.actions import BoxActions
from torch import distributions, nn, tensor

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
@pytest.mark.parametrize("timestep", [0, 1_000])
def test_actions_lie_within_their_bounds_in_their_shape(make: Any, timestep: int) -> None:
    module = make(learning_starts=10)
    for acted in (
        module.forward_exploration(seen(timestep=timestep)),
        module.forward_inference(seen()),
    ):
        assert acted.actions.shape == (200, 1, 2)
        assert all(action in WIDE for action in acted.actions)


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


def test_td3_without_noise_explores_as_it_infers() -> None:
    module = td3(action_noise=0.0)
    acted = module.forward_exploration(seen())
    numpy.testing.assert_array_equal(acted.actions, module.forward_inference(seen()).actions)


def test_td3_gives_its_actor_stretched_over_the_bounds() -> None:
    module = td3()
    last_bias(module.actor, [0.5, -0.5])
    action = module.forward_inference(seen(1)).actions[0, 0]
    assert action == pytest.approx([2 * numpy.tanh(0.5), 5 + 5 * numpy.tanh(-0.5)])


def test_sac_infers_the_squashed_mean() -> None:
    module = sac()
    last_bias(module.actor, [0.5, -0.5, 1.0, 1.0])
    action = module.forward_inference(seen(1)).actions[0, 0]
    assert action == pytest.approx([2 * numpy.tanh(0.5), 5 + 5 * numpy.tanh(-0.5)])


@pytest.mark.parametrize("make", [sac, td3])
def test_an_exported_policy_acts_as_the_module_does(make: Any) -> None:
    module, act = make(), seen()
    exported = module.forward_export(ActInput(torch.as_tensor(act.observations)))
    numpy.testing.assert_allclose(
        exported.actions.detach().numpy(),
        module.forward_inference(act).actions,
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("timestep", [0, 1_000])
def test_masked_actions_are_never_chosen(timestep: int) -> None:
    module = sac(FIVE, learning_starts=10)
    random = numpy.random.default_rng(1)
    mask = (random.random((500, 5)) < 0.4).astype(numpy.int8)
    mask[:, 2] = 1
    act = seen(500, timestep=timestep, action_mask=mask)
    for method in (module.forward_exploration, module.forward_inference):
        chosen = method(act).actions - 3
        assert mask[numpy.arange(500), chosen].all()
    exported = module.forward_export(
        ActInput(torch.as_tensor(act.observations), torch.as_tensor(mask))
    )
    numpy.testing.assert_array_equal(exported.actions, module.forward_inference(act).actions)


def test_random_discrete_actions_are_uniform_among_those_allowed() -> None:
    module = sac(FIVE, learning_starts=10)
    mask = numpy.tile(numpy.array([1, 0, 1, 1, 1], numpy.int8), (20_000, 1))
    actions = module.forward_exploration(seen(20_000, timestep=0, action_mask=mask)).actions
    shares = numpy.bincount(actions - 3, minlength=5) / 20_000
    assert shares == pytest.approx([0.25, 0.0, 0.25, 0.25, 0.25], abs=0.015)


@pytest.mark.parametrize("space", [WIDE, spaces.Box(-1, 1, (1, 2), numpy.float32)])
def test_log_probabilities_of_box_actions_are_those_of_a_squashed_normal_distribution(
    space: Any,
) -> None:
    module = sac(space, learning_starts=0)
    last_bias(module.actor, [0.4, -0.7, -0.5, 0.2])
    acted = module.forward_exploration(seen(500, wants_log_prob=True))
    normal = distributions.Normal(tensor([0.4, -0.7]), tensor([-0.5, 0.2]).exp())
    low, high = (torch.as_tensor(bound[0]).float() for bound in (space.low, space.high))
    stretched = [
        distributions.TanhTransform(),
        distributions.AffineTransform((low + high) / 2, (high - low) / 2),
    ]
    theirs = distributions.TransformedDistribution(normal, stretched)
    expected = theirs.log_prob(torch.as_tensor(acted.actions[:, 0]).float()).sum(1)
    log_prob = acted.extras["log_prob"]
    assert (log_prob.shape, log_prob.dtype) == ((500,), numpy.float32)
    numpy.testing.assert_allclose(log_prob, expected, rtol=1e-3, atol=1e-3)


def test_before_learning_starts_log_probabilities_are_those_of_uniform_actions() -> None:
    acted = sac(learning_starts=10).forward_exploration(seen(3, timestep=9, wants_log_prob=True))
    # Of a rectangle of 4 by 10.
    assert acted.extras["log_prob"] == pytest.approx([-numpy.log(40)] * 3)


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


def test_log_probabilities_are_told_where_they_are_asked_for_alone() -> None:
    module = sac()
    for timestep in (0, 1_000):
        assert module.forward_exploration(seen(3, timestep=timestep)).extras == {}
    # Noise that is clipped at the bounds has no density there.
    assert td3().forward_exploration(seen(3, wants_log_prob=True)).extras == {}


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


def test_both_critics_start_apart_and_their_targets_as_they_are() -> None:
    module = sac()
    first, second = module.critics.first, module.critics.second
    assert not torch.equal(first.advantage[0].weight, second.advantage[0].weight)
    for one, other in zip(
        module.critics.parameters(), module.target.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)
        assert not other.requires_grad
