"""Linear layers with tanh on one CPU thread, forward and backward, in blocks fit for the cache.

Matrix products are torch's; tanh is NumPy's, which takes a seventh of the time. Several stacks of
layers side by side are one node of the graph, instead of a dozen for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from rlplug.nn.activations import Array

__all__ = ["Stack", "dense", "stack_of"]

Bent: TypeAlias = "list[bool]"
"""For each linear layer of a stack whether tanh follows it."""

_NUMBERS_IN_CACHE = 65_536
"""Numbers of one array in a block: a few arrays of so many stay in the second-level cache."""

_NARROW = 16
"""Up to so many inputs the transposed product of a gradient is several times as fast."""


class Stack:
    """Weights and biases, where tanh follows them, and what they do to a block of rows."""

    __slots__ = ("bent", "biases", "weights")

    def __init__(self, bent: Bent, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        self.bent = bent
        self.weights, self.biases = weights, biases

    def blocks(self, rows: int) -> list[slice]:
        """Rows that are computed together."""
        size = max(64, _NUMBERS_IN_CACHE // max(len(bias) for bias in self.biases))
        if rows <= 2 * size:
            return [slice(0, rows)]
        return [slice(start, start + size) for start in range(0, rows, size)]

    def outputs(self, block: Tensor, places: Sequence[Tensor | None]) -> list[Tensor]:
        """Those of each layer for a block of rows, written to places where there are any."""
        outs = []
        for weight, bias, bent, place in zip(
            self.weights, self.biases, self.bent, places, strict=True
        ):
            block = torch.addmm(bias, block, weight.t(), out=place)
            if bent:
                array = block.numpy()
                numpy.tanh(array, out=array)
            outs.append(block)
        return outs

    def all_outputs(self, features: Tensor) -> list[Tensor]:
        """The same for all rows, block by block."""
        blocks = self.blocks(len(features))
        if len(blocks) == 1:
            return self.outputs(features, [None] * len(self.bent))
        outs = [features.new_empty(len(features), len(bias)) for bias in self.biases]
        for rows in blocks:
            self.outputs(features[rows], [out[rows] for out in outs])
        return outs

    def last_outputs(self, features: Tensor) -> Tensor:
        """Those of the last layer alone: nothing else is kept."""
        nowhere: list[Tensor | None] = [None] * (len(self.bent) - 1)
        blocks = self.blocks(len(features))
        if len(blocks) == 1:
            return self.outputs(features, [*nowhere, None])[-1]
        out = features.new_empty(len(features), len(self.biases[-1]))
        for rows in blocks:
            self.outputs(features[rows], [*nowhere, out[rows]])
        return out

    def slopes(
        self, features: Tensor, outs: Sequence[Tensor], below: Tensor, *, own: bool
    ) -> list[Tensor]:
        """Gradients for a block: of its features, if wanted, of weights and biases in turn."""
        found: list[Tensor] = []
        for index in range(len(outs) - 1, -1, -1):
            if self.bent[index]:
                below = torch.from_numpy(_slope(outs[index].numpy(), below.numpy()))
            known = outs[index - 1] if index else features
            if known.shape[1] <= _NARROW:
                by_weight = torch.mm(known.t(), below).t()
            else:
                by_weight = torch.mm(below.t(), known)
            found += [below.sum(0), by_weight]
            if index or own:
                below = torch.mm(below, self.weights[index])
        if own:
            found.append(below)
        found.reverse()
        return found

    def all_slopes(
        self, features: Tensor, outs: Sequence[Tensor], below: Tensor, *, own: bool
    ) -> list[Tensor]:
        """The same for all rows, block by block."""
        blocks = self.blocks(len(features))
        if len(blocks) == 1:
            return self.slopes(features, outs, below, own=own)
        wanted = [torch.empty_like(features)] if own else []
        sums: list[Tensor] = []
        for rows in blocks:
            mine = self.slopes(features[rows], [out[rows] for out in outs], below[rows], own=own)
            for place in wanted:
                place[rows] = mine.pop(0)
            if sums:
                torch._foreach_add_(sums, mine)
            else:
                sums = mine
        return [*wanted, *sums]

    def traced(self, features: Tensor) -> Tensor:
        """The last layer's outputs by operations that autograd knows."""
        for weight, bias, bent in zip(self.weights, self.biases, self.bent, strict=True):
            features = nn.functional.linear(features, weight, bias)
            if bent:
                features = torch.tanh(features)
        return features


def stack_of(layers: Iterable[nn.Module], features: Tensor) -> Stack | None:
    """The layers as a stack, if here they would do exactly what they do, and faster; else None."""
    if not _is_plain(features):
        return None
    bent: Bent = []
    weights, biases = [], []
    for layer in layers:
        if _is_watched(layer):
            return None
        if type(layer) is nn.Linear:
            weight, bias = layer.weight, layer.bias
            if bias is None or weight.dtype != features.dtype:
                return None
            weights.append(weight)
            biases.append(bias)
            bent.append(False)
        elif type(layer) is nn.Tanh and bent and not bent[-1]:
            bent[-1] = True
        else:
            return None
    return Stack(bent, weights, biases) if any(bent) else None


def dense(features: Sequence[Tensor], stacks: Sequence[Stack]) -> tuple[Tensor, ...]:
    """What each stack makes of its features, shape (n, inputs) to (n, outputs)."""
    if not torch.is_grad_enabled():
        return tuple(stack.last_outputs(one) for one, stack in zip(features, stacks, strict=True))
    given = list(features)
    for stack in stacks:
        for weight, bias in zip(stack.weights, stack.biases, strict=True):
            given += [weight, bias]
    kinds = [stack.bent for stack in stacks]
    return _Dense.apply(kinds, *given)  # type: ignore[no-any-return, no-untyped-call] # untyped in torch


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kinds: list[Bent], *given: Tensor) -> Any:
        outs = [stack.all_outputs(features) for features, stack in _apart(kinds, given)]
        ctx.kinds = kinds
        ctx.save_for_backward(*given, *(one for each in outs for one in each))
        return tuple(each[-1] for each in outs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kinds, saved = ctx.kinds, ctx.saved_tensors
        layers = sum(map(len, kinds))
        given, outs = saved[: len(kinds) + 2 * layers], saved[len(kinds) + 2 * layers :]
        wanted = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            # Somebody wants gradients of these gradients: that is autograd's own business.
            return (None, *_traced_slopes(kinds, given, gradients, wanted))
        by_features: list[Tensor | None] = []
        by_params: list[Tensor | None] = []
        first = 0
        for index, (features, stack) in enumerate(_apart(kinds, given)):
            last = first + len(stack.biases)
            own = wanted[index]
            found = stack.all_slopes(features, outs[first:last], gradients[index], own=own)
            by_features.append(found.pop(0) if own else None)
            by_params += found
            first = last
        return (None, *by_features, *by_params)


def _apart(kinds: list[Bent], given: Sequence[Tensor]) -> list[tuple[Tensor, Stack]]:
    """Each stack with its features, from one row of tensors."""
    pairs = []
    at = len(kinds)
    for features, bent in zip(given, kinds, strict=False):
        after = at + 2 * len(bent)
        pairs.append((features, Stack(bent, given[at:after:2], given[at + 1 : after : 2])))
        at = after
    return pairs


def _traced_slopes(
    kinds: list[Bent],
    given: Sequence[Tensor],
    gradients: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    outs = [stack.traced(features) for features, stack in _apart(kinds, given)]
    inputs = [one for one, needed in zip(given, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(outs, inputs, gradients, create_graph=True))
    return [next(found) if needed else None for needed in wanted]


def _is_plain(features: Tensor) -> bool:
    """Whether NumPy can help with these, and nobody wants to see what torch would do."""
    # Asked first: what follows cannot be compiled itself.
    return not torch.compiler.is_compiling() and (
        features.device.type == "cpu"
        and features.dim() == 2
        and features.dtype in (torch.float32, torch.float64)
        and torch.get_num_threads() == 1
        and not torch.is_autocast_enabled("cpu")
        and torch._C._functorch.peek_interpreter_stack() is None
        and not _has_any_global_hook()  # type: ignore[no-untyped-call] # untyped in torch
    )


def _is_watched(layer: nn.Module) -> bool:
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
    )


def _slope(out: Array, gradient: Array) -> Array:
    """From tanh's outputs and their gradient to that of its inputs."""
    slope = out * out
    numpy.subtract(1, slope, out=slope)
    slope *= gradient
    return slope
