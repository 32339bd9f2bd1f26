"""Linear layers with tanh or ReLU on one CPU thread as one node of autograd, computed in NumPy.

What torch spends on a small network is dispatch, not arithmetic. Several stacks of layers side by
side are one node of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.nn.followed import is_followed
from rlplug.nn.stacks import Stack, read_layers

__all__ = ["dense", "stack_of"]


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
