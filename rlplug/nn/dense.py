"""Linear layers with tanh or ReLU on one CPU thread, forward and backward, in NumPy.

What torch spends on a small network is dispatch, not arithmetic. Arrays lie with one column per
row of the batch, so that no product has to turn its operands, and are computed in blocks that fit
the cache. Several stacks of layers side by side are one node of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from rlplug.nn.activations import Array

__all__ = ["Stack", "Tape", "dense", "is_followed", "read_layers", "stack_of"]


@attrs.frozen
class Bend:
    """An activation: in place, its slope times a gradient, and how autograd knows it."""

    apply: Callable[[Array, Array], Any]
    """Given what to bend, and zeros of the same shape."""
    slope: Callable[[Array, Array], Array]
    """From what it gave and the gradient of that to the gradient of what it was given."""
    traced: Callable[[Tensor], Tensor]


Layers: TypeAlias = "tuple[list[nn.Linear], list[Bend | None]]"
"""Linear layers, and the activation after each."""

Tape: TypeAlias = "list[tuple[slice, list[Array]]]"
"""For each block of rows the outputs of every layer, shape (width, rows)."""

_NUMBERS_IN_CACHE = 65_536
"""Numbers of one array in a block: a few arrays of so many stay in the second-level cache."""


class Stack:
    """Linear layers, what bends their outputs, and what they do to rows."""

    __slots__ = (
        "_columns",
        "_ones",
        "_size",
        "_turned",
        "_weights",
        "_widest",
        "_zeros",
        "bends",
        "params",
    )

    def __init__(self, layers: Layers) -> None:
        linear, self.bends = layers
        self.params = [param for layer in linear for param in (layer.weight, layer.bias)]
        """Weights and biases in turn; arrays show their memory."""
        arrays = [param.detach().numpy() for param in self.params]
        self._weights = arrays[::2]
        self._turned = [weight.T for weight in self._weights]
        self._columns = [bias[:, None] for bias in arrays[1::2]]
        self._widest = max(map(len, arrays))
        self._size = max(64, _NUMBERS_IN_CACHE // self._widest)
        self._ones = numpy.ones(0, arrays[0].dtype)
        self._zeros = numpy.zeros((0, 0), arrays[0].dtype)

    def forward(self, features: Array) -> tuple[Array, Tape]:
        """From shape (rows, inputs) to (outputs, rows), and what `backward` needs to know."""
        blocks = self._blocks(len(features))
        if len(blocks) == 1:
            outs = self._outputs(features)
            return outs[-1], [(blocks[0], outs)]
        last = self._room(features)
        tape: Tape = []
        for rows in blocks:
            outs = self._outputs(features[rows])
            last[:, rows] = outs[-1]
            tape.append((rows, outs))
        return last, tape

    def last_outputs(self, features: Array) -> Array:
        """The same where nobody goes back: nothing else is kept."""
        blocks = self._blocks(len(features))
        if len(blocks) == 1:
            return self._outputs(features)[-1]
        last = self._room(features)
        for rows in blocks:
            last[:, rows] = self._outputs(features[rows])[-1]
        return last

    def backward(
        self,
        features: Array,
        tape: Tape,
        below: Array,
        *,
        own: bool = False,
        into: Sequence[Array] | None = None,
    ) -> tuple[Sequence[Array], Array | None]:
        """Gradients of weights and biases in turn, given that of the outputs, (outputs, rows).

        With `own`, that of the features as well, (rows, inputs). `into` are arrays to write to.
        """
        if into is None:
            into = [numpy.empty(param.shape, features.dtype) for param in self.params]
        if len(tape) == 1:
            mine = self._slopes(features, tape[0][1], below, into, own=own)
            return into, None if mine is None else mine.T
        wanted = numpy.empty_like(features) if own else None
        sums = into
        for rows, outs in tape:
            mine = self._slopes(features[rows], outs, below[:, rows], into, own=own)
            if wanted is not None and mine is not None:
                wanted[rows] = mine.T
            if into is sums:
                into = [numpy.empty_like(one) for one in sums]
                continue
            for total, more in zip(sums, into, strict=True):
                total += more
        return sums, wanted

    def _blocks(self, rows: int) -> list[slice]:
        size = self._size
        if rows <= 2 * size:
            return [slice(0, rows)]
        return [slice(start, start + size) for start in range(0, rows, size)]

    def _room(self, features: Array) -> Array:
        return numpy.empty((len(self._columns[-1]), len(features)), features.dtype)

    def _outputs(self, features: Array) -> list[Array]:
        block = features.T
        outs = []
        if self._zeros.shape[1] != len(features):
            self._zeros = numpy.zeros((self._widest, len(features)), self._zeros.dtype)
        for weight, column, bend in zip(self._weights, self._columns, self.bends, strict=True):
            block = weight.dot(block)
            block += column
            if bend is not None:
                bend.apply(block, self._zeros[: len(block)])
            outs.append(block)
        return outs

    def _slopes(
        self,
        features: Array,
        outs: Sequence[Array],
        below: Array,
        into: Sequence[Array],
        *,
        own: bool,
    ) -> Array | None:
        rows = below.shape[1]
        if len(self._ones) != rows:
            self._ones = numpy.ones(rows, below.dtype)
        for index in range(len(outs) - 1, -1, -1):
            bend = self.bends[index]
            if bend is not None:
                below = bend.slope(outs[index], below)
            known = outs[index - 1].T if index else features
            below.dot(known, out=into[2 * index])
            # A product with ones is a sum over the rows, in a third of the time.
            below.dot(self._ones, out=into[2 * index + 1])
            if index or own:
                below = self._turned[index].dot(below)
        return below if own else None


def read_layers(layers: Iterable[nn.Module]) -> Layers | None:
    """Linear layers with biases, and known activations after some; None if there is more."""
    linear: list[nn.Linear] = []
    bends: list[Bend | None] = []
    for layer in layers:
        if type(layer) is nn.Linear and layer.bias is not None:
            linear.append(layer)
            bends.append(None)
        elif type(layer) in BENDS and bends and bends[-1] is None:
            bends[-1] = BENDS[type(layer)]
        else:
            return None
    return (linear, bends) if linear else None


def stack_of(layers: Sequence[nn.Module] | nn.Sequential, features: Tensor) -> Stack | None:
    """The layers as a stack, if here they would do exactly what they do, and faster; else None."""
    if not _is_plain(features) or any(map(_is_watched, layers)):
        return None
    found = read_layers(layers)
    if found is None or not any(found[1]):
        return None
    if any(layer.weight.dtype != features.dtype for layer in found[0]):
        return None
    return Stack(found)


def dense(features: Sequence[Tensor], stacks: Sequence[Stack]) -> tuple[Tensor, ...]:
    """What each stack makes of its features, shape (n, inputs) to (n, outputs)."""
    if not torch.is_grad_enabled():
        return tuple(
            torch.from_numpy(stack.last_outputs(one.detach().numpy()).T)
            for one, stack in zip(features, stacks, strict=True)
        )
    params = [param for stack in stacks for param in stack.params]
    return _Dense.apply(list(stacks), *features, *params)  # type: ignore[no-any-return, no-untyped-call] # untyped in torch


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stacks: list[Stack], *given: Tensor) -> Any:
        ctx.stacks = stacks
        # Saved although the stacks see the weights: autograd notices if they are changed.
        ctx.save_for_backward(*given)
        ctx.tapes = []
        outs = []
        for features, stack in zip(given, stacks, strict=False):
            last, tape = stack.forward(features.numpy())
            outs.append(torch.from_numpy(last.T))
            ctx.tapes.append(tape)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        stacks, given = ctx.stacks, ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            # Somebody wants gradients of these gradients: that is autograd's own business.
            return (None, *_traced_slopes(stacks, given, gradients, wanted))
        by_features: list[Tensor | None] = []
        by_params: list[Tensor | None] = []
        for index, stack in enumerate(stacks):
            below = gradients[index].numpy().T
            features = given[index].numpy()
            found, mine = stack.backward(features, ctx.tapes[index], below, own=wanted[index])
            by_features.append(None if mine is None else torch.from_numpy(mine))
            by_params += map(torch.from_numpy, found)
        return (None, *by_features, *by_params)


def _traced_slopes(
    stacks: list[Stack],
    given: Sequence[Tensor],
    gradients: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    params = iter(given[len(stacks) :])
    outs = []
    for features, stack in zip(given, stacks, strict=False):
        out = features
        for bend in stack.bends:
            out = nn.functional.linear(out, next(params), next(params))
            out = out if bend is None else bend.traced(out)
        outs.append(out)
    inputs = [one for one, needed in zip(given, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(outs, inputs, gradients, create_graph=True))
    return [next(found) if needed else None for needed in wanted]


def is_followed() -> bool:
    """Whether somebody follows what torch does here, or wants it to do more than NumPy can."""
    # Asked first: what follows cannot be compiled itself.
    return torch.compiler.is_compiling() or (
        torch.get_num_threads() != 1
        # The first question is a fourth of the second.
        or (torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled("cpu"))
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _has_any_global_hook()  # type: ignore[no-untyped-call] # untyped in torch
    )


def _is_plain(features: Tensor) -> bool:
    return not is_followed() and (
        features.device.type == "cpu"
        and features.dim() == 2
        and features.dtype in (torch.float32, torch.float64)
    )


def _is_watched(layer: nn.Module) -> bool:
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
    )


def _tanh_slope(out: Array, gradient: Array) -> Array:
    slope = out * out
    numpy.subtract(1, slope, out=slope)
    slope *= gradient
    return slope


BENDS: dict[type[nn.Module], Bend] = {
    nn.Tanh: Bend(lambda array, zeros: numpy.tanh(array, out=array), _tanh_slope, torch.tanh),
    nn.ReLU: Bend(
        # Compared with an array of zeros, not with the number, in a fourth of the time.
        lambda array, zeros: numpy.maximum(array, zeros, out=array),
        lambda out, gradient: gradient * (out > 0),
        torch.relu,
    ),
}
"""The activations whose slopes are known from their outputs."""
