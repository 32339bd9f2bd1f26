"""Losses whose gradients a plugin finds by itself, without autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rlplug.errors import PluginError, did_you_mean
from rlplug.plugin import Loss

__all__ = ["KnownLoss", "fitted"]

Gradients: TypeAlias = Callable[[Mapping[str, float]], Mapping[str, Tensor]]
"""From a weight for each term, 1 for those left out, to gradients by the parameters' names."""


class KnownLoss(Loss):
    """A loss with its gradients in closed form, for networks so small that autograd costs more.

    The learner takes the gradients as they are. Whoever reads `value` or `terms` gets tensors that
    are connected to the parameters, as if autograd had followed it all.
    """

    def __init__(
        self,
        module: nn.Module,
        number: float,
        gradients: Gradients,
        *,
        numbers: Mapping[str, float] | None = None,
        metrics: Mapping[str, Any] | None = None,
        rows: Mapping[str, Tensor] | None = None,
        stop: Tensor | None = None,
    ) -> None:
        fields = {
            "module": module,
            "number": number,
            "numbers": numbers or {},
            "find": gradients,
            "metrics": metrics or {},
            "rows": rows or {},
            "stop": stop,
        }
        for name, value in fields.items():
            # Past the guard of a frozen class.
            object.__setattr__(self, name, value)

    module: nn.Module
    number: float
    """The value."""
    numbers: Mapping[str, float]
    """The terms."""
    find: Gradients

    @cached_property
    def value(self) -> Tensor:
        """The number, connected to the parameters."""
        return self._connected[0]

    @cached_property
    def terms(self) -> Mapping[str, Tensor]:
        """The numbers of the terms, each connected to the parameters."""
        return dict(zip(self.numbers, self._connected[1:], strict=True))

    @cached_property
    def _connected(self) -> tuple[Tensor, ...]:
        params = [param for param in self.module.parameters() if param.requires_grad]
        return _Known.apply(self, params, *params)  # type: ignore[no-any-return, no-untyped-call] # untyped in torch


def fitted(
    found: Mapping[str, Tensor], named: Mapping[str, nn.Parameter]
) -> tuple[list[nn.Parameter], list[Tensor]]:
    """The parameters among them that are trained, and their gradients, which must fit."""
    params, gradients = [], []
    for name, gradient in found.items():
        param = named.get(name)
        if param is None:
            raise PluginError(
                f"a KnownLoss has a gradient of {name!r}, which its module does not have. "
                f"{did_you_mean(name, named, sentence=True)}".rstrip(),
                "name parameters as module.named_parameters() does",
            )
        if gradient.shape != param.shape:
            raise PluginError(
                f"a KnownLoss has a gradient of {name!r} of shape {tuple(gradient.shape)}, "
                f"the parameter has {tuple(param.shape)}.",
                "give gradients the shapes of their parameters",
            )
        if param.requires_grad:
            params.append(param)
            gradients.append(gradient)
    return params, gradients


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: KnownLoss, params: list[nn.Parameter], *tensors: Tensor) -> Any:
        ctx.known = loss, params
        ctx.set_materialize_grads(False)
        like = params[0] if params else torch.zeros(())
        return tuple(like.new_tensor(one) for one in (loss.number, *loss.numbers.values()))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> Any:
        loss, params = ctx.known
        whole, *parts = (0.0 if slope is None else float(slope) for slope in slopes)
        weights = {name: whole + part for name, part in zip(loss.numbers, parts, strict=True)}
        held, gradients = fitted(loss.find(weights), dict(loss.module.named_parameters()))
        scale = 1.0 if loss.numbers else whole
        # Copies, so that the graph can be gone through again after a parameter took them.
        found = {
            id(param): gradient.clone() if scale == 1.0 else gradient * scale
            for param, gradient in zip(held, gradients, strict=True)
        }
        return (None, None, *[found.get(id(param)) for param in params])
