"""Arrays run unmodified modules and losses as torch does, and refuse what they cannot do."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from rlplug.batch import Batch
from rlplug.nn import (
    ActorCritic,
    ActorCriticOptions,
    Body,
    DistributionalHead,
    FixedTarget,
    Fragments,
    Network,
    NetworkOptions,
    NoisyLinear,
    PolicyHead,
    QHead,
    QuantileHead,
    SquashedGaussian,
    Streams,
    project,
)
from rlplug.nn.arrays import Array, ArrayBatch, Tape, UnsupportedError, unwrap

ROWS = 6


def agree(
    module: nn.Module,
    loss_of: Callable[[nn.Module, Any], Any],
    columns: dict[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Compare a loss and all gradients on both engines."""
    params = [param for param in module.parameters() if param.requires_grad]
    batch = Batch(columns)
    loss = loss_of(module, batch)
    wanted = torch.autograd.grad(loss, params, allow_unused=True)
    tape = Tape(params, [module])
    with tape:
        found = loss_of(module, tape.batch(batch))
        assert isinstance(found, Array)
        reached = tape.backward(found)
    bound = 1e-5 if dtype == torch.float32 else 1e-12
    assert found.item() == pytest.approx(loss.item(), abs=bound, rel=bound)
    assert reached == [i for i, gradient in enumerate(wanted) if gradient is not None]
    assert reached
    largest = max(float(one.abs().max()) for one in wanted if one is not None)
    for mine, theirs in zip(tape.gradients, wanted, strict=True):
        theirs = torch.zeros_like(mine) if theirs is None else theirs
        assert (mine - theirs).abs().max() <= bound * max(largest, 1)


def observations(space: spaces.Space[Any]) -> Any:
    """Some rows of a space, as tensors, nested as it is."""
    space.seed(1)
    return _stacked([space.sample() for _ in range(ROWS)])


def _stacked(samples: list[Any]) -> Any:
    if isinstance(samples[0], dict):
        return {key: _stacked([one[key] for one in samples]) for key in samples[0]}
    if isinstance(samples[0], tuple):
        return tuple(_stacked(list(parts)) for parts in zip(*samples, strict=True))
    return torch.as_tensor(numpy.stack(samples))


def tape_of(*params: nn.Parameter) -> Tape:
    return Tape(params)


def row(*numbers: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(numbers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "activation", [nn.Tanh, nn.ReLU, nn.ELU, nn.SiLU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus]
)
def test_modules_of_torch_run_unmodified(activation: type[nn.Module], dtype: torch.dtype) -> None:
    module = nn.Sequential(
        nn.Linear(4, 8),
        activation(),
        nn.LayerNorm(8),
        nn.Dropout(0.0),
        nn.Linear(8, 8, bias=False),
        activation(),
        nn.Linear(8, 3),
        nn.Softmax(-1),
    ).to(dtype)

    def loss(module: nn.Module, batch: Batch) -> Any:
        return functional.cross_entropy(module(batch["x"]), batch["y"]) + module(batch["x"]).std()

    columns = {"x": torch.randn(ROWS, 4, dtype=dtype), "y": torch.arange(ROWS) % 3}
    agree(module, loss, columns, dtype=dtype)


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


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", [*ACTIONS, "squashed", "state_dependent"])
def test_actors_and_critics_are_those_of_torch(observation: str, action: str) -> None:
    space = ACTIONS.get(action, ACTIONS["box"])
    options = ActorCriticOptions(
        net_arch=(8, 8),
        squash=action == "squashed",
        state_dependent_std=action == "state_dependent",
    )
    module = ActorCritic(OBSERVATIONS[observation], space, options)
    columns = {
        "observations": observations(OBSERVATIONS[observation]),
        "actions": observations(space),
        "other": torch.randn(ROWS, module.distribution.size),
    }
    agree(module, actor_critic_loss, columns)


@pytest.mark.parametrize("action", ["discrete", "even", "uneven", "bits"])
def test_masks_are_those_of_torch(action: str) -> None:
    module = ActorCritic(BOX, ACTIONS[action], ActorCriticOptions(shared_encoder=True))
    size = module.distribution.size
    mask = torch.ones(ROWS, size, dtype=torch.int8)
    mask[:, 1] = 0
    actions = torch.zeros_like(observations(ACTIONS[action])) + (2 if action == "discrete" else 0)
    columns = {
        "observations": observations(BOX),
        "actions": actions,
        "other": torch.randn(ROWS, size),
        "mask": mask,
    }
    agree(module, actor_critic_loss, columns)


class Values(nn.Module):
    """A network of action values and its target."""

    def __init__(self, head: type[QHead], *, dueling: bool) -> None:
        super().__init__()
        body = Body(BOX, NetworkOptions(net_arch=(8,), activation="relu"))
        streams = Streams(dueling=dueling, net_arch=(6,))
        atoms: dict[str, Any] = {} if head is QHead else {"atoms": 5}
        self.network = Network(body, head(body.out_features, 3, streams, **atoms))
        self.target = FixedTarget(10).init(self.network)


def q_loss(module: Any, batch: Batch) -> Any:
    head = module.network.head
    outputs, after = module.network(batch["x"]), module.target(batch["after"])
    assert not after.requires_grad
    best = head.values(after).argmax(1)
    if isinstance(head, DistributionalHead):
        place = best[:, None, None].expand(-1, 1, 5)
        chances = torch.softmax(after.gather(1, place)[:, 0], -1)
        positions = batch["rewards"][:, None] + 0.9 * head.support[None, :]
        target = project(chances, positions, head.support)
        return -(target * outputs[:, 0].log_softmax(-1)).sum(-1).mean()
    target = batch["rewards"] + 0.9 * head.values(after).max(1).values * ~batch["terminated"]
    return functional.smooth_l1_loss(head.values(outputs)[:, 0], target)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("head", [QHead, DistributionalHead, QuantileHead])
def test_action_values_and_their_targets_are_those_of_torch(
    head: type[QHead], dueling: bool
) -> None:
    columns = {
        "x": observations(BOX),
        "after": observations(BOX) * 2,
        "rewards": torch.randn(ROWS),
        "terminated": torch.arange(ROWS) % 2 == 0,
    }
    agree(Values(head, dueling=dueling), q_loss, columns)


def test_noisy_layers_are_those_of_torch() -> None:
    layers = nn.Sequential(NoisyLinear(4, 3), nn.ReLU(), NoisyLinear(3, 2))
    agree(layers, lambda module, batch: module(batch["x"]).mean(), {"x": observations(BOX)})


def test_memory_and_images_stay_with_torch() -> None:
    recurrent = Body(BOX, NetworkOptions(memory="lstm"))
    ends = torch.tensor([0]), torch.tensor([ROWS])
    image = Body(spaces.Box(0, 255, (3, 36, 36), numpy.uint8))
    x = observations(BOX)
    cases: list[tuple[nn.Module, Any]] = [
        (recurrent, lambda tape: recurrent(tape.array(x), Fragments(*ends, None))),
        (image, lambda tape: image(tape.array(torch.zeros(2, 3, 36, 36, dtype=torch.uint8)))),
    ]
    for module, run in cases:
        tape = Tape(list(module.parameters()))
        with tape, pytest.raises(UnsupportedError):
            run(tape)


def test_nothing_turns_an_array_into_a_plain_tensor_unnoticed() -> None:
    x = tape_of(row(1.0)).array(torch.ones(3))
    assert not hasattr(Array, "__array__")
    assert not hasattr(Array, "__len__")
    assert not hasattr(Array, "__setitem__")
    conversions: list[Callable[[], Any]] = [
        lambda: torch.as_tensor(x),
        lambda: torch.tensor(x),
        lambda: list(x),
        lambda: len(x),
        lambda: [*x],
        lambda: torch.distributions.Categorical(logits=x, validate_args=True),
    ]
    for convert in conversions:
        with pytest.raises(Exception, match=r".*"):
            convert()
    assert numpy.asarray(x).dtype == object


def test_gradients_lie_side_by_side_in_the_order_of_the_parameters() -> None:
    first, second = row(1.0, 2.0), nn.Parameter(torch.ones(2, 2))
    tape = tape_of(first, second)
    with tape:
        loss = (tape.leaf(first) * first).sum() + 3 * tape.leaf(second).sum()
        assert tape.backward(loss) == [0, 1]
    assert tape.flat.tolist() == [2, 4, 3, 3, 3, 3]
    assert [tuple(one.shape) for one in tape.gradients] == [(2,), (2, 2)]
    tape.flat[0] = 9
    assert tape.gradients[0].tolist() == [9, 4]


def test_several_losses_go_back_over_one_pass_each_to_the_parameters_wanted() -> None:
    first, second = row(1.0, 2.0), row(3.0)
    tape = tape_of(first, second)
    with tape:
        product = tape.leaf(first) * second
        loss, other = product.sum(), product.square().sum()
        assert tape.backward(loss, wanted={0}) == [0]
        assert tape.backward(other, wanted=[1], weight=0.5) == [1]
    assert tape.flat.tolist() == [3, 3, 0.5 * 2 * (3 * 1 + 6 * 2)]
    with tape:
        assert tape.backward((tape.leaf(first) * 2).sum(), wanted=[0, 1]) == [0]
    assert tape.flat.tolist() == [2, 2, 0]
    assert tape.backward(tape.array(torch.ones(()))) == []
    assert tape.flat.tolist() == [0, 0, 0]


def test_a_parameter_met_twice_gets_the_sum_of_both_gradients() -> None:
    layer = nn.Linear(3, 3)

    def loss(module: nn.Module, batch: Batch) -> Any:
        return (module(module(batch["x"]).tanh()) @ layer.weight).mean()

    agree(layer, loss, {"x": torch.randn(ROWS, 3)})


def test_nothing_is_recorded_without_gradients_nor_of_constants() -> None:
    param, frozen = row(1.0), nn.Parameter(torch.ones(1), requires_grad=False)
    tape = tape_of(param)
    with tape:
        with torch.no_grad():
            assert not (tape.leaf(param) * 2).exp().requires_grad
        assert not (tape.leaf(frozen) * 2).requires_grad
        assert not (tape.leaf(param).detach() * 2).requires_grad
        assert not tape.nodes


def test_arrays_show_the_weights_as_optimizers_move_them() -> None:
    layer = nn.Linear(2, 1, bias=False)
    tape = Tape(list(layer.parameters()))
    x = tape.array(torch.ones(1, 2))
    with torch.no_grad():
        layer.weight.fill_(3)
    assert layer(x).item() == 6
    assert tape.current()
    layer.weight.data = torch.ones(1, 2)
    assert not tape.current()


def test_a_parameter_that_was_frozen_or_replaced_is_noticed() -> None:
    first, target = row(1.0), nn.Parameter(torch.ones(1), requires_grad=False)
    tape = tape_of(first)
    assert (tape.leaf(target) * first).requires_grad
    assert tape.current()
    target.data = torch.zeros(1)
    assert not tape.current()
    tape = tape_of(first)
    first.requires_grad_(False)
    assert not tape.current()


@pytest.mark.parametrize(
    "params",
    [
        [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))],
        [nn.Parameter(torch.ones(2, device="meta"))],
        [nn.Parameter(torch.ones(3, 2).T)],
        [nn.Parameter(torch.ones(2, dtype=torch.bfloat16))],
    ],
)
def test_parameters_that_numpy_cannot_show_side_by_side_are_refused(params: Any) -> None:
    with pytest.raises(UnsupportedError):
        Tape(params)


def test_overflow_makes_no_warnings_on_the_tape() -> None:
    param = row(1000.0, -1.0)
    tape = tape_of(param)
    with tape:
        loss = (tape.leaf(param).exp() / 0).sum() + tape.leaf(param).log().sum()
        tape.backward(loss)
    assert numpy.isinf(tape.flat[0])


def test_the_numbers_of_a_pass_are_released_at_its_end() -> None:
    param = row(1.0, 2.0)
    tape = tape_of(param)
    gc.disable()
    try:
        with tape:
            made = (tape.leaf(param) * 2).exp()
            kept = weakref.ref(made.value)
            del made
            assert kept() is not None
        assert kept() is None
    finally:
        gc.enable()


def test_batches_give_arrays_and_take_them() -> None:
    tape = tape_of(row(1.0))
    plain = Batch(
        {
            "x": numpy.arange(6.0).reshape(3, 2),
            "parts": {"a": torch.arange(3), "b": (torch.ones(3), torch.zeros(3))},
        }
    )
    batch = tape.batch(plain)
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
    assert isinstance(plain["x"], Tensor)


def test_extended_batches_lead_back_to_the_rows() -> None:
    columns = {
        "observations": torch.arange(5.0)[:, None],
        "fragments": torch.tensor([[0, 2], [2, 5]]),
        "final_observations": torch.tensor([[10.0], [20.0]]),
    }
    plain = Batch(columns).extended()
    extended = tape_of(row(1.0)).batch(Batch(columns)).extended()
    assert isinstance(extended["observations"], Array)
    wanted = plain.split(plain["observations"][:, 0])
    found = extended.split(extended["observations"][:, 0])
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.tolist() == theirs.tolist()


def plain(activation: type[nn.Module], inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 40), activation(), nn.Linear(40, 36), activation(), nn.Linear(36, outputs)
    ).double()


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.ELU, nn.LeakyReLU, nn.SiLU])
def test_plain_layers_are_one_operation_that_may_run_twice(activation: type[nn.Module]) -> None:
    first, second = plain(activation, 3, 33), plain(activation, 33, 33)
    params = [*first.parameters(), *second.parameters()]
    x = torch.randn(ROWS, 3, dtype=torch.float64)
    loss = second(second(first(x))).square().mean()
    tape = Tape(params, [first, second])
    for _ in range(2):
        with tape:
            found = second(second(first(tape.leaf(x))))
            assert len(tape.nodes) == 3 or activation is nn.SiLU
            assert tape.backward(found.square().mean()) == list(range(len(params)))
        for mine, theirs in zip(
            tape.gradients, torch.autograd.grad(loss, params, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(mine, theirs)
    assert isinstance(first(x), Tensor)


def test_the_lower_of_two_networks_moves_what_both_are_given() -> None:
    torch.manual_seed(1)
    actor, critic, other = (plain(nn.ReLU, *sizes) for sizes in ((3, 2), (2, 1), (2, 1)))
    own = list(actor.parameters())
    params = [*own, *critic.parameters(), *other.parameters()]
    x = torch.randn(ROWS, 3, dtype=torch.float64)
    loss = torch.minimum(critic(actor(x)), other(actor(x))).mean()
    with Tape(params, [actor, critic, other]) as tape:
        given = actor(tape.leaf(x))
        found = torch.minimum(critic(given), other(given)).mean()
        assert tape.backward(found, wanted=range(len(own))) == list(range(len(own)))
    expected = torch.autograd.grad(loss, own)
    for mine, theirs in zip(tape.gradients, expected, strict=False):
        torch.testing.assert_close(mine, theirs)


def test_networks_of_rlplug_are_one_operation() -> None:
    distribution = SquashedGaussian(spaces.Box(-1, 1, (2,)))
    body = Body(BOX, NetworkOptions(net_arch=(8, 8)))
    actor = Network(body, PolicyHead(8, distribution, state_dependent_std=True))
    with Tape(list(actor.parameters())) as tape:
        found = actor(tape.array(observations(BOX)))
        assert len(tape.nodes) == 1
        torch.testing.assert_close(unwrap(found), actor(observations(BOX)).detach())


def test_layers_with_hooks_and_copies_of_networks_run_as_in_torch() -> None:
    net = plain(nn.Tanh, 3, 2)
    x = torch.randn(ROWS, 3, dtype=torch.float64)
    tape = Tape(list(net.parameters()), [net])
    with tape:
        net(tape.leaf(x))
        twin = copy.deepcopy(net)
    assert torch.equal(twin(x), net(x))
    net[1].register_forward_hook(lambda module, inputs, outputs: outputs * 0)
    assert not tape.current()
    with Tape(list(net.parameters()), [net]) as tape:
        torch.testing.assert_close(unwrap(net(tape.leaf(x))), net(x).detach())


@pytest.mark.parametrize("low", [-1.0, -3.0])
def test_squashed_draws_and_their_gradients_are_those_of_torch(low: float) -> None:
    squashed = SquashedGaussian(spaces.Box(low, 1.0, (2,)))
    numbers = [0.1, -25.0, 2.5, -21.0, 25.0, 0.3, -0.7, 1.9]
    parameters = nn.Parameter(torch.tensor(numbers, dtype=torch.float64).reshape(2, 4))
    noise = torch.tensor([[0.3, -4.0], [1.5, 0.7]], dtype=torch.float64)

    def loss(given: Any) -> Any:
        actions, logs = squashed.rsample(given, noise=noise)
        return (noise * actions).sum() + (logs * noise[0]).sum()

    with Tape([parameters]) as tape:
        found = loss(tape.leaf(parameters))
        tape.backward(found)
    assert found.item() == pytest.approx(loss(parameters).item())
    torch.testing.assert_close(
        tape.gradients[0], torch.autograd.grad(loss(parameters), [parameters])[0]
    )
