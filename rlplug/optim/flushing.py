"""Numbers too small to matter are zero while optimizers step."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Flushed"]

_ONE = 1.0
_SMALLEST = 5e-324
"""The last number before zero; where such numbers are flushed, it is zero times anything."""


class Flushed:
    """Inside, this thread takes what is below the smallest normal number for zero.

    Averages of gradients that stay away shrink until processors need many times as long for each.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = False

    def __enter__(self) -> None:
        self._before = _SMALLEST * _ONE == 0.0
        torch.set_flush_denormal(True)

    def __exit__(self, *_: Any) -> None:
        torch.set_flush_denormal(self._before)
