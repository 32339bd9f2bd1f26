"""An LSTM over fragments on the CPU, forward and backward: a few array operations per time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlplug.nn.arrays import NumpyArray

__all__ = ["packed_lstm"]


def packed_lstm(
    features: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: Sequence[Tensor],
    rows: Tensor,
    counts: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """What `torch.nn.LSTM` computes on a packed sequence, at a fraction of its dispatch.

    Takes features of all rows, first hidden and cell (a row for each fragment, longest first),
    the layer's four parameters, the rows of time 0, of time 1 and so on, and how many these are.
    Gives the outputs in the order of the features, and the last hidden and cell.
    """
    if torch.is_grad_enabled():
        return _PackedLSTM.apply(features, hidden, cell, *weights, rows, counts)  # type: ignore[no-any-return, no-untyped-call] # untyped in torch
    # Without gradients the past must go at once: torch would keep it until garbage is collected.
    return _Past(features, hidden, cell, weights, rows, counts).answer()


class _PackedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, hidden: Tensor, cell: Tensor, *others: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        *weights, rows, counts = others
        ctx.past = _Past(features, hidden, cell, weights, rows, counts)
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
        d_features[past.order] = d_gates.dot(past.w_in)
        d_bias = d_gates.sum(0)
        found = (
            *(d_features, d_hidden, d_cell),
            d_gates.T.dot(past.features[past.order]),
            d_gates.T.dot(past.hidden[past.before()]),
            *(d_bias, d_bias.copy()),
        )
        return (*map(torch.from_numpy, found), None, None)


class _Past:
    """The forward pass, and what the backward pass needs of it; gates as in torch: i, f, g, o.

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
    ) -> None:
        self.order = rows.numpy()
        self.counts = counts
        self.features = features.detach().numpy()
        self.w_in, self.w_hidden, *biases = (weight.detach().numpy() for weight in weights)
        self.first, self.size = hidden.shape
        shape = (self.first + len(rows), self.size)
        dtype = self.features.dtype
        self.hidden, self.cells = numpy.empty(shape, dtype), numpy.empty(shape, dtype)
        self.hidden[: self.first] = hidden.detach().numpy()
        self.cells[: self.first] = cell.detach().numpy()
        self.gates = numpy.empty((len(rows), 4 * self.size), dtype)
        self._run(biases[0] + biases[1])

    def answer(self) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs in the order of the features, last hidden, last cell."""
        out = numpy.empty_like(self.hidden[self.first :])
        out[self.order] = self.hidden[self.first :]
        fragments = numpy.arange(self.first)
        lengths = (numpy.array(self.counts)[:, None] > fragments).sum(0)
        last = self._starts()[lengths - 1] + fragments
        return (
            torch.from_numpy(out),
            torch.from_numpy(self.hidden[last]),
            torch.from_numpy(self.cells[last]),
        )

    def before(self) -> NumpyArray:
        """Where the state before each row lies."""
        starts = self._starts()
        earlier = numpy.concatenate([[0], starts[:-1]])
        rows = numpy.arange(len(self.order)) + self.first
        places: NumpyArray = rows - numpy.repeat(starts - earlier, self.counts)
        return places

    def _starts(self) -> NumpyArray:
        """Where the states after each time begin."""
        starts: NumpyArray = self.first + numpy.cumsum([0, *self.counts[:-1]])
        return starts

    def _run(self, bias: NumpyArray) -> None:
        """One time after the other, all fragments that last so long at once."""
        size, gates = self.size, self.gates
        # sigmoid(x) = tanh(x / 2) / 2 + 1 / 2: halved beforehand, all gates take one tanh.
        halves = numpy.full(4 * size, 0.5, gates.dtype)
        halves[2 * size : 3 * size] = 1
        shifts = 1 - halves
        numpy.dot(self.features[self.order], (self.w_in * halves[:, None]).T, out=gates)
        gates += bias * halves
        # Lying as it is multiplied: thin products are several times slower otherwise.
        recurrent = numpy.ascontiguousarray((self.w_hidden * halves[:, None]).T)
        before, start = 0, 0
        for count in self.counts:
            stop = start + count
            now, after = gates[start:stop], slice(start + self.first, stop + self.first)
            now += self.hidden[before : before + count].dot(recurrent)
            numpy.tanh(now, out=now)
            now *= halves
            now += shifts
            cell = self.cells[after]
            forget = now[:, size : 2 * size]
            numpy.multiply(self.cells[before : before + count], forget, out=cell)
            cell += now[:, :size] * now[:, 2 * size : 3 * size]
            numpy.multiply(now[:, 3 * size :], numpy.tanh(cell), out=self.hidden[after])
            before, start = after.start, stop

    def back(
        self, out: NumpyArray, hidden: NumpyArray, cell: NumpyArray
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Backward: the gradients before the activations of all gates, and of the first state."""
        rows, size = len(self.order), self.size
        bounded = numpy.tanh(self.cells[self.first :])
        gates = self.gates.reshape(rows, 4, size)
        d_gates = 1 - gates
        d_gates[:, (0, 1, 3)] *= gates[:, (0, 1, 3)]
        d_gates[:, 2] *= 1 + gates[:, 2]
        # Each gate's derivative times what it is multiplied with towards the cell or the output.
        d_gates[:, 0] *= gates[:, 2]
        d_gates[:, 1] *= self.cells[self.before()]
        d_gates[:, 2] *= gates[:, 0]
        d_gates[:, 3] *= bounded
        through = gates[:, 3] * (1 - bounded * bounded)
        stop = rows
        for count in reversed(self.counts):
            start = stop - count
            d_hidden, d_cell, now = hidden[:count], cell[:count], d_gates[start:stop]
            d_hidden += out[start:stop]
            d_cell += d_hidden * through[start:stop]
            now[:, :3] *= d_cell[:, None]
            now[:, 3] *= d_hidden
            d_cell *= gates[start:stop, 1]
            numpy.dot(now.reshape(count, 4 * size), self.w_hidden, out=d_hidden)
            stop = start
        return d_gates.reshape(rows, 4 * size), hidden, cell
