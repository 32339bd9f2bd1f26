"""Eval mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from rlplug.nn.noisy import NoisyLinear

__all__ = ["evaluating"]


@contextmanager
def evaluating(module: nn.Module, *, noisy: bool = False) -> Iterator[None]:
    """Every part in eval mode, but for noise that is wanted; then each in the mode it had."""
    parts = list(module.modules())
    modes = [part.training for part in parts]
    for part in parts:
        # Past nn.Module's slow assignment, which would be most of the time here.
        vars(part)["training"] = noisy and isinstance(part, NoisyLinear)
    try:
        yield
    finally:
        for part, training in zip(parts, modes, strict=True):
            vars(part)["training"] = training
