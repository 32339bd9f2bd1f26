"""Calls that arrays leave to torch: each says why, instead of computing something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from rlplug.nn.arrays import Tape, UnsupportedError, categorical_score

ONES = torch.ones(2, 3)
ROWS = torch.tensor([[0, 1, 2], [2, 1, 0]])

REFUSED: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("item() of more than one number", lambda x, n: x.item()),
    ("several numbers as one index", lambda x, n: [1.0, 2.0][n]),
    ("numpy() of what requires a gradient", lambda x, n: x.numpy()),
    ("to with other options", lambda x, n: x.to(torch.float32, memory_format=None)),
    ("to meta", lambda x, n: x.to("meta")),
    ("to 3", lambda x, n: x.to(3)),
    ("numbers of torch.bfloat16", lambda x, n: x.to(torch.bfloat16)),
    ("a view as another dtype", lambda x, n: x.view(torch.int32)),
    ("new_tensor of a tensor", lambda x, n: x.new_tensor(ONES)),
    ("layers that work in place", lambda x, n: functional.relu(x, inplace=True)),
    ("layers that work in place", lambda x, n: functional.elu(x, inplace=True)),
    ("softmax without a dim", lambda x, n: functional.softmax(x)),
    ("log_softmax without a dim", lambda x, n: functional.log_softmax(x)),
    ("a change in place", lambda x, n: x.__iadd__(1)),
    ("arrays have no add_", lambda x, n: x.add_(1)),
    ("a str among arrays", lambda x, n: x * "a"),
    ("300 among uint8", lambda x, n: n.to(torch.uint8) + 300),
    ("linear of float64 with weights", lambda x, n: functional.linear(x.double(), ONES)),
    ("a product of float32 and float64", lambda x, n: x @ x.double().T),
    ("a product of int64 and int64", lambda x, n: n @ n.T),
    ("layer_norm over another shape", lambda x, n: functional.layer_norm(x, (2,))),
    ("dropout in training", lambda x, n: functional.dropout(x, 0.1)),
    ("size_average and reduce", lambda x, n: functional.mse_loss(x, ONES, reduce=True)),
    ("size_average and reduce", lambda x, n: functional.l1_loss(x, ONES, size_average=False)),
    ("reduction 'most'", lambda x, n: functional.mse_loss(x, ONES, reduction="most")),
    ("mse_loss with weights", lambda x, n: functional.mse_loss(x, ONES, weight=ONES)),
    ("huber_loss with weights", lambda x, n: functional.huber_loss(x, ONES, weight=ONES)),
    (
        "weights of a cross entropy",
        lambda x, n: functional.binary_cross_entropy_with_logits(x, ONES, ONES),
    ),
    (
        "weights of a cross entropy",
        lambda x, n: functional.binary_cross_entropy_with_logits(x, ONES, pos_weight=ONES),
    ),
    (
        "cross_entropy with other options",
        lambda x, n: functional.cross_entropy(x, ROWS[:, 0], label_smoothing=0.1),
    ),
    (
        "cross_entropy with other options",
        lambda x, n: functional.cross_entropy(x, ROWS[:, 0], torch.ones(3)),
    ),
    ("cross_entropy with other", lambda x, n: functional.cross_entropy(x[0], torch.tensor(1))),
    ("nll_loss with other", lambda x, n: functional.nll_loss(x, ROWS[:, 0], torch.ones(3))),
    ("nll_loss with other", lambda x, n: functional.nll_loss(x, torch.tensor([0, -100]))),
    ("nll_loss with other", lambda x, n: functional.nll_loss(x[0], torch.tensor(1))),
    ("bytes as an index", lambda x, n: x[n[0, :2].to(torch.uint8)]),
    ("numbers and arrays in one index", lambda x, n: x[0, torch.tensor([0, 1])]),
    ("out of bounds", lambda x, n: x[5]),
    ("a step below 0", lambda x, n: x[::-1]),
    ("a str as an index", lambda x, n: x["a"]),
    ("an index of a single number", lambda x, n: x.sum()[n[0]]),
    ("gather with an index of other", lambda x, n: x.gather(1, torch.tensor([0]))),
    ("an index beyond the dimension", lambda x, n: x.gather(0, ROWS)),
    ("an index beyond the dimension", lambda x, n: x.gather(1, ROWS - 1)),
    ("scatter_add of another dtype", lambda x, n: x.scatter_add(1, ROWS, ONES.double())),
    ("one_hot of other numbers", lambda x, n: functional.one_hot(n.to(torch.int32))),
    ("one_hot of a number beyond", lambda x, n: functional.one_hot(n, 2)),
    ("one_hot of a number beyond", lambda x, n: functional.one_hot(n - 1, 3)),
    ("embedding with other", lambda x, n: functional.embedding(n[0, :2], x, padding_idx=0)),
    ("embedding with other", lambda x, n: functional.embedding(n[0, :2], x, max_norm=1.0)),
    ("embedding with other", lambda x, n: functional.embedding(n[0, :2], x, sparse=True)),
    (
        "embedding with other",
        lambda x, n: functional.embedding(n[0, :2], x, scale_grad_by_freq=True),
    ),
    ("an index below 0", lambda x, n: functional.embedding(n - 1, x)),
    ("an index below 0", lambda x, n: x.gather(1, n[:, :1] - 1)),
    ("an index below 0", lambda x, n: x.index_select(1, n[0] - 1)),
    ("an index below 0", lambda x, n: categorical_score(x, n[:, 0] - 1)),
    ("a mean of whole numbers", lambda x, n: n.mean()),
    ("a variance of whole numbers", lambda x, n: n.var()),
    ("norm 1", lambda x, n: x.norm(1)),
    ("an extreme along a dimension of a", lambda x, n: x.sum().max(0)),
    ("where without truth values", lambda x, n: torch.where(n, x, 0.0)),
    ("masked_fill with more than one", lambda x, n: x.masked_fill(n > 0, torch.ones(3))),
    ("masked_fill with more than one", lambda x, n: x.masked_fill(n, 1.0)),
    (
        "masked_fill with a value of a higher dtype",
        lambda x, n: n.masked_fill(n > 0, torch.tensor(0.5)),
    ),
    ("T of more than two dimensions", lambda x, n: x[None].t()),
    ("parts that are not the whole", lambda x, n: x.split([1, 1], 1)),
    ("pad with mode 'reflect'", lambda x, n: functional.pad(x, (1, 1), mode="reflect")),
    ("pad with mode 'constant'", lambda x, n: functional.pad(x, (-1, 0))),
    ("a tensor with a graph of its own", lambda x, n: x + ONES.clone().requires_grad_() * 2),
    ("a tensor that NumPy cannot show", lambda x, n: x + torch.ones(3, device="meta")),
    ("numbers of dtype", lambda x, n: x + torch.ones(3, dtype=torch.complex64)),
]


@pytest.mark.parametrize(("why", "ask"), REFUSED, ids=[why for why, _ in REFUSED])
def test_what_arrays_leave_to_torch_is_refused_with_the_reason(
    why: str, ask: Callable[[Any, Any], Any]
) -> None:
    param = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    tape = Tape([param])
    with tape, pytest.raises(UnsupportedError) as raised:
        ask(tape.leaf(param), tape.array(ROWS))
    assert why in str(raised.value)


TAKEN: list[Callable[[Any, Any], Any]] = [
    lambda x, n: x.sum().item(),
    lambda x, n: x.detach().numpy(),
    lambda x, n: x.to("cpu", torch.float64, non_blocking=True),
    lambda x, n: functional.relu(x, inplace=False),
    lambda x, n: functional.dropout(x, 0.5, training=False),
    lambda x, n: functional.dropout(x, 0.0),
    lambda x, n: functional.layer_norm(x, (3,)),
    lambda x, n: functional.layer_norm(x, (2, 3)),
    lambda x, n: functional.one_hot(n, 3),
    lambda x, n: functional.one_hot(n),
    lambda x, n: functional.nll_loss(x, torch.tensor([0, 2])),
    lambda x, n: x.gather(1, ROWS),
    lambda x, n: x.gather(0, ROWS % 2),
    lambda x, n: torch.take_along_dim(x, ROWS % 2, 0),
    lambda x, n: torch.take_along_dim(x, torch.tensor([[1], [0]]), 1),
    lambda x, n: torch.take_along_dim(x, torch.tensor([5, 0, 5])),
    lambda x, n: functional.embedding(n % 2, x),
    lambda x, n: x.norm("fro"),
    lambda x, n: x.split([1, 2], 1)[1],
    lambda x, n: functional.pad(x, (0, 1)),
    lambda x, n: functional.pad(x, (1, 0, 0, 2), value=7.0),
    lambda x, n: x.masked_fill(n > 1, 2.5),
    lambda x, n: x.masked_fill(n > 1, torch.tensor(2)),
    lambda x, n: n.to(torch.uint8) + 250,
    lambda x, n: x.t(),
    lambda x, n: x[0].t(),
    lambda x, n: x[::2],
    lambda x, n: x[1, ::2],
    lambda x, n: x[..., None],
    lambda x, n: x[None, :, 1:],
    lambda x, n: x[[1, 0, 1]],
    lambda x, n: x[numpy.array([1, 0])],
    lambda x, n: x[torch.tensor([True, False])],
    lambda x, n: x[torch.tensor([0, 1, 1]), torch.tensor([2, 2, 2])],
    lambda x, n: x.new_tensor([1, 2]),
]


@pytest.mark.parametrize("ask", TAKEN, ids=map(str, range(len(TAKEN))))
def test_what_is_close_to_that_is_as_in_torch(ask: Callable[[Any, Any], Any]) -> None:
    param = nn.Parameter(torch.arange(6.0).reshape(2, 3) * 0.5 - 1)
    wanted: Any = ask(param, ROWS)
    tape = Tape([param])
    with tape:
        found: Any = ask(tape.leaf(param), tape.array(ROWS))
        if isinstance(wanted, torch.Tensor):
            factors = torch.arange(wanted.numel()).reshape(wanted.shape) + 1.0
            if wanted.requires_grad:
                tape.backward((found * factors).sum())
            found = found.detach().numpy()
    if not isinstance(wanted, torch.Tensor):
        assert numpy.array_equal(found, wanted)
        return
    numpy.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-6)
    assert found.dtype == wanted.detach().numpy().dtype
    if wanted.requires_grad:
        (expected,) = torch.autograd.grad((wanted * factors).sum(), [param])
        torch.testing.assert_close(tape.gradients[0], expected)


def test_tapes_refuse_parameters_that_are_no_floats_and_losses_of_many_numbers() -> None:
    with pytest.raises(UnsupportedError, match="parameters of dtype int64"):
        Tape([nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)])
    param = nn.Parameter(torch.ones(2))
    tape = Tape([param])
    with tape, pytest.raises(UnsupportedError, match="a loss of more than one number"):
        tape.backward(tape.leaf(param) * 2)
