"""The dtypes that torch and NumPy share, and what two of them make together."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy
import torch

__all__ = ["NUMPY_DTYPES", "TORCH_DTYPES", "default_float", "promoted"]

_SHARED = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float32,
    torch.float64,
)

NUMPY_DTYPES: dict[torch.dtype, numpy.dtype[Any]] = {
    dtype: torch.empty(0, dtype=dtype).numpy().dtype for dtype in _SHARED
}

TORCH_DTYPES: dict[str, torch.dtype] = {
    # NumPy has two letters for its integers of 64 bits.
    "q": torch.int64,
    **{found.char: dtype for dtype, found in NUMPY_DTYPES.items()},
}
"""By NumPy's letters: comparing its formats takes several times as long."""


def default_float() -> numpy.dtype[Any]:
    """What whole numbers become where fractions are needed."""
    return NUMPY_DTYPES[torch.get_default_dtype()]


def promoted(a: Any, b: Any) -> numpy.dtype[Any]:
    """The dtype of what two NumPy values make together in torch.

    A value without dimensions counts only where it is of a higher kind.
    """
    if bool(a.ndim) == bool(b.ndim):
        return _together(a.dtype.char, b.dtype.char)
    row, number = (a, b) if a.ndim else (b, a)
    higher = _KINDS[number.dtype.kind] > _KINDS[row.dtype.kind]
    dtype: numpy.dtype[Any] = (number if higher else row).dtype
    return dtype


_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2}


@cache
def _together(a: str, b: str) -> numpy.dtype[Any]:
    return NUMPY_DTYPES[torch.promote_types(TORCH_DTYPES[a], TORCH_DTYPES[b])]
