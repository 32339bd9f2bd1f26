"""Every operation on arrays gives the values, dtypes and gradients of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from rlplug.nn.arrays import Array, Tape, unwrap

SHAPES = [(), (1,), (3,), (2, 3), (3, 1), (1, 3), (0,), (2, 0), (2, 3, 2)]
PAIRS = [
    ((), ()),
    ((3,), ()),
    ((), (2, 3)),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((1,), (2, 3)),
    ((2, 3), (2, 3)),
    ((0,), (1,)),
    ((2, 3, 2), (3, 1)),
]
MATRICES = [(2, 3), (3, 1), (1, 3), (3, 2), (4, 4)]

FLAVOURS = ["normal", "ties", "endless"]
TIES = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]
ENDLESS = [-numpy.inf, -1.0, 0.0, 1.0, 1.0, 30.0, numpy.inf]


def numbers(shape: tuple[int, ...], flavour: str, seed: int) -> numpy.ndarray[Any, Any]:
    random = numpy.random.default_rng([seed, *shape])
    if flavour == "normal":
        return numpy.asarray(random.standard_normal(shape))
    return numpy.asarray(random.choice(TIES if flavour == "ties" else ENDLESS, shape))


def parameter(shape: tuple[int, ...], flavour: str, seed: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.tensor(numbers(shape, flavour, seed), dtype=dtype))


def outputs_of(made: Any) -> list[Any]:
    if isinstance(made, Array | Tensor):
        return [made]
    return [one for one in made if isinstance(one, Array | Tensor)]


def weighted(outputs: list[Any], weigh: Callable[[Tensor], Any]) -> Any:
    """One number that depends on each output by another factor."""
    loss = None
    for index, out in enumerate(outputs):
        if out.is_floating_point() and out.requires_grad:
            random = numpy.random.default_rng(index)
            factors = torch.tensor(random.uniform(0.5, 2, tuple(out.shape)), dtype=out.dtype)
            part = (out * weigh(factors)).sum()
            loss = part if loss is None else loss + part
    return loss


def same(found: Tensor, wanted: Tensor, what: str) -> None:
    assert found.dtype == wanted.dtype, what
    assert found.shape == wanted.shape, what
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-11}.get(wanted.dtype, 0.0)
    assert numpy.allclose(
        found.detach(), wanted.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
    ), f"{what}: {found} is not {wanted}"


def check(function: Callable[..., Any], *inputs: Tensor) -> None:
    """Compare what a function makes of tensors with what it makes of arrays."""
    params = [one for one in inputs if isinstance(one, nn.Parameter)]
    wanted = outputs_of(function(*inputs))
    tape = Tape(params)
    with tape:
        found = outputs_of(function(*(tape.leaf(one) for one in inputs)))
        assert len(found) == len(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            assert isinstance(mine, Array)
            assert mine.dtype == theirs.dtype
            assert mine.requires_grad == theirs.requires_grad
            same(unwrap(mine), theirs, "value")
        loss = weighted(wanted, lambda factors: factors)
        mine = weighted(found, tape.array)
        if loss is None:
            return
        gradients = torch.autograd.grad(loss, params, allow_unused=True)
        tape.flat.fill(7)
        reached = tape.backward(mine)
    assert reached == [i for i, one in enumerate(gradients) if one is not None]
    for gradient, theirs, param in zip(tape.gradients, gradients, params, strict=True):
        same(gradient, torch.zeros_like(param) if theirs is None else theirs, "gradient")


def turned(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of matrices that do not lie row by row in memory."""
    return lambda *inputs: function(
        *(
            one.transpose(-1, -2).clone().transpose(-1, -2) if one.dim() > 1 else one
            for one in inputs
        )
    )


def firsts(x: Any) -> Tensor:
    """The first place of every row."""
    return torch.zeros(x.shape[0], dtype=torch.long)


ANY: dict[str, Callable[[Any], Any]] = {
    "abs": torch.abs,
    "amax": torch.amax,
    "amin": lambda x: x.amin() if x.numel() else x,
    "atanh": lambda x: torch.atanh(x.clamp(-0.9, 0.9)),
    "cos": lambda x: torch.cos(x),
    "clamp": lambda x: x.clamp(-0.5, 1),
    "clamp_crossed": lambda x: x.clamp(1, -1),
    "clamp_max": lambda x: x.clamp_max(0.5),
    "clamp_min": lambda x: torch.clamp_min(x, 1),
    "clip": lambda x: torch.clip(x, min=-1),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous() * 2,
    "detach": lambda x: x.detach() * x,
    "double": lambda x: x.double() * 2,
    "elu": lambda x: functional.elu(x, 0.7),
    "eq": lambda x: x == 1,
    "exp": lambda x: x.exp(),
    "expand": lambda x: x.expand(2, *x.shape),
    "expm1": torch.expm1,
    "finfo": lambda x: x + torch.finfo(x.dtype).eps,
    "flatten": lambda x: x.flatten(),
    "float": lambda x: x.float() * 2,
    "float_of_truth": lambda x: (x > 0).float(),
    "floor": torch.floor,
    "full_like": lambda x: torch.full_like(x, 0.3) * x,
    "ge": lambda x: x >= 0.5,
    "gt": lambda x: x > 0,
    "half_power": lambda x: x.abs() ** 0.5,
    "invert": lambda x: ~(x > 0),
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "le": lambda x: x <= 0,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.2),
    "log": lambda x: (x.abs() + 0.1).log(),
    "log1p": lambda x: x.abs().log1p(),
    "logical_not": torch.logical_not,
    "logsigmoid": functional.logsigmoid,
    "long": lambda x: x.nan_to_num(0, 5, -5).long(),
    "lt": lambda x: x < 0.5,
    "masked_fill": lambda x: x.masked_fill(x > 0, -torch.inf),
    "masked_fill_lowest": lambda x: x.masked_fill(x < 0, torch.finfo(x.dtype).min),
    "mean": torch.mean,
    "nan_to_num": lambda x: torch.nan_to_num(x, 0.5),
    "ne": lambda x: x != 1,
    "neg": lambda x: -x,
    "new": lambda x: x.new_zeros(2, 3) + x.new_full((), 0.5) + x.new_ones((3,)),
    "number_add": lambda x: 2 + x + 1,
    "number_divide": lambda x: 2 / (x + 0.3) + x / 3,
    "number_subtract": lambda x: 2 - (x - 1.5),
    "ones_like": lambda x: torch.ones_like(x) + x,
    "power_0": lambda x: x**0,
    "power_2": lambda x: x**2,
    "power_2.0": lambda x: torch.pow(x, 2.0),
    "power_3": lambda x: x.pow(3),
    "power_of_number": lambda x: 2.0 ** x.clamp(-3, 3),
    "reciprocal": lambda x: (x + 0.3).reciprocal(),
    "relu": torch.relu,
    "relu_functional": lambda x: functional.relu(x),
    "reshape": lambda x: x.reshape(-1),
    "round": torch.round,
    "rsqrt": lambda x: (x.abs() + 0.5).rsqrt(),
    "sigmoid": lambda x: x.sigmoid(),
    "sign": torch.sign,
    "silu": lambda x: functional.silu(x),
    "sin": lambda x: torch.sin(x),
    "softplus": lambda x: functional.softplus(x),
    "softplus_beta": lambda x: functional.softplus(x, beta=2, threshold=1),
    "sqrt": lambda x: (x.abs() + 0.1).sqrt(),
    "square": torch.square,
    "sum": lambda x: x.sum(),
    "tanh": lambda x: x.tanh(),
    "to": lambda x: x.to(torch.float64, non_blocking=True) + x.to("cpu"),
    "to_other": lambda x: (x > 0).to(x) * x,
    "to_truth": lambda x: x.bool(),
    "unsqueeze": lambda x: (x.unsqueeze(-1), x.unsqueeze(0)),
    "view": lambda x: x.view(1, *x.shape),
    "whole_numbers": lambda x: (x > 0).long() * 2 + x,
    "whole_quotient": lambda x: (x > 0).long() / 2,
    "zeros_like": lambda x: torch.zeros_like(x),
}
"""Operations of one operand of any shape."""

UNDEFINED = {"amax", "amin", "new"}
"""Those that some shapes do not have."""

ROWS: dict[str, Callable[[Any], Any]] = {
    "all": lambda x: (x > 0).all(1),
    "amax": lambda x: x.amax(1),
    "amax_both": lambda x: torch.amax(x, (0, 1), keepdim=True),
    "amin": lambda x: x.amin(-1, keepdim=True),
    "any": lambda x: torch.any(x > 1, 0),
    "argmax": lambda x: x.argmax(1),
    "argmax_all": lambda x: x.argmax(),
    "argmin": lambda x: torch.argmin(x, -1, keepdim=True),
    "broadcast_to": lambda x: torch.broadcast_to(x, (2, *x.shape)),
    "cat": lambda x: torch.cat([x, 2 * x], 1),
    "cat_rows": lambda x: torch.cat((x, x > 0, x[:1]), 0),
    "chunk": lambda x: x.chunk(2, -1),
    "column": lambda x: x[:, 0],
    "cross_entropy": lambda x: functional.cross_entropy(
        x, torch.zeros(x.shape[0], dtype=torch.long)
    ),
    "cross_entropy_of_all": lambda x: functional.cross_entropy(
        x, x.detach().softmax(1), reduction="sum"
    ),
    "cumsum": lambda x: x.cumsum(1),
    "expand": lambda x: x[:, :1].expand(-1, 4),
    "flip": lambda x: torch.flip(x, [1]),
    "gather_many": lambda x: x.gather(1, torch.zeros(x.shape[0], 4, dtype=torch.long)),
    "gather_one": lambda x: x.gather(-1, x.argmax(1, keepdim=True)),
    "index": lambda x: x[torch.zeros(3, dtype=torch.long)],
    "index_both": lambda x: x[x.argmax(0), torch.zeros(x.shape[1], dtype=torch.long)],
    "index_ellipsis": lambda x: x[..., -1],
    "index_mask": lambda x: x[x > 0],
    "index_new": lambda x: x[:, None] * x[None],
    "index_select": lambda x: x.index_select(1, torch.tensor([0, 0])),
    "index_slice": lambda x: x[1:, ::2],
    "layer_norm": lambda x: functional.layer_norm(x, (x.shape[1],)),
    "log_softmax": lambda x: x.log_softmax(1),
    "log_softmax_columns": lambda x: torch.log_softmax(x, 0),
    "log_softmax_functional": lambda x: functional.log_softmax(x, dim=-1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "logsumexp_kept": lambda x: x.logsumexp((0, 1), keepdim=True),
    "max": lambda x: x.max(1),
    "max_all": lambda x: x.max(),
    "max_kept": lambda x: torch.max(x, -1, keepdim=True),
    "mean": lambda x: x.mean(1),
    "mean_kept": lambda x: torch.mean(x, dim=(0, -1), keepdim=True),
    "min": lambda x: x.min(0).values,
    "min_all": lambda x: torch.min(x),
    "movedim": lambda x: x.movedim(0, 1),
    "nll_loss": lambda x: functional.nll_loss(x, firsts(x), reduction="sum"),
    "norm": lambda x: x.norm(dim=1),
    "one_hot": lambda x: functional.one_hot(x.argmax(1), x.shape[1]),
    "pad": lambda x: functional.pad(x, (1, 2), value=0.5),
    "pad two dimensions": lambda x: functional.pad(x, (1, 2, 0, 3)),
    "permute": lambda x: x.permute(1, 0),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(1, (x > 0).long() * 0, x),
    "select": lambda x: x[0],
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax_columns": lambda x: functional.softmax(x, dim=0),
    "split": lambda x: x.split(2, 0),
    "split_uneven": lambda x: torch.split(x, [1, x.shape[0] - 1]),
    "squeeze": lambda x: x.squeeze(1),
    "squeeze_all": lambda x: torch.squeeze(x),
    "stack": lambda x: torch.stack([x, x * x], -1),
    "std": lambda x: x.std(),
    "std_rows": lambda x: torch.std(x, 1, unbiased=False),
    "sum": lambda x: x.sum(-1),
    "sum_both": lambda x: x.sum((0, 1), keepdim=True),
    "sum_truth": lambda x: (x > 0).sum(),
    "T": lambda x: x.T,
    "take_along_dim": lambda x: torch.take_along_dim(x, x.argmin(1, keepdim=True), 1),
    "mT": lambda x: x.mT,
    "transpose": lambda x: x.transpose(0, -1),
    "unbind": lambda x: x.unbind(1),
    "unflatten": lambda x: x.unflatten(1, (1, -1)),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "var": lambda x: x.var(0, correction=0),
}
"""Operations of one matrix."""

TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "and": lambda x, y: (x > 0) & (y > 0),
    "bce": lambda x, y: functional.binary_cross_entropy_with_logits(
        x + 0 * y, y.detach() * 0 + 0.3 + 0 * x
    ),
    "clamp": lambda x, y: torch.clamp(x, y - 1, y),
    "comparison": lambda x, y: x >= y,
    "divide": lambda x, y: x / (y + 0.3),
    "equality": lambda x, y: torch.eq(x, y),
    "huber_loss": lambda x, y: functional.huber_loss(x + 0 * y, y + 0 * x, delta=0.7),
    "l1_loss": lambda x, y: functional.l1_loss(x + 0 * y, y + 0 * x),
    "logical_and": lambda x, y: torch.logical_and(x, y),
    "logical_or": lambda x, y: (x > 0).logical_or(y > 0),
    "maximum": torch.maximum,
    "max_of_two": torch.max,
    "minimum": torch.minimum,
    "mse_loss": lambda x, y: functional.mse_loss(x + 0 * y, y + 0 * x),
    "mse_rows": lambda x, y: functional.mse_loss(x + 0 * y, y + 0 * x, reduction="none"),
    "multiply": lambda x, y: x * y,
    "or": lambda x, y: (x > 0) | (y > 0),
    "power": lambda x, y: (x.abs() + 0.5) ** y,
    "remainder": lambda x, y: x % (y.detach().abs() + 1),
    "smooth_l1_loss": lambda x, y: functional.smooth_l1_loss(x + 0 * y, y + 0 * x),
    "smooth_l1_beta": lambda x, y: functional.smooth_l1_loss(x + 0 * y, y + 0 * x, beta=0.5),
    "subtract": torch.sub,
    "where": lambda x, y: torch.where(x > y, x, y),
    "where_number": lambda x, y: torch.where(x + y > 0, x, 0.5),
    "where_method": lambda x, y: x.where(y > 0, -y),
    "xor": lambda x, y: (x > 0) ^ (y > 0),
}
"""Operations of two operands that are broadcast."""

kinds = st.sampled_from(FLAVOURS)
seeds = st.integers(0, 1_000)
dtypes = st.sampled_from([torch.float32, torch.float64])
few = settings(max_examples=12, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize("name", ANY)
def test_functions_of_one_operand_are_those_of_torch(name: str) -> None:
    function = ANY[name]
    shapes = [(3,), (2, 3), (1, 3)] if name in UNDEFINED else SHAPES

    @few
    @given(st.sampled_from(shapes), kinds, seeds, dtypes)
    @example((3,), "ties", 0, torch.float32)
    @example((2, 3), "endless", 1, torch.float64)
    def compare(shape: tuple[int, ...], flavour: str, seed: int, dtype: torch.dtype) -> None:
        check(function, parameter(shape, flavour, seed, dtype))

    compare()


@pytest.mark.parametrize("name", ROWS)
def test_functions_of_matrices_are_those_of_torch_however_they_lie(name: str) -> None:
    function = ROWS[name]

    @few
    @given(st.sampled_from(MATRICES), kinds, seeds, dtypes, st.booleans())
    @example((2, 3), "ties", 0, torch.float32, False)
    @example((4, 4), "ties", 1, torch.float64, True)
    def compare(
        shape: tuple[int, ...], flavour: str, seed: int, dtype: torch.dtype, turn: bool
    ) -> None:
        check(turned(function) if turn else function, parameter(shape, flavour, seed, dtype))

    compare()


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_operands_are_those_of_torch(name: str) -> None:
    function = TWO[name]

    @few
    @given(st.sampled_from(PAIRS), kinds, seeds, dtypes, st.booleans())
    @example(((3,), (3,)), "ties", 0, torch.float32, False)
    @example(((2, 1), (1, 3)), "ties", 1, torch.float64, True)
    def compare(
        shapes: tuple[Any, Any], flavour: str, seed: int, dtype: torch.dtype, trained: bool
    ) -> None:
        first = parameter(shapes[0], flavour, seed, dtype)
        second = parameter(shapes[1], flavour, seed + 1, dtype)
        check(function, first, second if trained else second.detach())
        check(function, first.detach(), second)

    compare()


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((1, 2, 3), (5, 3, 2)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 2)),
        ((0, 3), (3, 2)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_those_of_torch(shapes: Any, dtype: torch.dtype) -> None:
    first, second = (parameter(shape, "normal", i, dtype) for i, shape in enumerate(shapes))
    check(lambda x, y: x @ y, first, second)
    check(lambda x, y: torch.matmul(x, y), first, second.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 3), (3,), (2, 4, 3), (0, 3)])
def test_linear_layers_norms_and_embeddings_are_those_of_torch(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = parameter(shape, "normal", 0, dtype)
    weight, bias = parameter((5, 3), "normal", 1, dtype), parameter((5,), "normal", 2, dtype)
    check(functional.linear, x, weight, bias)
    check(lambda *all: functional.linear(*all).relu() * 2, x.detach(), weight, bias)
    check(functional.linear, x, weight)
    check(lambda x, w: functional.linear(functional.linear(x, w), w.T), x, weight)
    scale, shift = parameter((3,), "normal", 3, dtype), parameter((3,), "normal", 4, dtype)
    check(lambda x, w, b: functional.layer_norm(x, (3,), w, b), x, scale, shift)
    rows = torch.tensor([[0, 4, 4], [1, 0, 4]])
    check(lambda w: functional.embedding(rows, w) * 1 if isinstance(w, Tensor) else w[rows], weight)
    check(lambda w, i: w[i], weight, rows)
    check(lambda w, i: functional.embedding(i, w).square(), weight, rows)
    check(lambda w, i: w[i].sum() + w.sum(), weight, torch.tensor([-1, 0, -1]))


MIXED = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float32,
    torch.float64,
]


@pytest.mark.parametrize("first", MIXED)
@pytest.mark.parametrize("second", MIXED)
def test_dtypes_are_promoted_as_torch_does(first: torch.dtype, second: torch.dtype) -> None:
    for shape, other in (((3,), (3,)), ((3,), ()), ((), (3,)), ((), ())):
        x, y = torch.ones(shape, dtype=first), torch.ones(other, dtype=second)
        check(lambda x, y: x + y, x, y)
        check(lambda x, y: x * y, x, y)
        check(lambda x, y: x / y, x, y)
        check(lambda x, y: x < y, x, y)
        check(lambda x, y: torch.where(x > 0, x, y), x, y)
        if first.is_floating_point:
            check(lambda x, y: x * y, nn.Parameter(x), y)


@pytest.mark.parametrize("dtype", MIXED)
def test_python_numbers_never_widen(dtype: torch.dtype) -> None:
    for shape in ((3,), ()):
        x = torch.ones(shape, dtype=dtype)
        for number in (2, 0.5, True):
            check(lambda x, number=number: x * number, x)
            check(lambda x, number=number: number + x, x)
            check(lambda x, number=number: x / number, x)
            check(lambda x, number=number: x >= number, x)
        check(lambda x: x.sum(), x)
        check(lambda x: x.sum(0) if x.dim() else x, x)
        check(lambda x: x.cumsum(0), x)
        check(lambda x: x.exp(), x)
