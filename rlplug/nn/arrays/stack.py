"""Fused forward and backward passes of multilayer perceptrons: one node for a whole network.

What a small network costs is dispatch, layer by layer and operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy
import torch
from torch import nn

from rlplug.nn.arrays.array import Array, Graph, accumulate

__all__ = ["run_layers", "run_stack"]

Value: TypeAlias = Any
Activation: TypeAlias = "tuple[Callable[[Value, Graph], Any], Callable[[Value, Value], Value]]"
"""What it does in place; and from its output and the gradient of that to that of its input."""


def run_layers(layers: nn.Module, features: Any) -> Any:
    """`layers(features)`; arrays pass linear layers and activations in one operation."""
    out = None
    if type(features) is Array:
        out = run_stack(layers, features, lambda: [*layers.children()] or [layers])
    return layers(features) if out is None else out


def run_stack(
    owner: nn.Module, features: Array, layers: Callable[[], Iterable[nn.Module] | None]
) -> Any:
    """Layers of a network one after the other, in one operation; None if they are not plain.

    They are asked for once: the tape watches the parts of their `owner` and the hooks on them.
    """
    stacks: dict[int, _Stack | None] = features.tape.stacks
    key = id(owner)
    stack = stacks[key] if key in stacks else _make_stack(owner, layers(), features.tape)
    value = features.value
    if stack is None or value.ndim != 2 or value.dtype is not stack.dtype:
        return None
    return stack(features)


class _Stack:
    """Linear layers and the activation after each."""

    def __init__(
        self,
        linear: Sequence[nn.Linear],
        activations: Sequence[Activation | None],
        graph: Graph,
    ) -> None:
        self._graph = graph
        leaves = [graph.leaf(param) for layer in linear for param in (layer.weight, layer.bias)]
        self._weights = leaves[::2]
        self._biases = leaves[1::2]
        self._activations = activations
        self._matrices = [leaf.value for leaf in self._weights]
        self._columns = [leaf.value[:, None] for leaf in self._biases]
        self.dtype = self._matrices[0].dtype
        self._trained = any(leaf.requires_grad for leaf in leaves)

    def __call__(self, features: Array) -> Array:
        graph = self._graph
        block = features.value.T
        outs = []
        for weight, column, activation in zip(
            self._matrices, self._columns, self._activations, strict=True
        ):
            block = weight.dot(block)
            block += column
            if activation is not None:
                activation[0](block, graph)
            outs.append(block)
        out = Array(block.T, graph)
        if torch.is_grad_enabled() and (self._trained or features.requires_grad):
            out.requires_grad = True
            graph.nodes.append((out, lambda g: self._back(features, outs, g.T)))
        return out

    def _back(self, features: Array, outs: list[Value], below: Value) -> None:
        ones = self._graph.ones(below.shape[1], below.dtype)
        for index in range(len(outs) - 1, -1, -1):
            activation = self._activations[index]
            if activation is not None:
                below = activation[1](outs[index], below)
            before = outs[index - 1].T if index else features.value
            _receive_product(self._weights[index], below, before)
            # A product with ones is a sum over the rows, in a third of the time.
            _receive_product(self._biases[index], below, ones)
            if index:
                below = self._matrices[index].T.dot(below)
            elif features.requires_grad:
                accumulate(features, self._matrices[0].T.dot(below).T)


def _receive_product(leaf: Array, below: Value, before: Value) -> None:
    if not leaf.requires_grad:
        return
    if leaf.grad_view is not None and leaf.grad is None:
        leaf.grad = below.dot(before, leaf.grad_view)
    else:
        accumulate(leaf, below.dot(before))


def _make_stack(
    owner: nn.Module, layers: Iterable[nn.Module] | None, graph: Graph
) -> _Stack | None:
    """The layers as a stack; None if there is anything else than linear layers and activations."""
    linear: list[nn.Linear] = []
    activations: list[Activation | None] = []
    plain = layers is not None and not any(map(_is_hooked, owner.modules()))
    for layer in layers or ():
        if type(layer) is nn.Linear and layer.bias is not None:
            linear.append(layer)
            activations.append(None)
        elif type(layer) in _ACTIVATIONS and activations and activations[-1] is None:
            activations[-1] = _ACTIVATIONS[type(layer)]
        else:
            plain = False
    params = [param for layer in linear for param in (layer.weight, layer.bias)]
    stack = None
    if plain and linear and len({param.dtype for param in params}) == 1:
        graph.watch(owner)
        stack = _Stack(linear, activations, graph)
    graph.stacks[id(owner)] = stack
    return stack


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _tanh(block: Value, graph: Graph) -> None:
    numpy.tanh(block, block)


def _tanh_gradient(out: Value, below: Value) -> Value:
    slope = out * out
    numpy.subtract(1, slope, slope)
    slope *= below
    return slope


def _relu(block: Value, graph: Graph) -> None:
    # Compared with an array of zeros, not with the number, in a fourth of the time.
    numpy.maximum(block, graph.zeros(block), out=block)


def _relu_gradient(out: Value, below: Value) -> Value:
    return below * (out > 0)


_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: (_tanh, _tanh_gradient),
    nn.ReLU: (_relu, _relu_gradient),
}
