"""Memory: an LSTM or a GRU, over fragments of episodes at once or one step at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rlplug.errors import RequestError
from rlplug.nn.arrays import MLP, ArrayForward, NumpyArray, Views, sigmoid
from rlplug.nn.layers import orthogonal
from rlplug.nn.lstm import packed_lstm

__all__ = ["Fragments", "Memory", "MemoryKind", "State"]

MemoryKind: TypeAlias = Literal["lstm", "gru"]

State: TypeAlias = Mapping[str, Any]
"""`hidden`, and `cell` of an LSTM: one row for each environment or fragment."""


@dataclass(frozen=True, slots=True)
class Fragments:
    """Where pieces of episodes lie in the rows of a batch, and the memory each begins with.

    Together they hold every row once. Without a state, all begin as episodes do.
    """

    start: Tensor
    stop: Tensor
    state: Mapping[str, Tensor] | None = None


class Memory(nn.Module):
    """What was seen before, in one layer of an LSTM or a GRU; the state begins at zero."""

    def __init__(
        self, in_features: int, size: int, kind: MemoryKind = "lstm", *, ortho_init: bool = True
    ) -> None:
        super().__init__()
        self.kind = kind
        self._names = ("hidden", "cell") if kind == "lstm" else ("hidden",)
        self.out_features = size
        self.layer: nn.RNNBase = (nn.LSTM if kind == "lstm" else nn.GRU)(in_features, size)
        if ortho_init:
            orthogonal(self.layer, "memory")

    def forward(
        self, features: Tensor, fragments: Fragments
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """All rows in one pass, shape (rows, size), and the state after each fragment."""
        order, rows, counts = _packing(fragments, features.shape[0])
        state = fragments.state
        if state is None:
            state = self.initial_state(len(order))
        order = order.to(features.device)
        begun = self._to_layer(state, features, order)
        out, last = self._pass(features, begun, rows, counts)
        back = torch.argsort(order)
        return out, {name: part[back] for name, part in self._named(last).items()}

    def _pass(self, features: Tensor, begun: Any, rows: Tensor, counts: Tensor) -> Any:
        """Outputs in the order of the features, and the last state as the layer gives it."""
        if self.kind == "lstm" and _is_plain(features):
            hidden, cell = begun
            weights = list(self.layer.parameters())
            out, *last = packed_lstm(features, hidden[0], cell[0], weights, rows, counts.tolist())
            return out, tuple(part.unsqueeze(0) for part in last)
        rows = rows.to(features.device)
        out, last = self.layer(PackedSequence(features[rows], counts), begun)
        place = torch.empty_like(rows)
        place[rows] = torch.arange(len(rows), device=rows.device)
        return out.data[place], last

    def step(
        self, features: Tensor, state: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """One step of n environments, shape (n, size), and their state after it."""
        if state is None:
            state = self.initial_state(features.shape[0])
        out, after = self.layer(features.unsqueeze(0), self._to_layer(state, features))
        return out.squeeze(0), self._named(after)

    def initial_state(self, n: int) -> dict[str, Tensor]:
        """The state of n fresh episodes."""
        weight = next(self.layer.parameters())
        return {name: weight.new_zeros(n, self.out_features) for name in self._names}

    def array_forward(self, views: Views) -> ArrayForward:
        """`step` on arrays."""
        seen, remembered = (
            MLP([views.layer(self.layer, weight=f"weight_{name}_l0", bias=f"bias_{name}_l0")])
            for name in ("ih", "hh")
        )
        step = _lstm_step if self.kind == "lstm" else _gru_step

        def forward(features: NumpyArray, state: Mapping[str, NumpyArray] | None) -> Any:
            before = seen(features)
            if state is None:
                nothing = numpy.zeros((len(features), self.out_features), before.dtype)
                state = {"hidden": nothing, "cell": nothing}
            return step(before, remembered(numpy.asarray(state["hidden"])), state)

        return forward

    def _to_layer(
        self, state: Mapping[str, Tensor], like: Tensor, order: Tensor | None = None
    ) -> Any:
        parts = [state[name].to(like) for name in self._names]
        if order is not None:
            parts = [part[order] for part in parts]
        layered = tuple(part.unsqueeze(0).contiguous() for part in parts)
        return layered if self.kind == "lstm" else layered[0]

    def _named(self, layered: Any) -> dict[str, Tensor]:
        parts = layered if self.kind == "lstm" else (layered,)
        return {name: part.squeeze(0) for name, part in zip(self._names, parts, strict=True)}


def _is_plain(features: Tensor) -> bool:
    """Whether NumPy can compute with these, and nobody wants to see what torch would do."""
    on_cpu = features.device.type == "cpu" and features.dtype in (torch.float32, torch.float64)
    return on_cpu and not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())


def _packing(fragments: Fragments, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fragments from long to short; all rows, those of one time together; how many at each time."""
    start, stop = fragments.start.cpu(), fragments.stop.cpu()
    lengths = stop - start
    if int(lengths.sum()) != rows or (rows and int(lengths.min()) < 1):
        raise RequestError(
            f"fragments of {lengths.tolist()} rows do not hold the {rows} rows of the batch.",
            "try: give every row to exactly one fragment",
        )
    order = torch.argsort(lengths, descending=True, stable=True)
    lengths, start = lengths[order], start[order]
    times = torch.arange(int(lengths[0])).unsqueeze(1)
    within = times < lengths
    return order, (start + times)[within], within.sum(1)


def _lstm_step(before: NumpyArray, recurrent: NumpyArray, state: Mapping[str, NumpyArray]) -> Any:
    before += recurrent
    size = before.shape[1] // 4
    gates = sigmoid(before)
    cell = gates[:, size : 2 * size] * numpy.asarray(state["cell"])
    cell += gates[:, :size] * numpy.tanh(before[:, 2 * size : 3 * size])
    hidden = gates[:, 3 * size :] * numpy.tanh(cell)
    return hidden, {"hidden": hidden, "cell": cell}


def _gru_step(before: NumpyArray, recurrent: NumpyArray, state: Mapping[str, NumpyArray]) -> Any:
    size = before.shape[1] // 3
    gates = sigmoid(before[:, : 2 * size] + recurrent[:, : 2 * size])
    reset, update = gates[:, :size], gates[:, size:]
    fresh = numpy.tanh(before[:, 2 * size :] + reset * recurrent[:, 2 * size :])
    hidden = fresh + update * (numpy.asarray(state["hidden"]) - fresh)
    return hidden, {"hidden": hidden}
