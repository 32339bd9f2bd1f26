"""Optimizer steps without what torch does around them, and steps that depend on a verdict."""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer, optimizer

__all__ = ["FusedAdam", "NoGrad", "OptimizerStep", "guarded_step", "step_alone"]

_ONE = 1.0
_SMALLEST = 5e-324
"""The smallest denormal number; where they are flushed, it is zero times anything."""


class NoGrad:
    """What `torch.no_grad` does, in a tenth of the time; each serves once at a time."""

    __slots__ = ("_before",)

    _before: bool

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: Any) -> None:
        torch._C._set_grad_enabled(self._before)


class OptimizerStep(NoGrad):
    """`NoGrad`, and what `torch.set_flush_denormal` does to this thread, for a while.

    Averages of gradients that stay away shrink until processors need many times as long for each.
    """

    __slots__ = ("_flushed",)

    _flushed: bool

    def __enter__(self) -> None:
        super().__enter__()
        self._flushed = _SMALLEST * _ONE == 0.0
        torch.set_flush_denormal(True)

    def __exit__(self, *_: Any) -> None:
        super().__exit__()
        torch.set_flush_denormal(self._flushed)


class FusedAdam:
    """Steps a fused Adam or AdamW, which keeps and loads its own state, by one call of its kernel.

    As everything here it works without autograd: inside of an `OptimizerStep`.
    """

    @classmethod
    def of(cls, optimizer: Optimizer) -> FusedAdam | None:
        """None if the optimizer is another one, or has settings that need its own step."""
        if type(optimizer) not in (Adam, AdamW) or len(optimizer.param_groups) != 1:
            return None
        (group,) = optimizer.param_groups
        usual = group.get("fused") and not group["amsgrad"] and not isinstance(group["lr"], Tensor)
        return cls(optimizer) if usual and _is_alone(optimizer) else None

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer: Any = optimizer
        (group,) = optimizer.param_groups
        self._params: list[Tensor] = group["params"]
        # Older versions of torch make groups without this key.
        decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
        self._kernel: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self._averages: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._steps: list[Tensor] = []
        self._counts: Any = None
        """How often each parameter was stepped, all of them in one."""

    def step(self, gradients: list[Tensor]) -> bool:
        """Step by gradients in the order of the parameters; False: the optimizer has to.

        Hooks or schedulers of torch may want to be called, and sparse gradients are not for it.
        """
        optimizer = self._optimizer
        whole = len(gradients) == len(self._params) and not any(map(_IS_SPARSE, gradients))
        if not whole or not _is_alone(optimizer):
            return False
        # Loading a state replaces what the optimizer holds.
        current = self._steps and optimizer.state[self._params[0]]["step"] is self._steps[0]
        if not (current or self._gather()):
            return False
        self._counts += 1
        group = optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        self._kernel(
            self._params,
            gradients,
            self._averages,
            self._squares,
            [],
            self._steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=group["maximize"],
        )
        return True

    def _gather(self) -> bool:
        states = [self._optimizer.state[param] for param in self._params]
        if not all(states):
            # The optimizer's own first step makes them.
            return False
        # The counts become views of one tensor, so that one addition moves all of them.
        counts = torch.stack([state["step"] for state in states])
        self._steps = list(counts.unbind())
        # NumPy adds one in a fraction of what a call of torch takes.
        self._counts = counts.numpy() if counts.device.type == "cpu" else counts
        for state, step in zip(states, self._steps, strict=True):
            state["step"] = step
        self._averages = [state["exp_avg"] for state in states]
        self._squares = [state["exp_avg_sq"] for state in states]
        return True


def step_alone(stepped: Optimizer) -> None:
    """Step one of torch's own without what surrounds its step: that imports the compiler.

    Others, and those whose hooks or schedulers want to be called, step as usual.
    """
    own = type(stepped).__module__.startswith("torch.optim.")
    if own and _is_alone(stepped) and not stepped.defaults.get("differentiable"):
        inspect.unwrap(type(stepped).step)(stepped)
    else:
        stepped.step()


def guarded_step(stepped: Any, bad: Tensor) -> None:
    """Step unless `bad`, a 0-d bool on the device; then parameters and state stay as they are.

    Nobody reads it. State that an optimizer keeps on the CPU beside parameters elsewhere (the step
    counts of optimizers that are neither fused nor capturable) counts the attempt.
    """
    if getattr(stepped, "_step_supports_amp_scaling", False):
        # The fused kernels take this flag from a GradScaler.
        stepped.found_inf = bad.to(torch.float32)
        try:
            stepped.step()
        finally:
            del stepped.found_inf
        return
    groups = stepped.param_groups
    params = [param for group in groups for param in group["params"] if param.grad is not None]
    new = [param for param in params if not stepped.state[param]]
    tensors = [*params, *_state_of(stepped, params, bad.device)]
    before = [tensor.detach().clone() for tensor in tensors]
    stepped.step()
    with torch.no_grad():
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(bad, old, tensor))
        # State made by this very step starts from zero, as it would have next time.
        for tensor in _state_of(stepped, new, bad.device):
            tensor.masked_fill_(bad, 0)


def _state_of(stepped: Optimizer, params: list[Any], device: torch.device) -> list[Tensor]:
    values = [value for param in params for value in stepped.state[param].values()]
    return [value for value in values if isinstance(value, Tensor) and value.device == device]


def _is_alone(stepped: Any) -> bool:
    """Whether nothing else is to be called at a step."""
    return not (
        stepped._optimizer_step_pre_hooks
        or stepped._optimizer_step_post_hooks
        or optimizer._global_optimizer_pre_hooks
        or optimizer._global_optimizer_post_hooks
        or "step" in vars(stepped)
    )


_IS_SPARSE = attrgetter("is_sparse")
