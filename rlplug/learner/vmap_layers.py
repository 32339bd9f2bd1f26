"""What layers of modules that are trained together do in place of their own forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.autograd.function import once_differentiable

__all__ = ["forwards_together"]


def forwards_together(module: nn.Module) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """The layers that vmap runs slower than it could, each with a faster forward pass.

    Linear layers of an `nn.Sequential`, with the activations between them, are one operation of all
    modules, with a backward pass of its own.
    """
    for part in module.modules():
        if "forward" in vars(part):
            continue
        if type(part) is nn.Sequential and len(part) and not any(map(_is_changed, part)):
            yield part, partial(_stack, partial(iter, part), part.forward)
        elif type(part) is nn.Linear:
            yield part, partial(_stack, partial(iter, (part,)), part.forward)


def _is_changed(layer: nn.Module) -> bool:
    return "forward" in vars(layer)


def _stack(
    layers: Callable[[], Iterator[nn.Module]], alone: Callable[[Tensor], Tensor], rows: Tensor
) -> Tensor:
    """Layers of all modules in one operation; where that cannot be, what they do `alone`."""
    level = _functorch.maybe_get_level(rows)
    if level < 0 or rows.dim() != 2 or _functorch.maybe_get_bdim(rows) != 0:
        return alone(rows)
    whole = _functorch.get_unwrapped(rows)
    # Wrapped once more inside of a derivative.
    params = _params(layers()) if _functorch.maybe_get_level(whole) < 0 else None
    if params is None:
        return alone(rows)
    apply: Callable[..., Tensor] = _Stack.apply
    # Outside of vmap, a function with a gradient of its own costs a fraction.
    with temporarily_pop_interpreter_stack():
        found = apply(whole, *params)
    return _functorch._add_batch_dim(found, 0, level)


def _params(layers: Iterable[nn.Module]) -> list[Any] | None:
    """Activation, weight and bias of each linear layer; None with other layers.

    Modules with hooks are not here: they are updated one by one.
    """
    params: list[Any] = []
    for layer in layers:
        if type(layer) is nn.Linear and layer.bias is not None:
            params += [None, *map(_functorch.get_unwrapped, (layer.weight, layer.bias))]
        elif type(layer) in _ACTIVATIONS and params and params[-3] is None:
            params[-3] = type(layer)
        else:
            return None
    return params


class _Stack(torch.autograd.Function):
    """Linear layers and activations of all modules, with their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, *params: Any) -> Tensor:
        kinds, weights, biases = params[::3], params[1::3], params[2::3]
        outs = []
        block = rows
        for kind, weight, bias in zip(kinds, weights, biases, strict=True):
            block = torch.baddbmm(bias.unsqueeze(1), block, weight.transpose(1, 2))
            if kind is nn.Tanh:
                _tanh_(block)
            elif kind is nn.ReLU:
                torch.relu_(block)
            outs.append(block)
        ctx.kinds = kinds
        ctx.save_for_backward(rows, *weights, *outs)
        return block

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, below: Tensor) -> Any:
        rows, *saved = ctx.saved_tensors
        weights, outs = saved[: len(ctx.kinds)], saved[len(ctx.kinds) :]
        gradients: list[Tensor | None] = []
        for index in reversed(range(len(ctx.kinds))):
            kind = ctx.kinds[index]
            if kind is nn.Tanh:
                below = torch.ops.aten.tanh_backward(below, outs[index])
            elif kind is nn.ReLU:
                below = torch.ops.aten.threshold_backward(below, outs[index], 0)
            before = outs[index - 1] if index else rows
            gradients += [below.sum(1), torch.bmm(below.transpose(1, 2), before), None]
            if index or ctx.needs_input_grad[0]:
                below = torch.bmm(below, weights[index])
        return below if ctx.needs_input_grad[0] else None, *reversed(gradients)


def _tanh_(rows: Tensor) -> None:
    if rows.is_cpu and rows.dtype is torch.float32:
        # With AVX-512, NumPy takes a tenth of the time of torch's.
        values = rows.numpy()
        numpy.tanh(values, values)
    else:
        torch.tanh_(rows)


_ACTIVATIONS = (nn.Tanh, nn.ReLU)
