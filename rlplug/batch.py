"""Experience on its way to an update: named columns of equal length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

__all__ = ["Batch", "Column"]

Column: TypeAlias = "Tensor | numpy.ndarray[Any, Any] | Mapping[str, Any] | tuple[Any, ...]"


class Batch(Mapping[str, Any]):
    """A light mapping of tensors, read `batch["rewards"]`.

    Columns that arrive as NumPy arrays become tensors when they are first read as such, without a
    copy; `array` reads them as NumPy. Observations of Dict and Tuple spaces are nested likewise.
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns: dict[str, Any] = dict(columns)

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if isinstance(column, Tensor):
            return column
        column = self._columns[name] = _to_tensors(column)
        return column

    def array(self, name: str) -> Any:
        """The column as NumPy, without a copy where it is on the CPU."""
        return _to_arrays(self._columns[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of columns, as for any mapping; see `rows`."""
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    @property
    def rows(self) -> int:
        """How many rows every column has."""
        for column in self._columns.values():
            return _length(column)
        return 0

    def with_columns(self, columns: Mapping[str, Column]) -> Batch:
        """A batch with these columns replaced or added; this one stays as it is."""
        return Batch({**self._columns, **columns})


def _length(column: Any) -> int:
    while isinstance(column, Mapping | tuple):
        column = next(iter(column.values() if isinstance(column, Mapping) else column))
    return len(column)


def _to_tensors(column: Any) -> Any:
    if isinstance(column, Tensor):
        return column
    if isinstance(column, Mapping):
        return {name: _to_tensors(part) for name, part in column.items()}
    if isinstance(column, tuple):
        return tuple(_to_tensors(part) for part in column)
    return torch.from_numpy(column)


def _to_arrays(column: Any) -> Any:
    if isinstance(column, Tensor):
        return column.detach().cpu().numpy()
    if isinstance(column, Mapping):
        return {name: _to_arrays(part) for name, part in column.items()}
    if isinstance(column, tuple):
        return tuple(_to_arrays(part) for part in column)
    return column
