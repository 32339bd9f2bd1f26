"""Plain networks there and back without autograd: outputs, and gradients in closed form.

What autograd spends on a small network is dispatch, not arithmetic. The products are torch's,
which knows how many threads it may take; NumPy's do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rlplug.nn import FlatEncoder, Network, QHead
from rlplug.nn.arrays import NoArraysError, Views

__all__ = ["Dense", "is_traced", "known_loss"]

Activation: TypeAlias = "tuple[Callable[[Tensor], Any], Callable[[Tensor, Tensor], Tensor]]"
"""The function, in place; and the gradient below it, from that above it and what it gave."""

_NARROW = 16


class Dense:
    """The layers of a network that is nothing but linear layers and activations."""

    def __init__(self, network: Network) -> None:
        self._views = views = Views(noisy=False)
        self.params: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._turned: list[Tensor] = []
        self._biases: list[Tensor] = []
        self._activations: list[Activation | None] = []
        body, head = views.keep(network, "body"), views.keep(network, "head")
        encoder = views.keep(body, "encoder")
        if type(encoder) is not FlatEncoder or network.body.memory is not None:
            raise NoArraysError
        if type(head) is not QHead or head.dueling:
            raise NoArraysError
        self._encoder = encoder
        self._add(views.keep(body, "hidden"))
        self._add(views.keep(head, "advantage"))

    @classmethod
    def of(cls, network: Network) -> Dense | None:
        """The layers, or None if the network is not as plain or not on the CPU."""
        try:
            return cls(network)
        except NoArraysError:
            return None

    def fits(self) -> bool:
        """Whether the weights are still those of the network."""
        return self._views.current()

    def forward(self, observations: Any) -> tuple[Tensor, list[Tensor]]:
        """Outputs, and what `backward` needs to know."""
        features: Tensor = self._encoder(observations)
        seen = []
        for turned, bias, activation in zip(
            self._turned, self._biases, self._activations, strict=True
        ):
            seen.append(features)
            features = torch.addmm(bias, features, turned)
            if activation is not None:
                activation[0](features)
        return features, seen

    def backward(self, slopes: Tensor, seen: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of all parameters, given that of the outputs."""
        gradients: list[Tensor] = []
        for place in range(len(seen) - 1, -1, -1):
            below = seen[place]
            # With few inputs the product is several times as fast the other way round.
            narrow = below.shape[1] <= _NARROW
            weight = (
                torch.mm(below.t(), slopes).t().contiguous()
                if narrow
                else torch.mm(slopes.t(), below)
            )
            gradients += [slopes.sum(0), weight]
            if place:
                slopes = torch.mm(slopes, self._weights[place])
                activation = self._activations[place - 1]
                if activation is not None:
                    slopes = activation[1](slopes, below)
        gradients.reverse()
        return gradients

    def _add(self, layers: nn.Module) -> None:
        if not isinstance(layers, nn.Sequential):
            raise NoArraysError
        for name in layers._modules:
            layer = self._views.keep(layers, name)
            if type(layer) is nn.Linear and layer.bias is not None:
                # Taking views refuses what is not on the CPU, and watches over the rest.
                self._views.of(layer, "weight")
                self._views.of(layer, "bias")
                self.params += [layer.weight, layer.bias]
                self._weights.append(layer.weight.detach())
                self._turned.append(self._weights[-1].t())
                self._biases.append(layer.bias.detach())
                self._activations.append(None)
            elif type(layer) in _ACTIVATIONS and self._activations[-1:] == [None]:
                self._activations[-1] = _ACTIVATIONS[type(layer)]
            else:
                raise NoArraysError


def _product(slopes: Tensor, below: Tensor) -> Tensor:
    # With few inputs the product is several times as fast the other way round.
    if below.shape[1] <= _NARROW:
        return torch.mm(below.t(), slopes).t().contiguous()
    return torch.mm(slopes.t(), below)


def is_traced() -> bool:
    """Whether somebody follows what torch does: a compiler, a transform, or autocast."""
    return (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *params: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value

    @staticmethod
    def backward(ctx: Any, *factors: Tensor) -> Any:
        factor = float(factors[0])
        if factor == 1.0:
            # Detached, so that the graph can be gone through again after a parameter took them.
            return (None, None, *[gradient.detach() for gradient in ctx.gradients])
        return (None, None, *[gradient * factor for gradient in ctx.gradients])


def known_loss(value: float, params: Sequence[Tensor], gradients: list[Tensor]) -> Tensor:
    """A loss whose gradients were found already: the backward pass hands them out."""
    given = torch.tensor(value, dtype=params[0].dtype)
    loss: Tensor = _Known.apply(given, gradients, *params)  # type: ignore[no-untyped-call] # untyped in torch
    return loss


def _relu_below(slopes: Tensor, given: Tensor) -> Tensor:
    below: Tensor = torch.ops.aten.threshold_backward(slopes, given, 0)
    return below


def _tanh_below(slopes: Tensor, given: Tensor) -> Tensor:
    below: Tensor = torch.ops.aten.tanh_backward(slopes, given)
    return below


_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: (torch.relu_, _relu_below),
    nn.Tanh: (torch.tanh_, _tanh_below),
}
