"""Step an optimizer only where a number on the device says so, without reading that number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["guarded_step"]


def guarded_step(optimizer: Optimizer, bad: Tensor) -> None:
    """Step unless `bad`, a 0-d bool; then parameters and state stay as they are.

    State that an optimizer keeps on the CPU beside parameters elsewhere (the step counts of
    optimizers that are neither fused nor capturable) counts the attempt.
    """
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        _fused_step(optimizer, bad)
        return
    held = [
        param
        for group in optimizer.param_groups
        for param in group["params"]
        if param.grad is not None
    ]
    new = [param for param in held if not optimizer.state[param]]
    tensors = [*held, *_state_of(optimizer, held, bad.device)]
    before = [tensor.detach().clone() for tensor in tensors]
    optimizer.step()
    with torch.no_grad():
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(bad, old, tensor))
        # State made by this very step starts from zero, as it would have next time.
        for tensor in _state_of(optimizer, new, bad.device):
            tensor.masked_fill_(bad, 0)


def _fused_step(optimizer: Any, bad: Tensor) -> None:
    # The fused kernels take this flag from a GradScaler; they read it on the device.
    optimizer.grad_scale = None
    optimizer.found_inf = bad.to(torch.float32)
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def _state_of(optimizer: Optimizer, params: list[Any], device: torch.device) -> list[Tensor]:
    return [
        value
        for param in params
        for value in optimizer.state[param].values()
        if isinstance(value, Tensor) and value.device == device
    ]
