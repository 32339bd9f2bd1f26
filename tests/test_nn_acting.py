"""Networks act in NumPy as torch would; distributions agree with torch's, and masks forbid."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch import distributions as reference
from torch.utils._python_dispatch import TorchDispatchMode

from rlplug.errors import EnvironmentFailedError, UnsupportedSpaceError
from rlplug.nn import (
    ActorCritic,
    ActorCriticOptions,
    Body,
    DistributionalHead,
    Gaussian,
    HiddenLayers,
    Network,
    NetworkOptions,
    NoisyLinear,
    QHead,
    QuantileHead,
    SquashedGaussian,
    Streams,
    make_distribution,
    resample_noise,
)
from rlplug.nn.layers import ACTIVATIONS

# -- nn acting -------------------------------------------------------------------------------------


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


# -- distributions ---------------------------------------------------------------------------------


ROWS = 6

SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(3, start=5),
    "multidiscrete": spaces.MultiDiscrete([2, 4, 3], start=[1, 0, -1]),
    "even multidiscrete": spaces.MultiDiscrete([[2, 2], [2, 2]]),
    "multibinary": spaces.MultiBinary(4),
    "box": spaces.Box(-2.0, 3.0, (2,)),
    "scalar box": spaces.Box(-1.0, 1.0, ()),
}


def parameters_for(size: int, seed: int = 0) -> Tensor:
    return torch.randn(ROWS, size, generator=torch.Generator().manual_seed(seed))


def reference_for(name: str, parameters: Tensor) -> Any:
    if name == "discrete":
        return [reference.Categorical(logits=parameters)]
    if "multidiscrete" in name:
        counts = SPACES[name].nvec.reshape(-1).tolist()
        return [reference.Categorical(logits=part) for part in parameters.split(counts, -1)]
    if name == "multibinary":
        return [reference.Bernoulli(logits=part) for part in parameters.unbind(-1)]
    mean, log_std = parameters.chunk(2, -1)
    pairs = zip(mean.unbind(-1), log_std.unbind(-1), strict=True)
    return [reference.Normal(m, s.exp()) for m, s in pairs]


def parts_of(name: str, actions: Tensor) -> tuple[Tensor, ...]:
    start = torch.as_tensor(getattr(SPACES[name], "start", 0))
    # Bernoulli takes bits as floats only.
    moved = actions.float() if name == "multibinary" else actions - start
    return moved.reshape(ROWS, -1).unbind(-1)


@pytest.mark.parametrize("name", SPACES)
def test_log_prob_entropy_and_kl_equal_those_of_torch(name: str) -> None:
    distribution = make_distribution(SPACES[name])
    ours, others = parameters_for(distribution.size), parameters_for(distribution.size, seed=1)
    actions = torch.from_numpy(distribution.sample(ours.numpy(), numpy.random.default_rng(0)))
    theirs, theirs_other = reference_for(name, ours), reference_for(name, others)
    pairs = zip(theirs, parts_of(name, actions), strict=True)
    log_prob = sum(part.log_prob(action) for part, action in pairs)
    entropy = sum(part.entropy() for part in theirs)
    kl = sum(map(reference.kl_divergence, theirs, theirs_other))
    torch.testing.assert_close(distribution.log_prob(ours, actions), log_prob)
    torch.testing.assert_close(distribution.entropy(ours), entropy)
    torch.testing.assert_close(distribution.kl(ours, others), kl)
    for one, other in zip(distribution.score(ours, actions), (log_prob, entropy), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", SPACES)
def test_samples_and_modes_are_actions_of_the_space(name: str) -> None:
    space, distribution = SPACES[name], make_distribution(SPACES[name])
    parameters = parameters_for(distribution.size).numpy()
    drawn = distribution.sample(parameters, numpy.random.default_rng(0))
    for actions in (
        distribution.for_env(drawn),
        distribution.for_env(distribution.mode(parameters)),
    ):
        assert actions.dtype == space.dtype
        assert all(space.contains(numpy.asarray(action)) for action in actions)
        assert actions.shape == (ROWS, *(space.shape or ()))


@pytest.mark.parametrize("name", ["discrete", "multidiscrete", "multibinary"])
def test_samples_come_as_often_as_log_prob_says(name: str) -> None:
    distribution = make_distribution(SPACES[name])
    row = parameters_for(distribution.size)[:1]
    drawn = distribution.sample(row.repeat(20_000, 1).numpy(), numpy.random.default_rng(1))
    actions, counts = numpy.unique(drawn, axis=0, return_counts=True)
    expected = distribution.log_prob(row.expand(len(actions), -1), torch.from_numpy(actions)).exp()
    assert numpy.abs(counts / 20_000 - expected.numpy()).max() < 0.015


@pytest.mark.parametrize("kind", [Gaussian, SquashedGaussian])
def test_reparameterised_samples_come_with_their_log_density_and_gradients(kind: Any) -> None:
    distribution = kind(SPACES["box"])
    rows = torch.tensor([[0.5, -0.2, math.log(0.5), math.log(0.2)]]).repeat(20_000, 1)
    parameters = rows.requires_grad_()
    actions, log_prob = distribution.rsample(parameters, torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        log_prob, distribution.log_prob(parameters, actions), atol=1e-3, rtol=1e-3
    )
    (actions.sum() + log_prob.sum()).backward()
    assert parameters.grad is not None
    assert (parameters.grad != 0).any(0).all()
    in_numpy = distribution.sample(rows.detach().numpy(), numpy.random.default_rng(0))
    for drawn in (actions.detach().numpy(), in_numpy):
        # Squashed ones are stretched by 2.5 around 0.5: as far as tanh is straight, so are these.
        inner = drawn if kind is Gaussian else numpy.arctanh((drawn - 0.5) / 2.5)
        assert inner.mean(0) == pytest.approx([0.5, -0.2], abs=0.02)
        assert inner.std(0) == pytest.approx([0.5, 0.2], abs=0.02)


def squashed_reference(parameters: Tensor) -> Any:
    mean, log_std = parameters.chunk(2, -1)
    stretch = reference.AffineTransform(0.5, 2.5)
    base = reference.Normal(mean, log_std.exp())
    return reference.TransformedDistribution(base, [reference.TanhTransform(), stretch])


def test_squashed_log_prob_equals_that_of_torch() -> None:
    squashed = SquashedGaussian(spaces.Box(-2.0, 3.0, (2,)))
    parameters = parameters_for(4).double() * 0.5
    actions, log_prob = squashed.rsample(parameters, torch.Generator().manual_seed(0))
    expected = squashed_reference(parameters).log_prob(actions).sum(-1)
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(squashed.log_prob(parameters, actions), expected)
    assert bool(((actions > -2) & (actions < 3)).all())


def test_squashed_entropy_equals_the_integral_over_the_density() -> None:
    squashed = SquashedGaussian(spaces.Box(-2.0, 3.0, (1,)))
    parameters = torch.tensor([[0.3, -0.5], [-1.0, 0.2]], dtype=torch.float64)
    inner = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    actions = 0.5 + 2.5 * torch.tanh(inner)
    for row in parameters:
        logs = squashed_reference(row.expand(len(actions), 2)).log_prob(actions.unsqueeze(1))
        logs = logs.squeeze(1).clamp(min=-700)
        expected = -torch.trapezoid(logs.exp() * logs, actions)
        torch.testing.assert_close(squashed.entropy(row[None])[0], expected, atol=1e-4, rtol=0)


def test_squashed_samples_keep_their_density_when_it_is_computed_later() -> None:
    squashed = SquashedGaussian(spaces.Box(-2.0, 3.0, (2,)))
    parameters = torch.tensor([[20.0, -20.0, 0.0, 0.0]]).repeat(ROWS, 1)
    actions = squashed.sample(parameters.numpy(), numpy.random.default_rng(0))
    assert squashed.for_env(actions).tolist() == actions.tolist()
    assert torch.isfinite(squashed.log_prob(parameters, torch.from_numpy(actions))).all()
    beyond = numpy.array([[-2.1, 0.5], [3.1, 3.0]])
    assert squashed.for_env(beyond).tolist() == [[-2.0, 0.5], [3.0, 3.0]]


MASKS: dict[str, list[int]] = {
    "discrete": [1, 0, 1],
    "multidiscrete": [1, 0, 1, 0, 1, 1, 0, 1, 1],
    "multibinary": [0, 1, 1, 0],
}


@pytest.mark.parametrize("name", MASKS)
def test_masked_actions_are_never_drawn_and_get_no_gradient(name: str) -> None:
    distribution = make_distribution(SPACES[name])
    mask = torch.tensor([MASKS[name]] * ROWS, dtype=torch.bool)
    # What is forbidden is what the network likes best.
    parameters = (parameters_for(distribution.size) + 20.0 * ~mask).requires_grad_()
    array = parameters.detach().numpy().repeat(200, 0)
    drawn = distribution.sample(array, numpy.random.default_rng(0), mask.numpy().repeat(200, 0))
    log_probs = distribution.log_prob(
        parameters.repeat_interleave(200, 0),
        torch.from_numpy(drawn),
        mask.repeat_interleave(200, 0),
    )
    assert log_probs.min() > -30
    modes = distribution.mode(array[:1], mask.numpy()[:1])
    assert distribution.log_prob(parameters[:1], torch.from_numpy(modes), mask[:1]) > -30
    log_prob, entropy = distribution.score(parameters, torch.from_numpy(drawn[::200]), mask)
    others = parameters_for(distribution.size, seed=1)
    kl = distribution.kl(parameters, others, mask)
    assert torch.isfinite(entropy).all()
    assert torch.isfinite(kl).all()
    (log_prob + entropy + kl).sum().backward()
    assert parameters.grad is not None
    assert torch.isfinite(parameters.grad).all()
    assert (parameters.grad[~mask] == 0).all()
    assert (parameters.grad[mask] != 0).any()


@pytest.mark.parametrize(
    ("name", "mask"), [("discrete", [0, 0, 0]), ("multidiscrete", [1, 1, 0, 0, 0, 0, 1, 1, 1])]
)
def test_a_mask_that_forbids_every_action_is_an_error_that_names_the_row(
    name: str, mask: list[int]
) -> None:
    distribution = make_distribution(SPACES[name])
    masks = numpy.ones((ROWS, distribution.size), bool)
    masks[4] = mask
    with pytest.raises(EnvironmentFailedError, match="environment 4 forbids every action"):
        distribution.sample(
            numpy.zeros((ROWS, distribution.size)), numpy.random.default_rng(0), masks
        )


UNBOUNDED = spaces.Box(-numpy.inf, numpy.inf, (2,))


@pytest.mark.parametrize(
    ("space", "subject"),
    [
        (spaces.Tuple([spaces.Discrete(2)]), "Tuple of Discrete with 2 values"),
        (spaces.Box(0, 5, (2,), numpy.int64), "Box of whole numbers"),
        (UNBOUNDED, "without bounds"),
    ],
    ids=str,
)
def test_actions_that_have_no_distribution_are_refused_by_name(space: Any, subject: str) -> None:
    with pytest.raises(UnsupportedSpaceError, match=subject):
        make_distribution(space, squash=True)
    assert make_distribution(UNBOUNDED).size == 4
