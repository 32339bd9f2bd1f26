"""NumPy archives as logs: their arrays are read a block of rows at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import attrs
import numpy
from numpy.lib import format as npy
from numpy.typing import NDArray

from rlplug.errors import RequestError
from rlplug.logs.roles import Column, largest

__all__ = ["NpzFile"]

_BLOCK = 32_768
"""Rows that are read at a time, fewer where they are large."""

_BYTES = 2**26
"""Size of a block of one array."""

_FAILURES = (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError, NotImplementedError)


@attrs.frozen(kw_only=True)
class _Array:
    """An array of the archive, as its header describes it."""

    shape: tuple[int, ...]
    dtype: numpy.dtype[Any]
    by_rows: bool
    """Whether its rows follow each other; those in Fortran order do not."""

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        size = int(numpy.prod(self.shape[1:], dtype=numpy.int64))
        return size * self.dtype.itemsize


class NpzFile:
    """A NumPy archive, compressed or not; an array in Fortran order is read whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: Mapping[bytes, bytes] = {}
        self._arrays: dict[str, _Array] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    with archive.open(member) as stream:
                        self._arrays[member.removesuffix(".npy")] = _header(stream)
        except _FAILURES as error:
            raise self._unreadable(error) from error
        self.columns: Mapping[str, Column] = {
            name: Column(
                kind={"f": "f", "i": "i", "u": "i", "b": "b"}.get(array.dtype.kind, ""),
                type=str(array.dtype),
                is_list=len(array.shape) > 1,
            )
            for name, array in self._arrays.items()
            if array.shape
        }

    def count(self) -> int:
        lengths = {name: self._arrays[name].shape[0] for name in self.columns}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise RequestError(
                f"{self.path.name}: its arrays have different numbers of rows: {shown}."
            )
        return next(iter(lengths.values()), 0)

    def blocks(
        self, kinds: Mapping[str, str], first: int
    ) -> Iterator[tuple[int, Mapping[str, NDArray[Any]]]]:
        rows = self.count()
        largest = max((self._arrays[name].row_bytes for name in kinds), default=1)
        block = max(1, min(_BLOCK, _BYTES // max(largest, 1)))
        with ExitStack() as stack:
            try:
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                readers = {name: self._reader(archive, stack, name, first) for name in kinds}
            except _FAILURES as error:
                raise self._unreadable(error) from error
            for start in range(first, rows, block):
                size = min(block, rows - start)
                try:
                    columns = {name: reader(size) for name, reader in readers.items()}
                except _FAILURES as error:
                    raise self._unreadable(error) from error
                yield start, columns

    def maximum(self, column: str) -> int:
        blocks = self.blocks({column: "i"}, 0)
        return max((largest(columns[column]) for _, columns in blocks), default=-1)

    def _reader(self, archive: zipfile.ZipFile, stack: ExitStack, name: str, first: int) -> Any:
        """Reads the next rows of an array, as many as it is asked for."""
        array = self._arrays[name]
        member = name if name in archive.NameToInfo else f"{name}.npy"
        stream = stack.enter_context(archive.open(member))
        if not array.by_rows:
            return _Slices(npy.read_array(stream)[first:])
        _header(stream)
        stream.seek(first * array.row_bytes, 1)

        def read(rows: int) -> NDArray[Any]:
            wanted = rows * array.row_bytes
            held = bytearray(stream.read(wanted))
            if len(held) != wanted:
                raise EOFError(f"{name} ends in the middle")
            return numpy.frombuffer(held, array.dtype).reshape(rows, *array.shape[1:])

        return read

    def _unreadable(self, error: BaseException) -> RequestError:
        return RequestError(
            f"{self.path.name} cannot be read as npz: {error}.",
            "try: numpy.savez(file, context=…, action=…, reward=…), without objects",
        )


def _header(stream: IO[bytes]) -> _Array:
    """The header of an array, which the stream stands behind then."""
    version = npy.read_magic(stream)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"format {version} of an array is not known")
    shape, by_columns, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError("an array holds Python objects")
    return _Array(shape=shape, dtype=dtype, by_rows=not by_columns or len(shape) < 2)


class _Slices:
    """Gives the rows of an array in memory, one part after another."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._left = array

    def __call__(self, rows: int) -> NDArray[Any]:
        part, self._left = self._left[:rows], self._left[rows:]
        return part
