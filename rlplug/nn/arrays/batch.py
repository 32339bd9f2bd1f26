"""Batches whose columns are arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from rlplug.batch import Batch
from rlplug.nn.arrays.array import Array, Graph, unwrap

__all__ = ["ArrayBatch"]


class ArrayBatch(Batch):
    """The columns of a batch, as arrays of a tape; nothing is copied."""

    __slots__ = ("_read", "tape")

    def __init__(self, columns: Mapping[str, Any], tape: Graph) -> None:
        super().__init__(columns)
        self.tape = tape
        self._read: dict[str, Any] = {}

    @classmethod
    def of(cls, batch: Batch, tape: Graph) -> ArrayBatch:
        """The same columns."""
        made = cls(batch._columns, tape)
        made._checked = batch._checked
        return made

    def __getitem__(self, name: str) -> Any:
        read = self._read
        if name in read:
            return read[name]
        column = self._columns[name]
        found = read[name] = self.tape.array(column)
        return found

    def with_columns(self, columns: Mapping[str, Any]) -> ArrayBatch:
        """A batch with these columns replaced or added; this one stays as it is."""
        made = {name: _stored(column) for name, column in columns.items()}
        return ArrayBatch.of(super().with_columns(made), self.tape)

    def plain(self) -> Batch:
        """The batch that this is a view of."""
        made = Batch(self._columns)
        made._checked = self._checked
        return made

    def without(self, names: frozenset[str]) -> ArrayBatch:
        """A batch without these columns."""
        return ArrayBatch.of(super().without(names), self.tape)

    def select(self, rows: Any) -> ArrayBatch:
        """These rows of every column; tables of fragments are left out."""
        return ArrayBatch.of(Batch(self._columns).select(unwrap(rows)), self.tape)

    def to(self, device: Any, dtype: Any = None) -> ArrayBatch:
        """The same on a device."""
        return ArrayBatch.of(Batch(self._columns).to(device, dtype), self.tape)

    def extended(self) -> Any:
        """Each fragment with its final observation appended; `split` takes and gives arrays."""
        return ArrayExtended(Batch(self._columns).extended(), self.tape)


class ArrayExtended(ArrayBatch):
    """What `Batch.extended` gives, as arrays."""

    __slots__ = ("_extended",)

    def __init__(self, extended: Any, tape: Graph) -> None:
        super().__init__(extended._columns, tape)
        self._extended = extended

    def split(self, values: Array) -> tuple[Array, Array]:
        """Of one value per extended row: those at each row, and those one row later."""
        at, after = self._extended.split(values)
        return at, after


def _stored(column: Any) -> Any:
    """An array as NumPy where that can be stored as it is, else as a tensor."""
    if type(column) is Array:
        value = column.value
        if type(value) is numpy.ndarray and value.flags.c_contiguous and value.flags.writeable:
            return value
    return unwrap(column)
