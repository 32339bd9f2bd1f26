"""Networks in one operation, wide ones by products of torch, and draws of squashed actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor, nn

from rlplug.nn import Body, Network, NetworkOptions, PolicyHead, SquashedGaussian
from rlplug.nn.arrays import Array, Tape, run_layers, stack, unwrap

ROWS = 16


def layers(activation: type[nn.Module], inputs: int, outputs: int) -> nn.Sequential:
    made = nn.Sequential(
        nn.Linear(inputs, 8), activation(), nn.Linear(8, 6), activation(), nn.Linear(6, outputs)
    )
    return made.double()


def gradients(loss: Any, params: Sequence[nn.Parameter]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, params))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_a_stack_gives_what_its_layers_give_however_it_multiplies(
    activation: type[nn.Module], wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "_WIDE", 0 if wide else 2**62)
    torch.manual_seed(0)
    first, second = layers(activation, 3, 4), layers(activation, 4, 2)
    params = [*first.parameters(), *second.parameters()]
    features = torch.randn(ROWS, 3, dtype=torch.float64)
    wanted = second(first(features)).square().mean()
    with Tape(params) as tape:
        inputs = Array(features.numpy(), tape)
        found = run_layers(second, run_layers(first, inputs)).square().mean()
        assert isinstance(found, Array)
        tape.backward(found)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-12)
    for mine, theirs in zip(tape.gradients, gradients(wanted, params), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("wide", [False, True])
def test_gradients_of_a_stack_that_runs_twice_are_added_up_from_zero_in_each_pass(
    wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "_WIDE", 0 if wide else 2**62)
    torch.manual_seed(2)
    net = layers(nn.Tanh, 3, 3)
    params = list(net.parameters())
    features = torch.randn(ROWS, 3, dtype=torch.float64)
    wanted = gradients(net(net(features)).square().mean(), params)
    tape = Tape(params)
    for _ in range(2):
        with tape:
            once = run_layers(net, Array(features.numpy(), tape))
            twice = run_layers(net, once).square().mean()
            assert isinstance(twice, Array)
            assert tape.backward(twice) == list(range(len(params)))
        for mine, theirs in zip(tape.gradients, wanted, strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("lowest", ["each in some rows", "the first in all rows"])
def test_the_lower_of_two_networks_moves_what_both_are_given(
    lowest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "_WIDE", 0)
    torch.manual_seed(1)
    actor, one, other = (layers(nn.ReLU, *sizes) for sizes in ((3, 2), (2, 1), (2, 1)))
    if lowest == "the first in all rows":
        with torch.no_grad():
            one[-1].bias.sub_(100)
    features = torch.randn(ROWS, 3, dtype=torch.float64)
    params = [*actor.parameters(), *one.parameters(), *other.parameters()]
    actions = actor(features)
    wanted = torch.minimum(one(actions), other(actions)).mean()
    own = list(actor.parameters())
    with Tape(params) as tape:
        given = run_layers(actor, Array(features.numpy(), tape))
        found = torch.minimum(run_layers(one, given), run_layers(other, given)).mean()
        assert isinstance(found, Array)
        reached = tape.backward(found, wanted=range(len(own)))
    assert reached == list(range(len(own)))
    for mine, theirs in zip(tape.gradients, gradients(wanted, own), strict=False):
        torch.testing.assert_close(mine, theirs)


def test_an_actor_is_one_operation_from_observations_to_parameters() -> None:
    space = spaces.Box(-1, 1, (3,), numpy.float32)
    distribution = SquashedGaussian(spaces.Box(-1, 1, (2,)))
    body = Body(space, NetworkOptions(net_arch=(8, 8)))
    actor = Network(body, PolicyHead(8, distribution, state_dependent_std=True))
    observations = torch.randn(ROWS, 3)
    with Tape(list(actor.parameters())) as tape:
        found = actor(Array(observations.numpy(), tape))
        assert len(tape.nodes) == 1
        torch.testing.assert_close(unwrap(found), actor(observations).detach())


@settings(max_examples=50, deadline=None)
@given(
    numbers=some.lists(some.floats(-25, 25), min_size=8, max_size=8),
    noise=some.lists(some.floats(-4, 4), min_size=4, max_size=4),
    low=some.sampled_from([-1.0, -3.0]),
)
def test_squashed_draws_and_their_gradients_are_those_of_torch(
    numbers: list[float], noise: list[float], low: float
) -> None:
    squashed = SquashedGaussian(spaces.Box(low, 1.0, (2,)))
    parameters = nn.Parameter(torch.tensor(numbers, dtype=torch.float64).reshape(2, 4))
    drawn = torch.tensor(noise, dtype=torch.float64).reshape(2, 2)
    weights = torch.tensor([[0.3, -2.0], [1.5, 0.7]], dtype=torch.float64)
    actions, logs = squashed.rsample(parameters, noise=drawn)
    wanted = (weights * actions).sum() + (logs * weights[0]).sum()
    with Tape([parameters]) as tape:
        mine: Any = tape.leaf(parameters)
        found_actions, found_logs = squashed.rsample(mine, noise=drawn)
        found: Any = (weights * found_actions).sum() + (found_logs * weights[0]).sum()
        tape.backward(found)
    torch.testing.assert_close(unwrap(found_actions), actions.detach())
    torch.testing.assert_close(unwrap(found_logs), logs.detach())
    torch.testing.assert_close(tape.gradients[0], gradients(wanted, [parameters])[0])


def test_a_squashed_draw_of_given_noise_has_the_density_of_its_action() -> None:
    squashed = SquashedGaussian(spaces.Box(-1.0, 1.0, (1,)))
    action, log_prob = squashed.rsample(torch.zeros(1, 2), noise=torch.tensor([[0.5]]))
    assert action.item() == pytest.approx(math.tanh(0.5))
    # The normal density at 0.5, divided by the slope of tanh there.
    normal = math.exp(-0.125) / math.sqrt(2 * math.pi)
    assert log_prob.item() == pytest.approx(math.log(normal / (1 - math.tanh(0.5) ** 2)))
