"""Arrays run modules, losses and operations as torch does; their tape leads back to parameters."""

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
from rlplug.nn import ActorCritic, ActorCriticOptions, NoisyLinear, SquashedGaussian
from rlplug.nn.arrays import Array, ArrayBatch, Tape, UnsupportedError, unwrap

# -- nn arrays -------------------------------------------------------------------------------------


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


# -- nn arrays operations --------------------------------------------------------------------------


Operation = Callable[..., Any]

TIES = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int, *, ties: bool) -> Tensor:
    random = numpy.random.default_rng([seed, *shape])
    drawn = random.choice(TIES, shape) if ties else random.standard_normal(shape)
    return torch.tensor(drawn, dtype=dtype)


def check(operation: Operation, *inputs: Tensor) -> None:
    """Compare what an operation makes of tensors with what it makes of arrays."""
    params = [given for given in inputs if isinstance(given, nn.Parameter)]
    expected = outputs_of(operation(*inputs))
    tape = Tape(params)
    with tape:
        found = outputs_of(operation(*map(tape.leaf, inputs)))
        for mine, theirs in zip(found, expected, strict=True):
            assert isinstance(mine, Array)
            assert (mine.dtype, mine.requires_grad) == (theirs.dtype, theirs.requires_grad)
            same(unwrap(mine), theirs.detach())
        if not any(theirs.requires_grad for theirs in expected):
            return
        # One number that depends on each output by another factor.
        factors = [numbers(tuple(out.shape), out.dtype, 9, ties=False) for out in expected]
        loss: Any = sum((o * f).sum() for o, f in zip(expected, factors, strict=True))
        mine = sum((o * f).sum() for o, f in zip(found, factors, strict=True))
        gradients = torch.autograd.grad(loss, params, allow_unused=True)
        tape.flat.fill(7)
        reached = tape.backward(mine)
    assert reached == [i for i, gradient in enumerate(gradients) if gradient is not None]
    for param, mine, theirs in zip(params, tape.gradients, gradients, strict=True):
        same(mine, torch.zeros_like(param) if theirs is None else theirs)


def outputs_of(made: Any) -> list[Any]:
    return [made] if isinstance(made, Array | Tensor) else list(made)


def same(found: Tensor, expected: Tensor) -> None:
    tolerance = 1e-11 if expected.dtype == torch.float64 else 3e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


NUMBERS: list[Operation] = [
    torch.abs,
    lambda x: torch.atanh(x.clamp(-0.9, 0.9)),
    lambda x: (x.cos(), torch.sin(x), torch.expm1(x), torch.round(x), torch.sign(x)),
    lambda x: (x.clamp(-0.5, 1), x.clamp_max(0.5), torch.clamp_min(x, 1), torch.clip(x, min=-1)),
    lambda x: (x.clone().contiguous().cpu() * x.detach(), x.data * 2),
    lambda x: (x.double() * 2 + x.float(), x.bool(), (x > 0).long() * 2 + x, (x > 0).int() / 2),
    lambda x: (functional.elu(x, 0.7), functional.leaky_relu(x, 0.2), functional.silu(x)),
    lambda x: (torch.exp(x), (x.abs() + 0.1).log(), x.abs().log1p(), x.floor()),
    lambda x: (x.expand(2, *x.shape), x.flatten(), x.view(1, *x.shape)),
    lambda x: torch.full_like(x, 0.3) * x + torch.ones_like(x) - torch.zeros_like(x),
    lambda x: (x >= 0.5) & (x > 0) | ~(x <= 1) ^ (x == 1),
    lambda x: (x < 0.5).logical_and(x != 1).logical_or(torch.logical_not(x)),
    lambda x: torch.isfinite(x) & ~torch.isnan(x),
    lambda x: x.masked_fill(x < 0, torch.finfo(x.dtype).min),
    lambda x: (torch.mean(x), x.sum(), x.new_zeros(2, 3) + x.sum()),
    lambda x: 2 / (x + 0.3) + x / 3 - (2 - (1 + x)) * 3,
    lambda x: (x**2 + x**0 + torch.pow(x, 3) + x.abs() ** 0.5, 2.0 ** x.clamp(-3, 3)),
    lambda x: ((x + 0.3).reciprocal() - (-x), (x.abs() + 0.5).rsqrt(), (x.abs() + 0.1).sqrt()),
    lambda x: (torch.relu(x), x.sigmoid(), x.tanh(), torch.square(x), functional.logsigmoid(x)),
    lambda x: functional.softplus(x) + functional.softplus(x, beta=2, threshold=1),
    lambda x: x.to(torch.float64, non_blocking=True) + x.to("cpu"),
    lambda x: (x > 0).to(x) * x + (x > 0).type_as(x),
    lambda x: (x.unsqueeze(-1), x.unsqueeze(0)),
]
"""Of one operand of any shape."""

MATRICES: list[Operation] = [
    lambda x: (x > 0).all(1) | torch.any(x > 1, 1),
    lambda x: (x.amax(1) + x.amin(-1), torch.amax(x, (0, 1), keepdim=True)),
    lambda x: (x.argmax(1), x.argmax(), torch.argmin(x, -1, keepdim=True)),
    lambda x: (torch.broadcast_to(x, (2, *x.shape)), x[:, :1].expand(-1, 4)),
    lambda x: (torch.cat([x, 2 * x], 1), torch.cat((x, x > 0, x[:1]), 0), torch.stack([x, x], -1)),
    lambda x: (*x.chunk(2, -1), *x.split(2, 0), *torch.split(x, [1, x.shape[0] - 1])),
    lambda x: functional.cross_entropy(x, x.argmin(1)) + functional.nll_loss(x, x.argmin(1)),
    lambda x: functional.cross_entropy(x, x.detach().softmax(1), reduction="sum"),
    lambda x: x.gather(1, torch.zeros(x.shape[0], 4, dtype=torch.long)),
    lambda x: x.gather(-1, x.argmax(1, keepdim=True)),
    lambda x: x[torch.zeros(3, dtype=torch.long)] + x[[0, 0, 0]],
    lambda x: x[x.argmax(0), torch.zeros(x.shape[1], dtype=torch.long)],
    lambda x: (x[..., -1], x[0], x[:, 0], x[1:, ::2], x[:, None] * x[None], x[x > 0]),
    lambda x: x.index_select(1, torch.tensor([0, 0])),
    lambda x: functional.layer_norm(x, (x.shape[1],)) + functional.dropout(x, 0.5, False),
    lambda x: x.log_softmax(1) + torch.log_softmax(x, 0) + functional.log_softmax(x, dim=-1),
    lambda x: torch.logsumexp(x, 1) + x.logsumexp((0, 1), keepdim=True),
    lambda x: (*x.max(1), x.max(), *torch.max(x, -1, keepdim=True), x.min(0).values, x.min()),
    lambda x: (x.mean(1), torch.mean(x, dim=(0, -1), keepdim=True)),
    lambda x: (functional.one_hot(x.argmax(1), x.shape[1]), functional.pad(x, (1, 2, 0, 3))),
    lambda x: (x.T, x.mT, x.t(), x.transpose(0, -1), x.swapaxes(0, 1), x.permute(1, 0)),
    lambda x: torch.zeros_like(x).scatter_add(1, (x > 0).long() * 0, x),
    lambda x: torch.softmax(x, -1) + functional.softmax(x, dim=0),
    lambda x: (*x.sort(1), x.sort(0, descending=True).values, *torch.topk(x, 1)),
    lambda x: (x.squeeze(1), torch.squeeze(x)),
    lambda x: (x.sum(-1), x.sum((0, 1), keepdim=True), (x > 0).sum(), x.cumsum(0)),
    lambda x: (*x.unbind(1), x.unflatten(1, (1, -1))),
    lambda x: (x.std(1, unbiased=False) + x.var(1, correction=0), x.std(), x.detach().std()),
]
"""Of one matrix of at least two rows."""

PAIRS: list[Operation] = [
    lambda x, y: x + y - torch.sub(x, y) * y,
    lambda x, y: torch.clamp(x, y - 1, y),
    lambda x, y: x / (y + 0.3),
    lambda x, y: torch.eq(x, y) | (x >= y),
    lambda x, y: torch.maximum(x, y) + torch.max(x, y) - torch.minimum(x, y),
    lambda x, y: (x.abs() + 0.5) ** y,
    lambda x, y: x % (y.detach().abs() + 1) + (x.detach() // (y.detach().abs() + 1)),
    lambda x, y: torch.where(x > y, x, y) + x.where(y > 0, -y) + torch.where(x + y > 0, x, 0.5),
    *(
        lambda x, y, loss=loss, options=options: loss(x + 0 * y, y + 0 * x, **options)
        for loss, options in (
            (functional.mse_loss, {}),
            (functional.mse_loss, {"reduction": "none"}),
            (functional.huber_loss, {"delta": 0.7}),
            (functional.smooth_l1_loss, {}),
            (functional.smooth_l1_loss, {"beta": 0.5, "reduction": "sum"}),
        )
    ),
]
"""Of two operands that are broadcast."""

CASES: list[tuple[Operation, list[tuple[tuple[int, ...], ...]]]] = [
    *((operation, [((),), ((3,),), ((2, 3),), ((0,),), ((1, 3),)]) for operation in NUMBERS),
    *((operation, [((2, 3),), ((4, 4),), ((3, 1),)]) for operation in MATRICES),
    *(
        (operation, [((), (2, 3)), ((3,), (3,)), ((2, 1), (1, 3)), ((2, 3, 2), (3, 1))])
        for operation in PAIRS
    ),
]
"""With the shapes of their operands."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("index", range(len(CASES)))
def test_operations_are_those_of_torch(index: int, dtype: torch.dtype) -> None:
    operation, shapes = CASES[index]
    for shape in shapes:
        for ties in (False, True):
            given = [numbers(one, dtype, seed, ties=ties) for seed, one in enumerate(shape)]
            check(operation, *map(nn.Parameter, given))
            check(operation, given[0], *map(nn.Parameter, given[1:]))
            if len(shape) == 1 and len(shape[0]) == 2:
                # One column after the other.
                check(lambda x: operation(x.T.clone().T), nn.Parameter(given[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_and_layers_are_those_of_torch(dtype: torch.dtype) -> None:
    def parameter(*shape: int) -> nn.Parameter:
        return nn.Parameter(numbers(shape, dtype, 2, ties=False))

    for first, second in (
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((3,), (3,)),
        ((5, 2, 3), (3,)),
        ((5, 2, 3), (3, 4)),
    ):
        check(lambda x, y: x @ y, parameter(*first), parameter(*second))
        check(lambda x, y: x @ y, parameter(*first).detach(), parameter(*second).detach())
    weight, bias, rows = parameter(5, 3), parameter(5), torch.tensor([[0, 4, 4], [1, 0, 4]])
    for shape in ((4, 3), (3,), (2, 4, 3), (0, 3)):
        check(functional.linear, parameter(*shape), weight, bias)
        check(
            lambda *given: functional.linear(*given).relu() * 2, parameter(*shape).detach(), weight
        )

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, (3,), weight, bias)

    check(norm, parameter(4, 3), parameter(3), parameter(3))
    check(lambda w, i: w[i].square(), weight, rows)
    check(lambda w, i: w[i].sum() + w.sum(), weight, torch.tensor([-1, 0, -1]))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_its_running_statistics_are_those_of_torch(training: bool) -> None:
    mine, theirs = (nn.BatchNorm1d(3).double().train(training) for _ in range(2))
    x, factor = (numbers((6, 3), torch.float64, seed, ties=False) for seed in (0, 1))
    with Tape(list(mine.parameters())) as tape:
        for _ in range(2):
            given = tape.leaf(x) * 3 + 1
            tape.backward((mine(given) * factor).sum())
            loss = (theirs(x * 3 + 1) * factor).sum()
    expected = torch.autograd.grad(loss, list(theirs.parameters()))
    for gradient, other in zip(tape.gradients, expected, strict=True):
        same(gradient, other)
    for buffer, other in zip(mine.buffers(), theirs.buffers(), strict=True):
        same(buffer, other)


DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64]


@pytest.mark.parametrize("first", DTYPES)
def test_dtypes_are_promoted_as_torch_does(first: torch.dtype) -> None:
    for second in DTYPES:
        for shape, other in (((3,), (3,)), ((3,), ()), ((), (3,)), ((), ())):
            x, y = torch.ones(shape, dtype=first), torch.ones(other, dtype=second)
            check(lambda x, y: (x + y, x * y, x / y, x < y, torch.where(x > 0, x, y)), x, y)
    for shape in ((3,), ()):
        x = torch.ones(shape, dtype=first)
        for number in (2, 0.5, True):
            check(lambda x, n=number: (x * n, n + x, x / n, x >= n, x.sum(), x.exp()), x)


PLACES = torch.tensor([[0, 1, 2], [2, 1, 0]])

REFUSED: dict[str, Operation] = {
    "frobnicate": lambda x, n: x.frobnicate,
    "convolution": lambda x, n: torch.conv1d(x[None], torch.ones(1, 2, 1)),
    "several numbers as one": lambda x, n: bool(x),
    "numpy of a result": lambda x, n: x.numpy(),
    "another device": lambda x, n: x.to("meta"),
    "a dtype that NumPy lacks": lambda x, n: x.to(torch.bfloat16),
    "a view as another dtype": lambda x, n: x.view(torch.int32),
    "a layer that works in place": lambda x, n: functional.relu(x, inplace=True),
    "a rare one": lambda x, n: functional.silu(x.detach(), inplace=True),
    "an operator in place": lambda x, n: x.__iadd__(1),
    "a method in place": lambda x, n: x.add_(1),
    "softmax without a dim": lambda x, n: functional.softmax(x),
    "text": lambda x, n: x * "a",
    "an array of NumPy": lambda x, n: numpy.ones(2) * x,
    "weights of another dtype": lambda x, n: functional.linear(x.double(), torch.ones(2, 3)),
    "a product of two dtypes": lambda x, n: torch.matmul(x, x.double().T),
    "an odd reduction": lambda x, n: functional.mse_loss(x, torch.ones(2, 3), reduction="most"),
    "a part of a single number": lambda x, n: x.sum()[n[0]],
    "an index of fewer dimensions": lambda x, n: x.gather(1, torch.tensor([0])),
    "an index beyond": lambda x, n: torch.gather(x, 0, PLACES),
    "an index below 0": lambda x, n: x.gather(1, n[:, :1] - 1),
    "a class beyond": lambda x, n: functional.one_hot(n, 2),
    "a mean of whole numbers": lambda x, n: n.mean(),
    "where without truths": lambda x, n: torch.where(n, x, 0.0),
    "a filling of a higher dtype": lambda x, n: n.masked_fill(n > 0, torch.tensor(0.5)),
    "parts that are not the whole": lambda x, n: x.split([1, 1], 1),
    "a tensor elsewhere": lambda x, n: x + torch.ones(3, device="meta"),
    "complex numbers": lambda x, n: x + torch.ones(3, dtype=torch.complex64),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_arrays_cannot_do_is_an_error_and_changes_nothing(name: str) -> None:
    param = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    with Tape([param]) as tape, pytest.raises((UnsupportedError, TypeError)):
        REFUSED[name](tape.leaf(param), tape.array(PLACES))
    assert param.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not hasattr(tape.leaf(param), "frobnicate")
