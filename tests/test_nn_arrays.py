"""Arrays run unmodified modules and losses as torch does; their tape leads back to parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn
from torch.nn import functional

from rlplug.batch import Batch
from rlplug.batch.nested import to_tensors
from rlplug.nn import (
    ActorCritic,
    ActorCriticOptions,
    NoisyLinear,
    SquashedGaussian,
)
from rlplug.nn.arrays import Array, ArrayBatch, Tape, UnsupportedError, unwrap

ROWS = 6


def agree(module: nn.Module, loss_of: Callable[[Any, Any], Any], columns: dict[str, Any]) -> None:
    """Compare a loss and all gradients on both engines, twice."""
    params = [param for param in module.parameters() if param.requires_grad]
    batch = Batch(columns)
    loss = loss_of(module, batch)
    wanted = torch.autograd.grad(loss, params, allow_unused=True)
    tape = Tape(params, [module])
    bound = 1e-5 if params[0].dtype == torch.float32 else 1e-12
    for _ in range(2):
        with tape:
            on_arrays = loss_of(module, tape.batch(batch))
            assert isinstance(on_arrays, Array)
            reached = tape.backward(on_arrays)
        assert on_arrays.item() == pytest.approx(loss.item(), abs=bound, rel=bound)
        assert reached == [i for i, gradient in enumerate(wanted) if gradient is not None]
        largest = max(float(gradient.abs().max()) for gradient in wanted if gradient is not None)
        for mine, theirs in zip(tape.gradients, wanted, strict=True):
            theirs = torch.zeros_like(mine) if theirs is None else theirs
            assert (mine - theirs).abs().max() <= bound * max(largest, 1)


def rows_of(space: spaces.Space[Any]) -> Any:
    """Some rows of a space, as tensors, nested as it is."""
    batched = batch_space(space, ROWS)
    batched.seed(1)
    return to_tensors(batched.sample())


def row(*numbers: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(numbers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "activation", [nn.Tanh, nn.ReLU, nn.ELU, nn.SiLU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus]
)
def test_modules_of_torch_run_unmodified(activation: type[nn.Module], dtype: torch.dtype) -> None:
    module = nn.Sequential(
        nn.Linear(4, 40),
        activation(),
        nn.LayerNorm(40),
        nn.Dropout(0.0),
        nn.Sequential(nn.Linear(40, 36, bias=False), activation(), nn.Linear(36, 33)),
        NoisyLinear(33, 3),
        nn.Softmax(-1),
    ).to(dtype)

    def loss(module: nn.Module, batch: Batch) -> Any:
        return functional.cross_entropy(module(batch["x"]), batch["y"]) + module(batch["x"]).std()

    agree(module, loss, {"x": torch.randn(ROWS, 4, dtype=dtype), "y": torch.arange(ROWS) % 3})


BOX = spaces.Box(-1, 1, (4,), numpy.float32)
OBSERVATIONS = {
    "flat": BOX,
    "bytes": spaces.Box(0, 255, (3, 2), numpy.uint8),
    "discrete": spaces.Discrete(7, start=1),
    "nested": spaces.Dict(a=BOX, b=spaces.Tuple((spaces.MultiDiscrete([2, 3]), BOX))),
}
ACTIONS = {
    "discrete": spaces.Discrete(3, start=2),
    "even": spaces.MultiDiscrete([3, 3]),
    "uneven": spaces.MultiDiscrete([2, 4]),
    "bits": spaces.MultiBinary(3),
    "box": spaces.Box(-2, 1, (2,), numpy.float32),
    "squashed": spaces.Box(-2, 1, (2,), numpy.float32),
    "state_dependent": spaces.Box(-2, 1, (2,), numpy.float32),
}


def actor_critic_loss(module: Any, batch: Batch) -> Any:
    parameters, values = module(batch["observations"])
    mask = batch.get("mask")
    distribution = module.distribution
    log_prob, entropy = distribution.score(parameters, batch["actions"], mask)
    alone = distribution.log_prob(parameters, batch["actions"], mask)
    kl = distribution.kl(batch["other"], parameters, mask)
    everything = log_prob * values + entropy * 0.3 - kl * 0.2 + alone
    return everything.mean() + distribution.entropy(parameters, mask).sum()


@pytest.mark.parametrize("observation", [*OBSERVATIONS, "masked"])
@pytest.mark.parametrize("action", ACTIONS)
def test_actors_and_critics_are_those_of_torch(observation: str, action: str) -> None:
    seen = OBSERVATIONS.get(observation, BOX)
    options = ActorCriticOptions(
        net_arch=(8, 8),
        squash=action == "squashed",
        state_dependent_std=action == "state_dependent",
        shared_encoder=observation == "masked",
    )
    module = ActorCritic(seen, ACTIONS[action], options)
    size = module.distribution.size
    columns = {
        "observations": rows_of(seen),
        "actions": rows_of(ACTIONS[action]),
        "other": torch.randn(ROWS, size),
    }
    if observation == "masked":
        columns["actions"] = columns["actions"] * 0 + (2 if action == "discrete" else 0)
        columns["mask"] = torch.ones(ROWS, size, dtype=torch.int8)
        columns["mask"][:, 1] = 0
    agree(module, actor_critic_loss, columns)


# -- the tape --------------------------------------------------------------------------------------


def test_several_losses_go_back_over_one_pass_each_to_the_parameters_wanted() -> None:
    first, second = row(1.0, 2.0), row(3.0)
    tape = Tape([first, second])
    with tape:
        product = tape.leaf(first) * second
        loss, other = product.sum(), product.square().sum()
        assert tape.backward(loss, wanted={0}) == [0]
        assert tape.backward(other, wanted=[1], weight=0.5) == [1]
    assert tape.flat.tolist() == [3, 3, 0.5 * 2 * (3 * 1 + 6 * 2)]
    with tape:
        assert tape.backward((tape.leaf(first) * 2).sum(), wanted=[0, 1]) == [0]
    assert tape.flat.tolist() == [2, 2, 0]
    assert tape.backward(tape.array(torch.tensor(1.0))) == []
    with pytest.raises(UnsupportedError, match="more than one number"):
        tape.backward(tape.leaf(first))


def test_weights_are_seen_as_they_are_moved_and_noticed_when_frozen_or_replaced() -> None:
    layer, target = nn.Linear(2, 1, bias=False), nn.Parameter(torch.ones(1), requires_grad=False)
    tape = Tape(list(layer.parameters()))
    with torch.no_grad():
        layer.weight.fill_(3)
    assert layer(tape.array(torch.ones(1, 2))).item() == 6
    assert (tape.leaf(target) * layer.weight).requires_grad
    assert tape.current()
    target.data = torch.zeros(1)
    assert not tape.current()
    tape = Tape(list(layer.parameters()))
    layer.weight.requires_grad_(False)
    assert not tape.current()


def test_batches_give_arrays_and_take_them() -> None:
    plain = Batch(
        {
            "x": numpy.arange(6.0).reshape(3, 2),
            "parts": {"a": torch.arange(3), "b": (torch.ones(3), torch.zeros(3))},
        }
    )
    batch = Tape([row(1.0)]).batch(plain)
    assert isinstance(batch, ArrayBatch)
    assert isinstance(batch["x"], Array)
    assert isinstance(batch["parts"]["b"][0], Array)
    assert batch["x"] is batch["x"]
    assert batch.rows == 3
    assert batch.get("nothing") is None
    more = batch.with_columns({"y": batch["x"].sum(1)})
    assert "y" in more
    assert "y" not in batch
    assert more["y"].tolist() == [1, 5, 9]
    assert isinstance(more.array("y"), numpy.ndarray)
    assert more.select(slice(1, 3))["y"].tolist() == [5, 9]
    assert more.select(batch["parts"]["a"])["y"].tolist() == [1, 5, 9]
    assert isinstance(more.without(frozenset(["x"]))["y"], Array)
    assert isinstance(plain["x"], Tensor)


# -- networks in one operation ---------------------------------------------------------------------


def plain(activation: type[nn.Module], inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 40), activation(), nn.Linear(40, 36), activation(), nn.Linear(36, outputs)
    ).double()


def test_the_lower_of_two_networks_moves_what_both_are_given() -> None:
    torch.manual_seed(1)
    actor, critic, other = (plain(nn.ReLU, *sizes) for sizes in ((3, 2), (2, 1), (2, 1)))
    own = list(actor.parameters())
    params = [*own, *critic.parameters(), *other.parameters()]
    x = torch.randn(ROWS, 3, dtype=torch.float64)
    loss = torch.minimum(critic(actor(x)), other(actor(x))).mean()
    with Tape(params, [actor, critic, other]) as tape:
        given = actor(tape.leaf(x))
        lower = torch.minimum(critic(given), other(given)).mean()
        assert tape.backward(lower, wanted=range(len(own))) == list(range(len(own)))
    for mine, theirs in zip(tape.gradients, torch.autograd.grad(loss, own), strict=False):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("network", ["sequential", "actor and critic"])
def test_hooks_on_layers_are_called_and_noticed(network: str) -> None:
    module: Any = ActorCritic(BOX, spaces.Discrete(2))
    layers: Any = module.body.hidden
    if network == "sequential":
        module = layers = plain(nn.Tanh, 4, 2).float()
    x = rows_of(BOX)
    params = list(module.parameters())
    with Tape(params, [module]) as tape:
        module(tape.array(x))
    layers[1].register_forward_hook(lambda layer, inputs, outputs: outputs * 0)
    assert not tape.current()
    with Tape(params, [module]) as tape:
        torch.testing.assert_close(
            unwrap(module(tape.array(x))), tuple(module(x)) if module is not layers else module(x)
        )


@pytest.mark.parametrize("low", [-1.0, -3.0])
def test_squashed_draws_and_their_gradients_are_those_of_torch(low: float) -> None:
    squashed = SquashedGaussian(spaces.Box(low, 1.0, (2,)))
    numbers = [0.1, -25.0, 2.5, -21.0, 25.0, 0.3, -0.7, 1.9]
    module = nn.ParameterList([torch.tensor(numbers, dtype=torch.float64).reshape(2, 4)])
    noise = torch.tensor([[0.3, -4.0], [1.5, 0.7]], dtype=torch.float64)

    def loss(module: Any, batch: Any) -> Any:
        actions, logs = squashed.rsample(batch["ones"] * module[0], noise=noise)
        return (noise * actions).sum() + (logs * noise[0]).sum()

    agree(module, loss, {"ones": torch.ones(2, 4, dtype=torch.float64)})
