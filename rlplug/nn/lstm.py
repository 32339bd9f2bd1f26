"""An LSTM over fragments on the CPU, forward and backward: a few array operations per time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlplug.nn.arrays import NumpyArray

__all__ = ["Spare", "packed_lstm"]


Spare: TypeAlias = list[NumpyArray]
"""Large arrays to be used again: getting fresh memory takes as long as computing in it."""


def packed_lstm(
    features: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: Sequence[Tensor],
    rows: Tensor,
    counts: list[int],
    spare: Spare,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `torch.nn.LSTM` computes on a packed sequence, at a fraction of its dispatch.

    Takes features of all rows, first hidden and cell (a row for each fragment, longest first),
    the layer's four parameters, the rows of time 0, of time 1 and so on, and how many these are.
    Gives the outputs in the order of the features, and the last hidden and cell. `spare` keeps
    large arrays from one call to the next.
    """
    if torch.is_grad_enabled():
        return _PackedLSTM.apply(features, hidden, cell, *weights, rows, counts, spare)  # type: ignore[no-any-return, no-untyped-call] # untyped in torch
    # Without gradients the past must go at once: torch would keep it until garbage is collected.
    return _Past(features, hidden, cell, weights, rows, counts, spare).answer()


class _PackedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, hidden: Tensor, cell: Tensor, *others: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        *weights, rows, counts, spare = others
        ctx.past = _Past(features, hidden, cell, weights, rows, counts, spare)
        ctx.save_for_backward(features)
        return ctx.past.answer()  # type: ignore[no-any-return] # whatever is in a context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        past: _Past = ctx.past
        # Not to read them, but to have torch refuse features that were changed since.
        _ = ctx.saved_tensors
        out, hidden, cell = (gradient.numpy() for gradient in gradients)
        d_gates, d_hidden, d_cell = past.back(out[past.order], hidden.copy(), cell.copy())
        d_features = numpy.empty_like(past.features)
        d_features[past.order] = numpy.dot(d_gates, past.w_in)
        d_bias = _grouped_back(d_gates.sum(0))
        d_weight_in = _grouped_back(numpy.dot(d_gates.T, past.features[past.order]))
        d_weight_hidden = _grouped_back(numpy.dot(d_gates.T, past.hidden[past.before()]))
        past.spare.append(d_gates)
        return (
            torch.from_numpy(d_features),
            torch.from_numpy(d_hidden),
            torch.from_numpy(d_cell),
            d_weight_in,
            d_weight_hidden,
            d_bias,
            d_bias.clone(),
            None,
            None,
            None,
        )


class _Past:
    """The forward pass, and what the backward pass needs of it; gates in the order o, i, f, g.

    Hidden and cells lie in one array each: the first states, then all rows. As the longest
    fragments come first, the state before some rows is the beginning of the rows before them.
    """

    def __init__(
        self,
        features: Tensor,
        hidden: Tensor,
        cell: Tensor,
        weights: Sequence[Tensor],
        rows: Tensor,
        counts: list[int],
        spare: Spare,
    ) -> None:
        self.spare = spare
        self.order = rows.numpy()
        self.counts = counts
        self.features = features.detach().numpy()
        self.w_in, self.w_hidden, bias_in, bias_hidden = map(_regrouped, weights)
        self.first = len(hidden)
        shape = (self.first + len(rows), hidden.shape[1])
        dtype = self.features.dtype
        self.hidden, self.cells = numpy.empty(shape, dtype), numpy.empty(shape, dtype)
        self.hidden[: self.first] = hidden.detach().numpy()
        self.cells[: self.first] = cell.detach().numpy()
        self.gates = _take(spare, len(rows), hidden.shape[1], dtype)
        self._run(bias_in + bias_hidden)

    def answer(self) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs in the order of the features, last hidden, last cell."""
        out = numpy.empty_like(self.hidden[self.first :])
        out[self.order] = self.hidden[self.first :]
        last = self._last()
        return (
            torch.from_numpy(out),
            torch.from_numpy(self.hidden[last]),
            torch.from_numpy(self.cells[last]),
        )

    def __del__(self) -> None:
        self.spare.append(self.gates)

    def before(self) -> NumpyArray:
        """Where the state before each row lies."""
        counts = numpy.array(self.counts)
        starts = self.first + numpy.cumsum(counts) - counts
        earlier = numpy.concatenate([[0], starts[:-1]])
        rows = numpy.arange(len(self.order)) + self.first
        places: NumpyArray = rows - numpy.repeat(starts - earlier, counts)
        return places

    def _last(self) -> NumpyArray:
        """Where the state after each fragment lies."""
        counts = numpy.array(self.counts)
        starts = self.first + numpy.cumsum(counts) - counts
        fragments = numpy.arange(self.first)
        lengths = (counts[:, None] > fragments).sum(0)
        places: NumpyArray = starts[lengths - 1] + fragments
        return places

    def _run(self, bias: NumpyArray) -> None:
        """One time after the other, all fragments that last so long at once."""
        size = self.hidden.shape[1]
        # sigmoid(x) = tanh(x / 2) / 2 + 1 / 2: halved beforehand, all gates take one tanh.
        halves = numpy.ones(4 * size, self.features.dtype)
        halves[: 3 * size] = 0.5
        gates = self.gates
        numpy.dot(self.features[self.order], (self.w_in * halves[:, None]).T, out=gates)
        gates += bias * halves
        # Lying as it is multiplied: thin products are several times slower otherwise.
        recurrent = numpy.ascontiguousarray((self.w_hidden * halves[:, None]).T)
        before, start = 0, 0
        for count in self.counts:
            stop = start + count
            now, after = gates[start:stop], slice(start + self.first, stop + self.first)
            now += numpy.dot(self.hidden[before : before + count], recurrent)
            numpy.tanh(now, out=now)
            opened = now[:, : 3 * size]
            opened *= 0.5
            opened += 0.5
            cell = self.cells[after]
            forget = now[:, 2 * size : 3 * size]
            numpy.multiply(self.cells[before : before + count], forget, out=cell)
            cell += now[:, size : 2 * size] * now[:, 3 * size :]
            numpy.multiply(now[:, :size], numpy.tanh(cell), out=self.hidden[after])
            before, start = after.start, stop

    def back(
        self, out: NumpyArray, hidden: NumpyArray, cell: NumpyArray
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Backward: the gradients before the activations of all gates, and of the first state."""
        rows, size = len(self.order), self.hidden.shape[1]
        bounded = numpy.tanh(self.cells[self.first :])
        gates = self.gates.reshape(rows, 4, size)
        d_gates = _take(self.spare, rows, size, gates.dtype).reshape(gates.shape)
        numpy.subtract(1, gates, out=d_gates)
        d_gates[:, :3] *= gates[:, :3]
        d_gates[:, 3] *= 1 + gates[:, 3]
        # Each gate's derivative times what it is multiplied with towards the cell or the output.
        d_gates[:, 0] *= bounded
        d_gates[:, 1] *= gates[:, 3]
        d_gates[:, 2] *= self.cells[self.before()]
        d_gates[:, 3] *= gates[:, 1]
        through = gates[:, 0] * (1 - bounded * bounded)
        stop = rows
        for count in reversed(self.counts):
            start = stop - count
            d_hidden, d_cell, now = hidden[:count], cell[:count], d_gates[start:stop]
            d_hidden += out[start:stop]
            d_cell += d_hidden * through[start:stop]
            now[:, 0] *= d_hidden
            now[:, 1:] *= d_cell[:, None]
            d_cell *= gates[start:stop, 2]
            numpy.dot(now.reshape(count, 4 * size), self.w_hidden, out=d_hidden)
            stop = start
        return d_gates.reshape(rows, 4 * size), hidden, cell


def _take(spare: Spare, rows: int, size: int, dtype: Any) -> NumpyArray:
    """An array for the gates of all rows: one that was used before, if it fits."""
    shape = (rows, 4 * size)
    try:
        while (used := spare.pop()).shape != shape or used.dtype != dtype:
            continue
        return used
    except IndexError:
        return numpy.empty(shape, dtype)


def _regrouped(parameter: Tensor) -> NumpyArray:
    """Gates in the order o, i, f, g instead of torch's i, f, g, o: the sigmoids, then tanh."""
    i, f, g, o = numpy.split(parameter.detach().numpy(), 4)
    return numpy.concatenate([o, i, f, g])


def _grouped_back(gradient: NumpyArray) -> Tensor:
    o, i, f, g = numpy.split(gradient, 4)
    return torch.from_numpy(numpy.concatenate([i, f, g, o]))
