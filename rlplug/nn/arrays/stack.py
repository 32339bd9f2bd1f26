"""Fused forward and backward passes of multilayer perceptrons: one node for a whole network.

What a small network costs is dispatch, layer by layer and operation by operation. What a wide one
costs is products: those are torch's, on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor, nn

from rlplug.nn.arrays.array import Array, Graph, accumulate, as_tensor

__all__ = ["run_layers", "run_stack"]

Value: TypeAlias = Any

_WIDE = 2**22
"""Multiplications in the widest layer from which torch's products are ahead of NumPy's."""

_FEW = 0.75
"""The share of rows up to which going back through them alone is worth gathering them."""


@dataclass(frozen=True)
class Activation:
    """An activation in NumPy and in torch.

    Forward passes work in place; backward ones take the output and the gradient of that.
    """

    forward: Callable[[Value, Graph], Any]
    backward: Callable[[Value, Value], Value]
    forward_in_torch: Callable[[Tensor], Any]
    backward_in_torch: Callable[[Tensor, Tensor], Tensor]


def run_layers(layers: nn.Module, features: Any) -> Any:
    """`layers(features)`; arrays pass linear layers and activations in one operation."""
    out = None
    if type(features) is Array:
        if isinstance(layers, nn.Sequential) and not layers._modules:
            return features
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
        self._tensors = [torch.from_numpy(leaf.value) for leaf in leaves]
        self._widest = max(matrix.size for matrix in self._matrices)
        self.dtype = self._matrices[0].dtype
        self._trained = any(leaf.requires_grad for leaf in leaves)

    def __call__(self, features: Array) -> Array:
        graph = self._graph
        if len(features.value) * self._widest >= _WIDE:
            return self._in_torch(features)
        block = features.value.T
        outs = []
        for weight, column, activation in zip(
            self._matrices, self._columns, self._activations, strict=True
        ):
            block = weight.dot(block)
            block += column
            if activation is not None:
                activation.forward(block, graph)
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
                below = activation.backward(outs[index], below)
            before = outs[index - 1].T if index else features.value
            _receive_product(self._weights[index], below, before)
            # A product with ones is a sum over the rows, in a third of the time.
            _receive_product(self._biases[index], below, ones)
            if index:
                below = self._matrices[index].T.dot(below)
            elif features.requires_grad:
                accumulate(features, self._matrices[0].T.dot(below).T)

    def _in_torch(self, features: Array) -> Array:
        graph = self._graph
        inputs = block = as_tensor(features.value)
        outs = []
        for index, activation in enumerate(self._activations):
            weight, bias = self._tensors[2 * index : 2 * index + 2]
            block = torch.addmm(bias, block, weight.t())
            if activation is not None:
                activation.forward_in_torch(block)
            outs.append(block)
        out = Array(block.numpy(), graph)
        if torch.is_grad_enabled() and (self._trained or features.requires_grad):
            out.requires_grad = True
            graph.nodes.append((out, lambda g: self._back_in_torch(features, inputs, outs, g)))
        return out

    def _back_in_torch(
        self, features: Array, inputs: Tensor, outs: list[Tensor], gradient: Value
    ) -> None:
        below = as_tensor(gradient)
        rows = None
        if not any(leaf.requires_grad for leaf in (*self._weights, *self._biases)):
            # Of the lower of two networks, each has a gradient in some of the rows only.
            reached = below.any(1).nonzero().squeeze(1)
            if len(reached) <= _FEW * len(below):
                rows = reached
                below = below.index_select(0, rows)
                outs = [out.index_select(0, rows) for out in outs]
        for index in range(len(outs) - 1, -1, -1):
            activation = self._activations[index]
            if activation is not None:
                below = activation.backward_in_torch(outs[index], below)
            before = outs[index - 1] if index else inputs
            weight, bias = self._weights[index], self._biases[index]
            if weight.requires_grad:
                if weight.grad_view is not None and weight.grad is None:
                    torch.mm(below.t(), before, out=torch.from_numpy(weight.grad_view))
                    weight.grad = weight.grad_view
                else:
                    accumulate(weight, torch.mm(below.t(), before).numpy())
            if bias.requires_grad:
                if bias.grad_view is not None and bias.grad is None:
                    torch.sum(below, 0, out=torch.from_numpy(bias.grad_view))
                    bias.grad = bias.grad_view
                else:
                    accumulate(bias, below.sum(0).numpy())
            if index:
                below = torch.mm(below, self._tensors[2 * index])
            elif features.requires_grad:
                below = torch.mm(below, self._tensors[0])
                if rows is not None:
                    below = torch.zeros_like(inputs).index_copy_(0, rows, below)
                accumulate(features, below.numpy())


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


def _tanh_of_tensor(block: Tensor) -> None:
    # With AVX-512 NumPy takes a tenth of the time of torch's.
    values = block.numpy()
    numpy.tanh(values, values)


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


_aten: Any = torch.ops.aten

_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: Activation(
        _tanh,
        _tanh_gradient,
        _tanh_of_tensor,
        lambda out, below: _aten.tanh_backward(below, out),
    ),
    nn.ReLU: Activation(
        _relu,
        _relu_gradient,
        torch.relu_,
        lambda out, below: _aten.threshold_backward(below, out, 0),
    ),
}
