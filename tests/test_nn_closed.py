"""Plain networks in closed form: the outputs and gradients of autograd, or none at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
import threadpoolctl
import torch
from gymnasium import spaces
from torch import nn

from rlplug.config.sections import ComputeSection
from rlplug.learner.device import apply_compute
from rlplug.nn import ActorCritic, ActorCriticOptions, ClosedForm

SPACE = spaces.Box(-1, 1, (3,))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def actor_critic(activation: str = "tanh", dtype: torch.dtype = torch.float32) -> ActorCritic:
    torch.manual_seed(0)
    options = ActorCriticOptions(net_arch=(8, 6), activation=activation)
    return ActorCritic(SPACE, spaces.Discrete(4), options).to(dtype)


@pytest.mark.parametrize("rows", [1, 5, 20_000], ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_outputs_and_gradients_are_those_of_autograd(
    rows: int, activation: str, dtype: torch.dtype
) -> None:
    network = actor_critic(activation, dtype)
    closed = network.closed_form("net.")
    assert closed is not None
    seen = torch.randn(rows, 3, dtype=dtype)
    slopes = torch.randn(rows, 4, dtype=dtype) / rows
    outputs, trace = closed.forward(0, seen.numpy())
    features = seen
    for layer in [*network.body.hidden, network.policy_head.linear]:
        features = layer(features)
    torch.testing.assert_close(torch.from_numpy(outputs.T), features)
    assert numpy.array_equal(closed.outputs(0, seen.numpy()), outputs)
    features.backward(slopes)
    found = closed.backward(0, trace, slopes.numpy().T)
    wanted = {
        f"net.{name}": param.grad
        for name, param in network.named_parameters()
        if param.grad is not None
    }
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert gradient is not None
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_it_sees_steps_and_tells_when_weights_are_replaced() -> None:
    network = actor_critic()
    closed = network.closed_form("")
    assert closed is not None
    seen = torch.randn(2, 3).numpy()
    before, _ = closed.forward(1, seen)
    with torch.no_grad():
        network.value_head.linear.bias.add_(1)
    after, _ = closed.forward(1, seen)
    assert after - before == pytest.approx(numpy.ones((1, 2)), abs=1e-6)
    assert closed.current()
    network.value_head.linear.bias = nn.Parameter(torch.zeros(1))
    assert not closed.current()


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(3, 2), nn.Dropout(0.5)],
        [nn.Linear(3, 2, bias=False)],
        [nn.Linear(3, 2), nn.Tanh(), nn.Tanh()],
        [],
    ],
    ids=["dropout", "no bias", "bent twice", "nothing"],
)
def test_what_is_not_plain_has_no_closed_form(layers: list[nn.Module]) -> None:
    network = nn.Sequential(actor_critic().body.encoder, *layers)
    assert ClosedForm.of(network, [(network[0], layers)], "") is None


def test_what_somebody_watches_has_no_closed_form() -> None:
    network = actor_critic()
    network.body.hidden[0].register_forward_hook(lambda *_: None)
    assert network.closed_form("") is None


def test_numpy_takes_no_more_threads_than_torch() -> None:
    apply_compute(ComputeSection(num_threads=1), torch.device("cpu"), small=True)
    found = [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
    assert found
    assert {one["num_threads"] for one in found} == {1}
