"""Linear layers and activations in NumPy, to act and to be trained, on the memory of a network.

What a small network costs is dispatch, layer by layer and operation by operation: here all plain
layers between two other things are one operation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    TypeAlias,
    runtime_checkable,
)

import numpy
import torch
from numpy.typing import NDArray
from torch import nn

from rlplug.nn.arrays.array import (
    Array,
    Recorder,
    UnsupportedError,
    Value,
    accumulate,
    as_array,
    implement,
    recorded,
    recording,
    tape_of,
)
from rlplug.nn.arrays.elementwise import tanh_slope

__all__ = [
    "MLP",
    "ArrayForward",
    "Chain",
    "FrozenWeights",
    "NoArraysError",
    "NumpyArray",
    "Plan",
    "Stateless",
    "Views",
    "plan_arrays",
    "run_plain",
    "run_sequential",
    "sigmoid",
]

NumpyArray: TypeAlias = "NDArray[Any]"

ArrayForward: TypeAlias = Callable[..., Any]
"""A forward pass on arrays; it changes nothing that it is given, and may give it back."""


class Activation(NamedTuple):
    """An activation on an array of its own, in place, and the way back given what it gave."""

    apply: Callable[[Value], object]
    back: Callable[[Value, Value], Value] | None
    """From the gradient and what `apply` gave; None where that does not tell."""


class Layer(NamedTuple):
    """A linear layer and its activation."""

    weight: Value
    column: Value
    """The bias, with one number per row."""
    activation: Activation | None


class MLP:
    """Layers one after the other, in one operation.

    Inside, rows of the batch lie side by side as columns: so no product turns its operands.
    """

    __slots__ = ("_biases", "_is_trained", "_weights", "layers")

    def __init__(
        self,
        layers: Iterable[Layer],
        weights: list[Array] | None = None,
        biases: list[Array | None] | None = None,
    ) -> None:
        self.layers = tuple(layers)
        # Of what is trained: the layers' weights and biases on a tape.
        self._weights = weights or []
        self._biases = biases or []
        leaves = (*self._weights, *self._biases)
        self._is_trained = any(leaf is not None and leaf.requires_grad for leaf in leaves)

    def joined(self, other: MLP) -> MLP:
        """These layers, then those."""
        weights, biases = [*self._weights, *other._weights], [*self._biases, *other._biases]
        return MLP((*self.layers, *other.layers), weights, biases)

    def takes(self, activation: Activation | None) -> bool:
        """Whether the last layer has no activation yet, and this one can go back if need be."""
        if activation is None or self.layers[-1].activation is not None:
            return False
        return activation.back is not None or not self._weights

    def activated(self, activation: Activation | None) -> MLP:
        """The same with an activation at the end."""
        last = self.layers[-1]._replace(activation=activation)
        return MLP((*self.layers[:-1], last), self._weights, self._biases)

    def __call__(self, features: Value) -> Value:
        """Shape (rows, inputs) to (rows, outputs)."""
        block = features.T
        for weight, column, activation in self.layers:
            block = weight.dot(block)
            if column is not None:
                block += column
            if activation is not None:
                activation.apply(block)
        return block.T

    def _is_recording(self, features: Array) -> bool:
        return (self._is_trained or features.requires_grad) and torch.is_grad_enabled()

    def run(self, features: Array) -> Array:
        """The same as one node of a tape."""
        tape = features.tape
        if not self._is_recording(features):
            return Array(self(features.value), tape)
        block = features.value.T
        outs: list[Value] = []
        for weight, column, activation in self.layers:
            if len(weight) >= _WIDE and len(outs) == len(self.layers) - 1:
                # Row by row: what is wide is cut into parts, or multiplied in three dimensions.
                block = block.T.dot(weight.T).T
            else:
                block = weight.dot(block)
            if column is not None:
                block += column
            if activation is not None:
                activation.apply(block)
            outs.append(block)
        return recorded(block.T, tape, lambda g: self._back(features, outs, g.T))

    def run_rows(self, features: Array) -> Array:
        """One layer over the last of any number of dimensions: what comes out lies row by row."""
        (weight, column, _), leaf, bias = self.layers[0], self._weights[0], self._biases[0]
        x = features.value
        rows = x.reshape(-1, x.shape[-1])
        out = rows.dot(weight.T)
        if column is not None:
            out += column[:, 0]
        out = out.reshape(*x.shape[:-1], len(weight))
        if not self._is_recording(features):
            return Array(out, features.tape)

        def back(g: Value) -> None:
            below = g.reshape(-1, len(weight))
            _receive(leaf, below.T, rows)
            if bias is not None:
                _receive(bias, below.T, features.tape.ones(len(below), below.dtype))
            if features.requires_grad:
                accumulate(features, below.dot(weight).reshape(x.shape))

        return recorded(out, features.tape, back)

    def _back(self, features: Array, outs: list[Value], below: Value) -> None:
        rows: Value = None
        if len(outs) > 1 and not any(weight.requires_grad for weight in self._weights):
            # Of the lower of two networks, each has a gradient in some of the rows only.
            reached = below.any(0).nonzero()[0]
            if len(reached) <= _FEW * below.shape[1]:
                rows, below = reached, below.take(reached, 1)
                outs = [out.take(reached, 1) for out in outs]
        ones = features.tape.ones(below.shape[1], below.dtype)
        for index in range(len(outs) - 1, -1, -1):
            weight, _, activation = self.layers[index]
            if activation is not None and activation.back is not None:
                below = activation.back(below, outs[index])
            _receive(self._weights[index], below, outs[index - 1].T if index else features.value)
            bias = self._biases[index]
            if bias is not None:
                # A product with ones is a sum over the rows, in a third of the time.
                _receive(bias, below, ones)
            if index:
                below = weight.T.dot(below)
        if not features.requires_grad:
            return
        weight = self.layers[0].weight
        # As the features lie: what lies otherwise is several times slower to multiply with.
        lie_in_columns = features.value.flags.f_contiguous
        gradient = weight.T.dot(below).T if lie_in_columns else below.T.dot(weight)
        if rows is not None:
            gradient, some = numpy.zeros_like(features.value), gradient
            gradient[rows] = some
        accumulate(features, gradient)


def _receive(leaf: Array, below: Value, before: Value) -> None:
    """Add the product of two matrices to the gradient of a weight or bias."""
    if not leaf.requires_grad:
        return
    if leaf.grad_view is not None and leaf.grad is None:
        leaf.grad = below.dot(before, leaf.grad_view)
    else:
        accumulate(leaf, below.dot(before))


_WIDE = 32
"""Outputs from which rows lie together; fewer lie in columns, over which reductions are fast."""

_FEW = 0.75
"""The share of rows up to which going back through them alone is worth gathering them."""


# -- networks on a tape ----------------------------------------------------------------------------


def run_sequential(layers: nn.Sequential, features: Any) -> Any:
    """`layers(features)`; arrays pass plain layers that follow each other in one operation."""
    if type(features) is Array and features.value.ndim == 2:
        tape = features.tape
        key = id(layers)
        steps = tape.networks[key] if key in tape.networks else _read_steps(tape, layers)
        if steps is not None and features.value.dtype is tape.flat.dtype:
            for step in steps:
                features = step.run(features) if type(step) is MLP else step(features)
            return features
    return nn.Sequential.forward(layers, features)  # type: ignore[no-untyped-call] # as in torch


def run_plain(
    owner: nn.Module, features: Array, layers: Callable[[], Sequence[nn.Module] | None]
) -> Array | None:
    """Layers of a network one after the other, in one operation; None if they are not plain.

    They are asked for once: the tape watches the parts of their `owner` and the hooks on them.
    """
    tape = features.tape
    key = id(owner)
    if key not in tape.networks:
        steps = _read_steps(tape, owner, layers() or ())
        is_plain = steps is not None and len(steps) == 1 and type(steps[0]) is MLP
        tape.networks[key] = steps[0] if steps is not None and is_plain else None
    network = tape.networks[key]
    value = features.value
    if network is None or value.ndim != 2 or value.dtype is not tape.flat.dtype:
        return None
    return network.run(features)  # type: ignore[no-any-return] # of an MLP


def _read_steps(
    tape: Recorder, owner: nn.Module, layers: Sequence[nn.Module] | None = None
) -> list[Any] | None:
    """Runs of plain layers as MLPs, and what is between them; None where hooks are to be called."""
    tape.networks[id(owner)] = None
    try:
        tape.views.watch(owner)
    except NoArraysError:
        return None
    steps: list[Any] = []
    for layer in owner.children() if layers is None else layers:
        last = steps[-1] if steps and type(steps[-1]) is MLP else None
        activation = activation_of(layer)
        if type(layer) is nn.Linear and layer.weight.dtype is tape.trained[0].dtype:
            bias = None if layer.bias is None else tape.leaf(layer.bias)
            made = MLP([tape.views.layer(layer)], [tape.leaf(layer.weight)], [bias])
            if last is None:
                steps.append(made)
            else:
                steps[-1] = last.joined(made)
        elif last is not None and last.takes(activation):
            steps[-1] = last.activated(activation)
        else:
            steps.append(layer)
    tape.networks[id(owner)] = steps
    return steps


def linear(input: Any, weight: Any, bias: Any = None) -> Array:
    """x Wᵀ + b; what comes out lies with one column per row of the batch."""
    tape = tape_of(input, weight, bias)
    key = id(weight), id(bias)
    known = tape.networks.get(key)
    x = as_array(tape, input)
    if known is None:
        w, b = as_array(tape, weight), None if bias is None else as_array(tape, bias)
        known = MLP([Layer(w.value, None if b is None else b.value[:, None], None)], [w], [b])
        if isinstance(weight, nn.Parameter) and (b is None or isinstance(bias, nn.Parameter)):
            tape.networks[key] = known
    if x.value.dtype is not known.layers[0].weight.dtype:
        raise UnsupportedError(f"linear of {x.value.dtype} with weights of another dtype")
    return known.run(x) if x.value.ndim == 2 else known.run_rows(x)


def matmul(x: Any, y: Any) -> Array:
    """x @ y."""
    tape = tape_of(x, y)
    x, y = as_array(tape, x), as_array(tape, y)
    a, b = x.value, y.value
    if a.dtype != b.dtype or a.dtype.kind != "f":
        raise UnsupportedError(f"a product of {a.dtype} and {b.dtype}")
    out = numpy.matmul(a, b)
    if not recording(x, y):
        return Array(out, tape)

    def back(g: Value) -> None:
        left = a[None, :] if a.ndim == 1 else a
        right = b[:, None] if b.ndim == 1 else b
        grad = g[..., None] if b.ndim == 1 else g
        grad = grad[..., None, :] if a.ndim == 1 else grad
        if x.requires_grad:
            mine = numpy.matmul(grad, right.swapaxes(-1, -2))
            accumulate(x, mine[..., 0, :] if a.ndim == 1 else mine)
        if y.requires_grad:
            mine = numpy.matmul(left.swapaxes(-1, -2), grad)
            accumulate(y, mine[..., 0] if b.ndim == 1 else mine)

    return recorded(out, tape, back)


implement(
    linear=linear,
    matmul=matmul,
    __matmul__=matmul,
    __rmatmul__=lambda x, y: matmul(y, x),
)


# -- views of weights ------------------------------------------------------------------------------


class _Scope(threading.local):
    """The scope that a thread is in: what one does with its networks is no matter of others."""

    now: object | None = None


class FrozenWeights:
    """A scope in which no network gets other weights, so that looking once is enough.

    Looking takes longer than a small layer, and acting does it at every step. What optimizers
    write into weights everybody sees; only another tensor in the place of one is not noticed
    before the end.
    """

    __slots__ = ("_before",)

    scope: ClassVar[_Scope] = _Scope()
    """Its `now` tells one such scope of a thread from another; None outside of them."""

    def __init__(self) -> None:
        self._before: object | None = None

    def __enter__(self) -> None:
        scope = FrozenWeights.scope
        self._before, scope.now = scope.now, object()

    def __exit__(self, *_: Any) -> None:
        FrozenWeights.scope.now = self._before


class NoArraysError(Exception):
    """This module runs through torch only."""


@runtime_checkable
class HasArrayForward(Protocol):
    """A module that knows its own forward pass in NumPy."""

    def array_forward(self, views: Views) -> ArrayForward: ...


class Views:
    """Views of the weights of a module, and the means to see that they are still its weights.

    Optimizers, also fused ones, and `load_state_dict` write into the memory that a view shows, so
    a view goes stale only when a tensor or a part of the module is replaced by another one.
    Version counters would not do: fused optimizers do not move them.
    """

    def __init__(self, *, noisy: bool) -> None:
        self.noisy = noisy
        self.weights = 0
        self._places: list[tuple[dict[str, Any], str]] = []
        self._addresses: list[int] = []
        self._slots: list[tuple[dict[str, Any], str]] = []
        self._parts: list[nn.Module] = []
        self._hooks: list[dict[int, Any]] = []
        self._seen: object = _NEVER

    def of(self, module: nn.Module, name: str) -> NumpyArray:
        """A view of one parameter or buffer of a module."""
        table = module._parameters if name in module._parameters else module._buffers
        tensor = table[name]
        if tensor is None or tensor.device.type != "cpu" or tensor.dtype not in _DTYPES:
            raise NoArraysError
        self._places.append((table, name))
        self._addresses.append(tensor.data_ptr())
        self.weights += tensor.numel()
        return tensor.detach().numpy()

    def part(self, module: nn.Module, name: str) -> ArrayForward:
        """The forward pass of one part of a module."""
        return self._forward(self.keep(module, name))

    def root(self, module: nn.Module) -> ArrayForward:
        """The forward pass of a whole network."""
        self._refuse_hooks(module)
        return self._forward(module)

    def keep(self, module: nn.Module, name: str) -> nn.Module:
        """One part of a module, whose place no other may take."""
        part = module._modules[name]
        assert part is not None
        self._refuse_hooks(part)
        self._slots.append((module._modules, name))
        self._parts.append(part)
        return part

    def watch(self, module: nn.Module) -> None:
        """Keep all parts of a module."""
        self._refuse_hooks(module)
        for part in module.modules():
            for name, child in part._modules.items():
                if child is not None:
                    self.keep(part, name)

    def current(self) -> bool:
        """Whether every view still shows the weights of the module."""
        now = FrozenWeights.scope.now
        if now is self._seen:
            return True
        # This runs at every step: comparing whole lists is the fastest that Python has.
        try:
            current = (
                [table[name].data_ptr() for table, name in self._places] == self._addresses
                and [table[name] for table, name in self._slots] == self._parts
                and not any(self._hooks)
            )
        except (AttributeError, KeyError):
            return False
        if current:
            self._seen = _NEVER if now is None else now
        return current

    def layer(
        self,
        module: nn.Module,
        activation: Activation | None = None,
        *,
        weight: str = "weight",
        bias: str = "bias",
    ) -> Layer:
        """A linear layer of a module, by the names of its parameters."""
        has_bias = module._parameters[bias] is not None
        column = self.of(module, bias)[:, None] if has_bias else None
        return Layer(self.of(module, weight), column, activation)

    def sequential(self, layers: nn.Sequential) -> ArrayForward:
        """The forward pass of layers one after the other."""
        steps: list[ArrayForward] = []
        for name in layers._modules:
            part = self.keep(layers, name)
            activation = activation_of(part)
            last = steps[-1] if steps else None
            if isinstance(last, MLP) and last.takes(activation):
                steps[-1] = last.activated(activation)
            else:
                steps.append(self._forward(part) if activation is None else _copied(activation))
        return Chain(*steps)

    def _forward(self, module: nn.Module) -> ArrayForward:
        if type(module) is nn.Linear:
            return MLP([self.layer(module)])
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            return self.sequential(module)
        if isinstance(module, HasArrayForward) and _speaks_for_itself(module):
            return module.array_forward(self)
        raise NoArraysError

    def _refuse_hooks(self, module: nn.Module) -> None:
        hooks = (module._forward_hooks, module._forward_pre_hooks)
        if any(hooks):
            raise NoArraysError
        self._hooks += hooks


class Plan:
    """A network's forward pass in NumPy, as long as its weights stay where they are."""

    def __init__(self, forward: ArrayForward, views: Views) -> None:
        self.forward = forward
        self.weights = views.weights
        self.current = views.current


class Chain:
    """Array functions one after the other; what is in chains and MLPs becomes one of each."""

    __slots__ = ("steps",)

    def __init__(self, *parts: ArrayForward) -> None:
        steps: list[ArrayForward] = []
        self.steps: tuple[ArrayForward, ...]
        for part in parts:
            for step in part.steps if isinstance(part, Chain) else (part,):
                last = steps[-1] if steps else None
                if isinstance(step, MLP) and isinstance(last, MLP):
                    steps[-1] = last.joined(step)
                else:
                    steps.append(step)
        self.steps = tuple(steps)

    def __call__(self, features: Any) -> Any:
        for step in self.steps:
            features = step(features)
        return features


class Stateless:
    """What a network without memory does to observations, whatever its state."""

    __slots__ = ("chain", "steps")

    def __init__(self, *parts: ArrayForward) -> None:
        self.chain = Chain(*parts)
        self.steps = self.chain.steps

    def __call__(self, observations: Any, state: Any) -> tuple[Any, None]:
        # As the chain does, at every step of an environment: one call less.
        for step in self.steps:
            observations = step(observations)
        return observations, None


def plan_arrays(module: nn.Module, *, noisy: bool = False) -> Plan | None:
    """The module's forward pass in NumPy, or None if it has to go through torch."""
    views = Views(noisy=noisy)
    try:
        return Plan(views.root(module), views)
    except NoArraysError:
        return None


_NEVER = object()

_DTYPES = (torch.float32, torch.float64)
_TWINS = (("forward", "array_forward"), ("step", "array_forward"), ("values", "array_values"))


def _speaks_for_itself(module: nn.Module) -> bool:
    """Whether each NumPy pass was written for the torch pass beside it, and for none over it."""
    line = type(module).__mro__
    for torch_pass, array_pass in _TWINS:
        arrays = [i for i, kind in enumerate(line) if array_pass in vars(kind)]
        torchs = [i for i, kind in enumerate(line) if torch_pass in vars(kind)]
        if arrays and torchs and torchs[0] < arrays[0]:
            return False
    return True


# -- activations -----------------------------------------------------------------------------------


def activation_of(layer: nn.Module) -> Activation | None:
    """The same function on arrays; None for a layer that is not known."""
    kind = type(layer)
    if kind is nn.Tanh:
        return Activation(lambda x: numpy.tanh(x, x), tanh_slope)
    if kind is nn.ReLU:
        return Activation(_relu(), lambda g, out: g * (out > 0))
    if kind is nn.SiLU:
        return Activation(lambda x: numpy.multiply(x, sigmoid(x), x), None)
    if isinstance(layer, nn.ELU) and kind is nn.ELU:
        return _below_zero(numpy.expm1, layer.alpha, lambda out: out + layer.alpha)
    if isinstance(layer, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return _below_zero(numpy.positive, layer.negative_slope, lambda out: layer.negative_slope)
    return None


def _relu() -> Callable[[NumpyArray], object]:
    zeros: NumpyArray = numpy.zeros(0)

    def relu(x: NumpyArray) -> None:
        nonlocal zeros
        if zeros.shape != x.shape:
            zeros = numpy.zeros_like(x)
        # Compared with an array of zeros, not with the number, in a fourth of the time.
        numpy.maximum(x, zeros, out=x)

    return relu


def _below_zero(function: Any, factor: float, slope: Callable[[Value], Value]) -> Activation:
    """Numbers above 0 as they are, below it a function of them times a positive factor."""

    def apply(x: NumpyArray) -> None:
        below = function(numpy.minimum(x, 0))
        below *= factor
        numpy.add(numpy.maximum(x, 0, out=x), below, out=x)

    def back(g: NumpyArray, out: NumpyArray) -> NumpyArray:
        gradient: NumpyArray = g * numpy.where(out > 0, out.dtype.type(1), slope(out))
        return gradient

    return Activation(apply, back if factor > 0 else None)


def _copied(activation: Activation) -> ArrayForward:
    """An activation alone: somebody else's array is not its to change."""

    def apply(x: NumpyArray) -> NumpyArray:
        own = x.copy()
        activation.apply(own)
        return own

    return apply


def sigmoid(x: NumpyArray) -> NumpyArray:
    """1 / (1 + exp(-x)), by way of tanh: nothing overflows."""
    half: NumpyArray = numpy.tanh(x * 0.5)
    half += 1
    half *= 0.5
    return half
