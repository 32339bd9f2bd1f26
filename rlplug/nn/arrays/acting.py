"""Forward passes in NumPy, through views of a network's weights that copy nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy
import torch
from numpy.typing import NDArray
from torch import nn

__all__ = [
    "ArrayForward",
    "Chain",
    "FrozenWeights",
    "NoArraysError",
    "NumpyArray",
    "Plan",
    "Stateless",
    "Views",
    "array_activation",
    "linear_in_numpy",
    "plan_arrays",
    "sigmoid",
]

NumpyArray: TypeAlias = "NDArray[Any]"

ArrayForward: TypeAlias = Callable[..., Any]
"""A forward pass on arrays; it changes nothing that it is given, and may give it back."""


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
    """This module acts through torch only."""


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
        return self.forward(self.keep(module, name))

    def keep(self, module: nn.Module, name: str) -> nn.Module:
        """One part of a module, whose place no other may take."""
        part = module._modules[name]
        assert part is not None
        self._refuse_hooks(part)
        self._slots.append((module._modules, name))
        self._parts.append(part)
        return part

    def root(self, module: nn.Module) -> ArrayForward:
        """The forward pass of a whole network."""
        self._refuse_hooks(module)
        return self.forward(module)

    def forward(self, module: nn.Module) -> ArrayForward:
        """The forward pass of a part that is kept; raises where it has none in NumPy."""
        if type(module) is nn.Linear:
            return self._linear(module)
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            return self.sequential(module)
        if isinstance(module, HasArrayForward) and _speaks_for_itself(module):
            return module.array_forward(self)
        raise NoArraysError

    def current(self) -> bool:
        """Whether every view still shows the weights of the module."""
        now = FrozenWeights.scope.now
        if now is self._seen:
            return True
        if not self._show_weights():
            return False
        self._seen = _NEVER if now is None else now
        return True

    def _show_weights(self) -> bool:
        # This runs at every step: comparing whole lists is the fastest that Python has.
        try:
            return (
                [table[name].data_ptr() for table, name in self._places] == self._addresses
                and [table[name] for table, name in self._slots] == self._parts
                and not any(self._hooks)
            )
        except (AttributeError, KeyError):
            return False

    def _linear(self, layer: nn.Linear, activation: ArrayForward | None = None) -> ArrayForward:
        bias = None if layer._parameters["bias"] is None else self.of(layer, "bias")
        return linear_in_numpy(self.of(layer, "weight"), bias, activation)

    def sequential(self, layers: nn.Sequential) -> ArrayForward:
        """The forward pass of layers one after the other."""
        steps: list[ArrayForward] = []
        linear: nn.Linear | None = None
        for name in layers._modules:
            layer = self.keep(layers, name)
            activation = array_activation(layer)
            if linear is not None:
                steps.append(self._linear(linear, activation))
            elif activation is not None:
                # It works in place, and somebody else's array is not its to change.
                steps += (numpy.copy, activation)
            linear = layer if type(layer) is nn.Linear else None
            if linear is None and activation is None:
                steps.append(self.forward(layer))
        if linear is not None:
            steps.append(self._linear(linear))
        return Chain(*steps)

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
    """Array functions one after the other; chains in it are taken apart, and called no more."""

    __slots__ = ("steps",)

    def __init__(self, *parts: ArrayForward) -> None:
        self.steps: tuple[ArrayForward, ...] = tuple(
            step for part in parts for step in (part.steps if isinstance(part, Chain) else (part,))
        )

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


def linear_in_numpy(
    weight: NumpyArray, bias: NumpyArray | None, activation: ArrayForward | None = None
) -> ArrayForward:
    """A linear layer on views of its weights, multiplied the way that suits their size.

    `activation` works in place.
    """
    if weight.size >= _WIDE:
        column = 0 if bias is None else bias[:, None]

        def wide(features: NumpyArray) -> NumpyArray:
            # With few rows, wide weights are read as they lie: turned, they cost twice as much.
            out: NumpyArray = weight.dot(features.T)
            out += column
            return out.T if activation is None else activation(out.T)

        return wide
    turned = weight.T
    # Of the shape of one row of outputs: NumPy need not stretch it where there is no other.
    row = None if bias is None else bias[None]

    def narrow(features: NumpyArray) -> NumpyArray:
        out: NumpyArray = features.dot(turned)
        if row is not None:
            out += row
        return out if activation is None else activation(out)

    return narrow


def plan_arrays(module: nn.Module, *, noisy: bool = False) -> Plan | None:
    """The module's forward pass in NumPy, or None if it has to go through torch."""
    views = Views(noisy=noisy)
    try:
        return Plan(views.root(module), views)
    except NoArraysError:
        return None


_NEVER = object()

_WIDE = 16_384
"""Weights from which the product is turned round; measured with 1 to 256 rows."""

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


def array_activation(layer: nn.Module) -> Callable[[NumpyArray], NumpyArray] | None:
    """The same function on an array of its own, in place; None for a layer that is not known."""
    kind = type(layer)
    if kind is nn.Tanh:
        return _tanh
    if kind is nn.ReLU:
        return _relu()
    if kind is nn.SiLU:
        return _silu
    if isinstance(layer, nn.ELU) and kind is nn.ELU:
        return _elu(layer.alpha)
    if isinstance(layer, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return _leaky_relu(layer.negative_slope)
    return None


def _tanh(x: NumpyArray) -> NumpyArray:
    return numpy.tanh(x, out=x)


def _relu() -> Callable[[NumpyArray], NumpyArray]:
    zeros: NumpyArray = numpy.zeros(0)

    def relu(x: NumpyArray) -> NumpyArray:
        nonlocal zeros
        if zeros.shape != x.shape:
            zeros = numpy.zeros_like(x)
        # Compared with an array of zeros, not with the number, in a fourth of the time.
        return numpy.maximum(x, zeros, out=x)

    return relu


def _silu(x: NumpyArray) -> NumpyArray:
    return numpy.multiply(x, sigmoid(x), out=x)


def _elu(alpha: float) -> Callable[[NumpyArray], NumpyArray]:
    def elu(x: NumpyArray) -> NumpyArray:
        below = numpy.expm1(numpy.minimum(x, 0))
        below *= alpha
        return numpy.add(numpy.maximum(x, 0, out=x), below, out=x)

    return elu


def _leaky_relu(slope: float) -> Callable[[NumpyArray], NumpyArray]:
    def leaky_relu(x: NumpyArray) -> NumpyArray:
        below = numpy.minimum(x, 0)
        below *= slope
        return numpy.add(numpy.maximum(x, 0, out=x), below, out=x)

    return leaky_relu


def sigmoid(x: NumpyArray) -> NumpyArray:
    """1 / (1 + exp(-x)), by way of tanh: nothing overflows."""
    half = numpy.tanh(x * 0.5)
    half += 1
    half *= 0.5
    return half
