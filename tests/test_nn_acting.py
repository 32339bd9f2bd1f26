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
from rlplug.nn.arrays import FrozenWeights, Views
from rlplug.nn.layers import ACTIVATIONS

BOX = spaces.Box(-numpy.inf, numpy.inf, (4,))
OBSERVATIONS = numpy.random.default_rng(0).standard_normal((8, 4)).astype(numpy.float32)


def q_network(**streams: Any) -> Network:
    return Network(Body(BOX, NetworkOptions(net_arch=(16,))), QHead(16, 3, Streams(**streams)))


def in_torch(network: Any) -> numpy.ndarray[Any, Any]:
    return network._act_in_torch(OBSERVATIONS, None, False)[0]


def assert_acts_in_numpy_as_in_torch(network: Any) -> None:
    assert network._look(False) is not None
    numpy.testing.assert_allclose(network.act(OBSERVATIONS)[0], in_torch(network), atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numpy_and_torch_agree_for_every_activation(activation: Any) -> None:
    options = NetworkOptions(net_arch=(16, 16), activation=activation)
    assert_acts_in_numpy_as_in_torch(Network(Body(BOX, options), QHead(16, 3)))


@pytest.mark.parametrize("streams", [Streams(), Streams(dueling=True, net_arch=(8,))])
@pytest.mark.parametrize("head", [QHead, DistributionalHead, QuantileHead])
def test_numpy_and_torch_agree_for_every_head(head: type[QHead], streams: Streams) -> None:
    assert_acts_in_numpy_as_in_torch(Network(Body(BOX), head(64, 3, streams)))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dependent", [True, False])
def test_numpy_and_torch_agree_for_policies(shared: bool, dependent: bool) -> None:
    options = ActorCriticOptions(shared_encoder=shared, state_dependent_std=dependent)
    network = ActorCritic(BOX, spaces.Box(-1, 1, (2,)), options)
    assert_acts_in_numpy_as_in_torch(network)
    assert network.act(OBSERVATIONS)[0].shape == (8, 4)


@pytest.mark.parametrize("fused", [True, False])
def test_acting_follows_every_optimizer_step(fused: bool) -> None:
    network = q_network()
    optimizer = torch.optim.Adam(network.parameters(), 0.1, fused=fused)
    before = network.act(OBSERVATIONS)[0]
    plan = network._look(False)
    for _ in range(3):
        network(torch.from_numpy(OBSERVATIONS)).sum().backward()
        optimizer.step()
        assert_acts_in_numpy_as_in_torch(network)
    assert numpy.abs(network.act(OBSERVATIONS)[0] - before).max() > 0.1
    assert network._look(False) is plan


def double(network: Network) -> None:
    network.double()


def assign(network: Network) -> None:
    network.load_state_dict(q_network().state_dict(), assign=True)


def load(network: Network) -> None:
    network.load_state_dict(q_network().state_dict())


def replace_data(network: Network) -> None:
    head: Any = network.head
    head.advantage[0].weight.data = torch.ones(3, 16)


def replace_parameter(network: Network) -> None:
    head: Any = network.head
    head.advantage[0].bias = nn.Parameter(torch.ones(3))


def replace_layer(network: Network) -> None:
    head: Any = network.head
    head.advantage[0] = nn.Linear(16, 3)


def replace_activation(network: Network) -> None:
    network.body.hidden[1] = nn.ReLU()


def replace_head(network: Network) -> None:
    network.head = QHead(16, 5)


@pytest.mark.parametrize(
    "change",
    [
        double,
        assign,
        load,
        replace_data,
        replace_parameter,
        replace_layer,
        replace_activation,
        replace_head,
    ],
)
def test_acting_notices_that_weights_were_replaced(change: Callable[[Network], None]) -> None:
    network = q_network()
    before = network.act(OBSERVATIONS)[0]
    change(network)
    assert_acts_in_numpy_as_in_torch(network)
    after = network.act(OBSERVATIONS)[0]
    assert after.dtype != before.dtype or after.tolist() != before.tolist()


def test_where_weights_stand_still_it_looks_once_and_sees_what_is_written_into_them() -> None:
    network = q_network()
    with FrozenWeights():
        before = network.act(OBSERVATIONS)[0]
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(2)
        assert_acts_in_numpy_as_in_torch(network)
        assert numpy.abs(network.act(OBSERVATIONS)[0] - before).max() > 0.1
        replace_data(network)
    assert_acts_in_numpy_as_in_torch(network)
    with FrozenWeights():
        assert_acts_in_numpy_as_in_torch(network)


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

    shifted, hooked, odd = q_network(), q_network(), q_network()
    shifted.body.hidden = Shifted(4, [16])
    hooked.act(OBSERVATIONS)
    hooked.head.register_forward_hook(lambda module, inputs, outputs: outputs * 0)
    odd.body.hidden.append(nn.GELU())
    for network in (shifted, hooked, odd):
        expected = network(torch.from_numpy(OBSERVATIONS)).detach().numpy()
        numpy.testing.assert_allclose(network.act(OBSERVATIONS)[0], expected, atol=1e-6)
        assert network._look(False) is None


def test_a_head_that_overrides_its_values_acts_by_them() -> None:
    class Pessimist(QuantileHead):
        def values(self, outputs: Tensor) -> Tensor:
            return outputs.min(-1).values

    network = Network(Body(BOX), Pessimist(64, 3, atoms=5))
    expected = network(torch.from_numpy(OBSERVATIONS)).min(-1).values.detach().numpy()
    numpy.testing.assert_allclose(network.act(OBSERVATIONS)[0], expected, atol=1e-6)


def test_acting_changes_no_observation_and_no_earlier_answer() -> None:
    network = Network(Body(BOX, NetworkOptions(net_arch=())), nn.Sequential(nn.Tanh()))
    observations = OBSERVATIONS.copy()
    first = network.act(observations)[0]
    kept = first.copy()
    network.act(observations * 2)
    assert observations.tolist() == OBSERVATIONS.tolist()
    assert first.tolist() == kept.tolist()


def test_acting_drops_nothing_out_and_leaves_the_mode_as_it_was() -> None:
    network = q_network()
    network.body.hidden.append(nn.Dropout(0.5))
    network.body.hidden[1].eval()
    one, other = network.act(OBSERVATIONS)[0], network.act(OBSERVATIONS)[0]
    assert one.tolist() == other.tolist()
    modes = [network.body.hidden[index].training for index in range(3)]
    assert modes == [True, False, True]


def test_observations_may_be_tensors_or_doubles() -> None:
    network = q_network()
    expected = network.act(OBSERVATIONS)[0]
    for observations in (torch.from_numpy(OBSERVATIONS), OBSERVATIONS.astype(float)):
        numpy.testing.assert_allclose(network.act(observations)[0], expected, atol=1e-6)


def test_noise_is_in_exploring_only_and_the_same_until_it_is_drawn_again() -> None:
    network = q_network(linear=NoisyLinear)
    random = numpy.random.default_rng(0)
    greedy = network.act(OBSERVATIONS)[0]
    noisy = network.act(OBSERVATIONS, explore=True)[0]
    assert numpy.abs(noisy - greedy).max() > 1e-3
    assert network.act(OBSERVATIONS, explore=True)[0].tolist() == noisy.tolist()
    resample_noise(network, random)
    assert network.act(OBSERVATIONS, explore=True)[0].tolist() != noisy.tolist()
    assert network.act(OBSERVATIONS)[0].tolist() == greedy.tolist()
    torch_noisy = network._act_in_torch(OBSERVATIONS, None, True)[0]
    numpy.testing.assert_allclose(
        network.act(OBSERVATIONS, explore=True)[0], torch_noisy, atol=1e-5
    )
    numpy.testing.assert_allclose(greedy, in_torch(network), atol=1e-5)


def test_noisy_layers_are_quiet_in_eval_mode() -> None:
    layer = NoisyLinear(3, 2)
    features = torch.ones(1, 3)
    expected = features @ layer.weight.T + layer.bias
    torch.testing.assert_close(layer.eval()(features), expected)
    noise = layer.weight_sigma * torch.outer(layer.noise_out, layer.noise_in)
    bias = layer.bias + layer.bias_sigma * layer.noise_out
    expected = features @ (layer.weight + noise).T + bias
    torch.testing.assert_close(layer.train()(features), expected)


def test_equal_seeds_draw_equal_noise() -> None:
    layers = [NoisyLinear(3, 2) for _ in range(2)]
    for layer in layers:
        layer.resample(numpy.random.default_rng(5))
    assert torch.equal(layers[0].noise_in, layers[1].noise_in)
    assert torch.equal(layers[0].noise_out, layers[1].noise_out)


def test_an_activation_alone_has_an_array_of_its_own() -> None:
    plan = Views.of_network(nn.Sequential(nn.ReLU()))
    assert plan is not None
    given = numpy.array([[-1.0, 2.0]])
    assert plan.forward(given).tolist() == [[0.0, 2.0]]
    assert given.tolist() == [[-1.0, 2.0]]


def test_a_noisy_layer_begins_with_uniform_means_and_one_spread() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(25, 4000, sigma=0.4)
    for means in (layer.weight.detach(), layer.bias.detach()):
        # Uniform between -0.2 and 0.2 (Fortunato et al. 2018, 3.2).
        assert float(means.abs().max()) <= 0.2
        assert float(means.mean()) == pytest.approx(0, abs=0.01)
        assert float(means.std()) == pytest.approx(0.4 / 12**0.5, abs=0.01)
    for spreads in (layer.weight_sigma, layer.bias_sigma):
        assert torch.equal(spreads, torch.full_like(spreads, 0.4 / 5))
