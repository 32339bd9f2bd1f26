"""Cheap scopes without autograd, and around optimizer steps with denormals flushed as well."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["NoGrad", "OptimizerStep"]


class NoGrad:
    """What `torch.no_grad` does, in a tenth of the time; each serves once at a time."""

    __slots__ = ("_before",)

    _before: bool

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: Any) -> None:
        torch._C._set_grad_enabled(self._before)


_ONE = 1.0
_SMALLEST = 5e-324
"""The smallest denormal number; where they are flushed, it is zero times anything."""


class OptimizerStep:
    """`NoGrad`, and what `torch.set_flush_denormal` does to this thread, for a while.

    Averages of gradients that stay away shrink until processors need many times as long for each.
    """

    __slots__ = ("_flushed", "_recorded")

    _flushed: bool
    _recorded: bool

    def __enter__(self) -> None:
        self._recorded = torch.is_grad_enabled()
        self._flushed = _SMALLEST * _ONE == 0.0
        torch._C._set_grad_enabled(False)
        torch.set_flush_denormal(True)

    def __exit__(self, *_: Any) -> None:
        torch._C._set_grad_enabled(self._recorded)
        torch.set_flush_denormal(self._flushed)
