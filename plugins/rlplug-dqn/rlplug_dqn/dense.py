"""Plain networks there and back in NumPy: outputs, and gradients in closed form.

What autograd spends on a small network is dispatch, not arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlplug.nn import FlatEncoder, Network, QHead
from rlplug.nn.arrays import NoArraysError, Views

__all__ = ["Dense", "known_loss"]

Array: TypeAlias = "NDArray[Any]"

Activation: TypeAlias = "tuple[Callable[[Array], Any], Callable[[Array], Array]]"
"""The function, in place; and its slope, from what it gave."""

_LARGEST = 8_000_000
"""Rows times weights up to which NumPy is ahead of autograd."""


class Dense:
    """The layers of a network that is nothing but linear layers and activations."""

    def __init__(self, network: Network) -> None:
        self._views = views = Views(noisy=False)
        self.params: list[Tensor] = []
        self._weights: list[Array] = []
        self._biases: list[Array] = []
        self._activations: list[Activation | None] = []
        body, head = views.keep(network, "body"), views.keep(network, "head")
        encoder = views.keep(body, "encoder")
        if type(encoder) is not FlatEncoder or network.body.memory is not None:
            raise NoArraysError
        if type(head) is not QHead or head.dueling:
            raise NoArraysError
        self._encode = views.forward(encoder)
        self._add(views.keep(body, "hidden"))
        self._add(views.keep(head, "advantage"))

    @classmethod
    def of(cls, network: Network) -> Dense | None:
        """The same network in NumPy, or None if it is not as plain or not on the CPU."""
        try:
            return cls(network)
        except NoArraysError:
            return None

    def fits(self, rows: int) -> bool:
        """Whether the weights are still those of the network, and nothing has to be traced."""
        return (
            rows * self._views.weights <= _LARGEST
            and self._views.current()
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled("cpu")
            and torch._C._functorch.peek_interpreter_stack() is None
        )

    def forward(self, observations: Any) -> tuple[Array, list[Array]]:
        """Outputs, and what `backward` needs to know."""
        features: Array = self._encode(observations)
        seen = []
        for weight, bias, activation in zip(
            self._weights, self._biases, self._activations, strict=True
        ):
            seen.append(features)
            features = numpy.dot(features, weight.T)
            features += bias
            if activation is not None:
                activation[0](features)
        return features, seen

    def backward(self, slopes: Array, seen: Sequence[Array]) -> list[Array]:
        """The gradients of all parameters, given that of the outputs."""
        ones = numpy.ones(len(slopes), slopes.dtype)
        gradients: list[Array] = []
        for place in range(len(seen) - 1, -1, -1):
            gradients += [numpy.dot(ones, slopes), numpy.dot(slopes.T, seen[place])]
            if place:
                slopes = numpy.dot(slopes, self._weights[place])
                activation = self._activations[place - 1]
                if activation is not None:
                    slopes *= activation[1](seen[place])
        gradients.reverse()
        return gradients

    def _add(self, layers: nn.Module) -> None:
        if not isinstance(layers, nn.Sequential):
            raise NoArraysError
        for name in layers._modules:
            layer = self._views.keep(layers, name)
            if type(layer) is nn.Linear and layer.bias is not None:
                self.params += [layer.weight, layer.bias]
                self._weights.append(self._views.of(layer, "weight"))
                self._biases.append(self._views.of(layer, "bias"))
                self._activations.append(None)
            elif type(layer) in _ACTIVATIONS and self._activations[-1:] == [None]:
                self._activations[-1] = _ACTIVATIONS[type(layer)]
            else:
                raise NoArraysError


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Array], *params: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value

    @staticmethod
    def backward(ctx: Any, *factors: Tensor) -> Any:
        factor = float(factors[0])
        tensors = [torch.from_numpy(gradient) for gradient in ctx.gradients]
        if factor != 1.0:
            tensors = [tensor * factor for tensor in tensors]
        return (None, None, *tensors)


def known_loss(value: float, params: Sequence[Tensor], gradients: list[Array]) -> Tensor:
    """A loss whose gradients were found already: the backward pass hands them out."""
    given = torch.tensor(value, dtype=params[0].dtype)
    loss: Tensor = _Known.apply(given, gradients, *params)  # type: ignore[no-untyped-call] # untyped in torch
    return loss


def _relu(features: Array) -> None:
    numpy.maximum(features, 0, out=features)


def _tanh(features: Array) -> None:
    numpy.tanh(features, out=features)


_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: (_relu, lambda features: features > 0),
    nn.Tanh: (_tanh, lambda features: 1 - features * features),
}
