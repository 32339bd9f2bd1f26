"""Networks act in NumPy as torch would, with the weights of this very moment."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rlplug.nn import (
    ActorCritic,
    ActorCriticOptions,
    Body,
    DistributionalHead,
    HiddenLayers,
    Network,
    NetworkOptions,
    NoisyLinear,
    QHead,
    QuantileHead,
    Streams,
    resample_noise,
)
from rlplug.nn.layers import ACTIVATIONS

BOX = spaces.Box(-numpy.inf, numpy.inf, (4,))
OBSERVATIONS = numpy.random.default_rng(0).standard_normal((8, 4)).astype(numpy.float32)


class Operations(TorchDispatchMode):
    """Counts what torch computes."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "detach" not in str(func)
        return func(*args, **(kwargs or {}))


def q_network(**streams: Any) -> Network:
    return Network(Body(BOX, NetworkOptions(net_arch=(16,))), QHead(16, 3, Streams(**streams)))


def assert_acts_as_torch(network: Any, *, in_numpy: bool = True, **options: Any) -> None:
    with Operations() as operations:
        values, after = network.act(OBSERVATIONS, **options)
    assert (operations.count == 0) is in_numpy
    expected, _ = network.act_on_tensors(torch.from_numpy(OBSERVATIONS), **options)
    numpy.testing.assert_allclose(values, expected.numpy(), atol=1e-5)
    assert after is None


def activated(name: str) -> Network:
    return Network(Body(BOX, NetworkOptions(net_arch=(16, 16), activation=name)), QHead(16, 3))


NETWORKS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: activated(name) for name in ACTIVATIONS},
    **{
        f"{head.__name__} {dueling}": lambda head=head, dueling=dueling: Network(
            Body(BOX), head(64, 3, Streams(dueling=dueling, net_arch=(8,) * dueling))
        )
        for head in (QHead, DistributionalHead, QuantileHead)
        for dueling in (False, True)
    },
    **{
        f"policy {shared} {dependent}": lambda shared=shared, dependent=dependent: ActorCritic(
            BOX,
            spaces.Box(-1, 1, (2,)),
            ActorCriticOptions(shared_encoder=shared, state_dependent_std=dependent),
        )
        for shared in (True, False)
        for dependent in (True, False)
    },
    "no layers": lambda: Network(
        Body(BOX, NetworkOptions(net_arch=())), nn.Sequential(nn.Tanh(), nn.Linear(4, 2))
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_numpy_and_torch_agree(name: str) -> None:
    network = NETWORKS[name]()
    assert_acts_as_torch(network)
    for given in (torch.from_numpy(OBSERVATIONS), OBSERVATIONS.astype(float)):
        numpy.testing.assert_allclose(
            network.act(given)[0], network.act(OBSERVATIONS)[0], atol=1e-5
        )


@pytest.mark.parametrize("fused", [True, False])
def test_acting_follows_every_optimizer_step(fused: bool) -> None:
    network = q_network()
    optimizer = torch.optim.Adam(network.parameters(), 0.1, fused=fused)
    before = network.act(OBSERVATIONS)[0]
    for _ in range(3):
        network(torch.from_numpy(OBSERVATIONS)).sum().backward()
        optimizer.step()
        assert_acts_as_torch(network)
    assert numpy.abs(network.act(OBSERVATIONS)[0] - before).max() > 0.1


def replace_data(network: Any) -> None:
    network.head.advantage[0].weight.data = torch.ones(3, 16)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "double": lambda network: network.double(),
    "assign": lambda network: network.load_state_dict(q_network().state_dict(), assign=True),
    "load": lambda network: network.load_state_dict(q_network().state_dict()),
    "data": replace_data,
    "parameter": lambda network: setattr(
        network.head.advantage[0], "bias", nn.Parameter(torch.ones(3))
    ),
    "layer": lambda network: network.head.advantage.__setitem__(0, nn.Linear(16, 3)),
    "activation": lambda network: network.body.hidden.__setitem__(1, nn.ReLU()),
    "head": lambda network: setattr(network, "head", QHead(16, 5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_acting_notices_that_weights_were_replaced(change: str) -> None:
    network = q_network()
    before = network.act(OBSERVATIONS)[0]
    CHANGES[change](network)
    assert_acts_as_torch(network)
    after = network.act(OBSERVATIONS)[0]
    assert after.dtype != before.dtype or after.tolist() != before.tolist()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))])
def test_a_copy_acts_with_weights_of_its_own(copied: Callable[[Any], Any]) -> None:
    network = q_network()
    before = network.act(OBSERVATIONS)[0]
    other = copied(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert other.act(OBSERVATIONS)[0].tolist() == before.tolist()
    assert not network.act(OBSERVATIONS)[0].any()


def test_what_numpy_does_not_know_goes_through_torch() -> None:
    class Shifted(HiddenLayers):
        def forward(self, features: Tensor) -> Tensor:
            return super().forward(features) + 1

    class Pessimist(QuantileHead):
        def values(self, outputs: Tensor) -> Tensor:
            return outputs.min(-1).values

    shifted, hooked, odd = q_network(), q_network(), q_network()
    shifted.body.hidden = Shifted(4, [16])
    hooked.act(OBSERVATIONS)
    hooked.head.register_forward_hook(lambda module, inputs, outputs: outputs * 0)
    odd.body.hidden.append(nn.GELU())
    for network in (shifted, hooked, odd, Network(Body(BOX), Pessimist(64, 3, atoms=5))):
        assert_acts_as_torch(network, in_numpy=False)
        expected = network.step(torch.from_numpy(OBSERVATIONS))[0].detach().numpy()
        numpy.testing.assert_allclose(network.act(OBSERVATIONS)[0], expected, atol=1e-6)


def test_noise_is_in_exploring_only_and_the_same_until_it_is_drawn_again() -> None:
    network = q_network(linear=NoisyLinear)
    greedy = network.act(OBSERVATIONS)[0]
    noisy = network.act(OBSERVATIONS, explore=True)[0]
    assert numpy.abs(noisy - greedy).max() > 1e-3
    assert network.act(OBSERVATIONS, explore=True)[0].tolist() == noisy.tolist()
    resample_noise(network, numpy.random.default_rng(0))
    redrawn = network.act(OBSERVATIONS, explore=True)[0]
    assert redrawn.tolist() != noisy.tolist()
    assert network.act(OBSERVATIONS)[0].tolist() == greedy.tolist()
    for explore in (True, False):
        assert_acts_as_torch(network, explore=explore)
    resample_noise(network, numpy.random.default_rng(1))
    resample_noise(network, numpy.random.default_rng(0))
    assert network.act(OBSERVATIONS, explore=True)[0].tolist() == redrawn.tolist()


def test_noisy_layers_are_quiet_in_eval_mode() -> None:
    layer = NoisyLinear(3, 2)
    features = torch.ones(1, 3)
    expected = features @ layer.weight.T + layer.bias
    torch.testing.assert_close(layer.eval()(features), expected)
    noise = layer.weight_sigma * torch.outer(layer.noise_out, layer.noise_in)
    bias = layer.bias + layer.bias_sigma * layer.noise_out
    expected = features @ (layer.weight + noise).T + bias
    torch.testing.assert_close(layer.train()(features), expected)
