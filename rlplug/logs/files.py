"""Files of tables: Parquet and CSV through pyarrow, and NumPy archives."""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy
from numpy.lib import format as npy
from numpy.typing import NDArray

from rlplug.durable import absolute_path
from rlplug.errors import RequestError, did_you_mean

__all__ = [
    "FORMATS",
    "ArrowFile",
    "Block",
    "Column",
    "LogFile",
    "Texts",
    "as_text",
    "bad_row",
    "find_files",
    "open_file",
    "pyarrow",
    "texts_of",
]

FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".npz": "npz"}

_BLOCK = 32_768
"""Rows that are read at a time."""

_ARCHIVE_FAILURES = (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError)

_EXPECTED = {"double": "a number", "int64": "a whole number", "bool": "true or false"}
_CSV_PROBLEM = re.compile(
    r"(?:column #(\d+): )?Row #(\d+): "
    r"(?:CSV conversion error to (\w+): invalid value (.*)|Expected (\d+) columns, got (\d+))"
)

Block: TypeAlias = tuple[int, Mapping[str, Any]]
"""The number of the first row, and columns by name: arrays, or `Texts`."""


@attrs.frozen(kw_only=True)
class Column:
    """A column of a file."""

    kind: str
    """`f`, `i` or `b` for numbers and booleans, `s` for text, an empty string for others."""
    type: str
    """Its type in the words of the file's format."""
    is_list: bool = False
    """Whether each row holds several values."""


@attrs.frozen(eq=False)
class Texts:
    """A column of text, each row as the index of its value."""

    indices: NDArray[Any]
    """(n,); -1 where the value is missing."""
    values: Sequence[str]
    """An empty one counts as missing."""

    def __len__(self) -> int:
        return len(self.indices)


def texts_of(values: Iterable[Any]) -> Texts:
    """Any values as text."""
    places: dict[str, int] = {}
    indices = [places.setdefault(as_text(value), len(places)) for value in values]
    return Texts(numpy.array(indices, numpy.int64), list(places))


def as_text(value: Any) -> str:
    """The level of a value: 8001 and 8001.0 are one, as are True and `true`; empty: missing."""
    if isinstance(value, numpy.generic):
        value = value.item()
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool):
        return str(value).lower()
    is_whole = isinstance(value, float) and math.isfinite(value) and value == int(value)
    return str(int(value)) if is_whole else str(value)


class LogFile:
    """One file: its columns, its number of rows, and its rows in blocks."""

    path: Path
    columns: Mapping[str, Column]
    metadata: Mapping[bytes, bytes] = {}
    """What a Parquet file says of itself."""

    def count(self) -> int:
        """The number of rows."""
        raise NotImplementedError

    def blocks(self, kinds: Mapping[str, str], first: int) -> Iterator[Block]:
        """The rows from `first` on.

        `kinds` are the columns to read, each with the kind of value that is wanted: `f`, `i`, `b`,
        `s` for text, `c` for `Texts` of any values, or nothing in particular.
        """
        raise NotImplementedError


def bad_row(path: Path, row: int, column: str, told: str) -> RequestError:
    """The error for a value; rows are counted from 0, lines of a CSV file from 1."""
    where = f"row {row:,}" if path.suffix.lower() != ".csv" else f"line {row + 2:,}"
    return RequestError(
        f"{path.name}, {where}: column {column!r} {told}.",
        "try: leave such rows out, or read another column",
    )


def find_files(names: Sequence[str], kind: str) -> list[Path]:
    """The files of these names, folders and patterns, in order."""
    paths: list[Path] = []
    for name in names:
        path = absolute_path(name, "data.files:")
        matches = [path] if path.is_file() else []
        if path.is_dir():
            matches = sorted(file for file in path.rglob("*") if _format(file, kind))
        elif "*" in path.name:
            matches = sorted(path.parent.glob(path.name))
        if not matches:
            raise _missing(name, path)
        paths += matches
    return paths


def _missing(name: str, path: Path) -> RequestError:
    told = f"folder {name!r} has no file that ends in {', '.join(FORMATS)}."
    if not path.is_dir():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        guess = did_you_mean(path.name, [file.name for file in beside], sentence=True)
        told = f"there is no file {name!r}. {guess}".rstrip()
    return RequestError(f"data.files: {told}", f"looked at: {path}")


def open_file(path: Path, kind: str) -> LogFile:
    """A file, its columns known."""
    kind = _format(path, kind)
    if not kind:
        raise RequestError(
            f"data.files: {path.name!r} ends in none of {', '.join(FORMATS)}.",
            "try: --set data.format=parquet, csv or npz",
        )
    if not path.stat().st_size:
        raise RequestError(f"{path.name} is empty: it has 0 bytes.", f"looked at: {path}")
    return NpzFile(path) if kind == "npz" else ArrowFile(path, kind)


def _format(path: Path, kind: str) -> str:
    return FORMATS.get(path.suffix.lower(), "") if kind == "auto" else kind


def pyarrow(needed_for: str) -> Any:
    """The package, with its readers."""
    try:
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise RequestError(
            f"reading {needed_for} needs pyarrow, which is not installed.",
            "try: pip install 'rlplug[parquet]'",
        ) from error
    return pyarrow


class ArrowFile(LogFile):
    """A Parquet or CSV file, read by pyarrow in blocks of bounded size."""

    def __init__(self, path: Path, kind: str) -> None:
        self.arrow = pyarrow(path.name)
        self.path, self._kind, self.columns = path, kind, {}
        self._failures = (self.arrow.ArrowInvalid, OSError)
        try:
            schema = self._parquet().schema_arrow if kind == "parquet" else self._csv({}).schema
        except self._failures as error:
            raise self._unreadable(0, error) from error
        self.metadata = schema.metadata or {}
        self.columns = {field.name: self._column(field) for field in schema}

    def count(self) -> int:
        try:
            if self._kind == "parquet":
                return int(self._parquet().metadata.num_rows)
            return sum(len(batch) for batch in self._csv(dict.fromkeys([*self.columns][:1], "")))
        except self._failures as error:
            raise self._unreadable(0, error) from error

    def blocks(self, kinds: Mapping[str, str], first: int) -> Iterator[Block]:
        for row, batch in self.batches(kinds, first):
            yield (
                row,
                {
                    name: _texts(batch.column(name))
                    if kind == "c"
                    else self.array(self._as_float(batch.column(name), kind), name, row)
                    for name, kind in kinds.items()
                },
            )

    def batches(self, kinds: Mapping[str, str], first: int) -> Iterator[tuple[int, Any]]:
        """The rows from `first` on as pyarrow has them: number of the first row, and a batch."""
        row = 0
        try:
            if self._kind == "parquet":
                row, batches = self._parquet_batches(kinds, first)
            else:
                batches = self._csv(kinds)
            for batch in batches:
                skipped = min(max(first - row, 0), len(batch))
                row += len(batch)
                if skipped < len(batch):
                    rows = batch.slice(skipped)
                    yield row - len(rows), rows
        except self._failures as error:
            raise self._unreadable(row, error) from error

    def array(self, column: Any, name: str, row: int) -> NDArray[Any]:
        """The values as an array (n, …); a missing one is NaN among floats, else refused."""
        types = self.arrow.types
        if column.null_count and not types.is_floating(column.type):
            missing = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
            raise bad_row(self.path, row + missing, name, "is missing")
        if not _is_list(types, column.type):
            array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
            return array
        if not types.is_fixed_size_list(column.type):
            lengths = numpy.diff(column.offsets.to_numpy())
            if (lengths != lengths[:1]).any():
                wrong = int((lengths != lengths[0]).argmax())
                told = f"has {lengths[wrong]} values, other rows have {lengths[0]}"
                raise bad_row(self.path, row + wrong, name, told)
        flat = self.array(column.flatten(), name, row)
        return flat.reshape(len(column), -1, *flat.shape[1:]) if len(column) else flat

    def _as_float(self, column: Any, kind: str) -> Any:
        """Whole numbers and booleans of which some are missing as floats, these as NaN."""
        types = self.arrow.types
        whole = types.is_integer(column.type) or types.is_boolean(column.type)
        return column.cast("float64") if kind == "f" and whole and column.null_count else column

    def _column(self, field: Any) -> Column:
        types, inner = self.arrow.types, field.type
        while _is_list(types, inner):
            inner = inner.value_type
        tests = {"f": types.is_floating, "i": types.is_integer, "b": types.is_boolean}
        if types.is_dictionary(inner):
            inner = inner.value_type
        tests["s"] = lambda kind: types.is_string(kind) or types.is_large_string(kind)
        kind = next((letter for letter, test in tests.items() if test(inner)), "")
        column = Column(kind=kind, type=str(field.type), is_list=_is_list(types, field.type))
        is_text = self._kind == "csv" and types.is_string(inner)
        return self._with_first_text(field.name, column) if is_text else column

    def _parquet(self) -> Any:
        return self.arrow.parquet.ParquetFile(self.path, pre_buffer=False)

    def _parquet_batches(self, kinds: Mapping[str, str], first: int) -> tuple[int, Any]:
        """Batches of the row groups from the one with `first` on, and where they begin."""
        file, start = self._parquet(), 0
        groups = list(range(file.num_row_groups))
        while groups and start + (rows := file.metadata.row_group(groups[0]).num_rows) <= first:
            start += rows
            del groups[0]
        return start, file.iter_batches(_BLOCK, row_groups=groups, columns=list(kinds))

    def _csv(self, kinds: Mapping[str, str]) -> Any:
        arrow = self.arrow
        types = {"f": arrow.float64(), "i": arrow.int64(), "b": arrow.bool_()}
        types |= dict.fromkeys("sc", arrow.string())
        wanted = {name: types[kind] for name, kind in kinds.items() if kind}
        for name, column in self.columns.items():
            if column.kind == "b" and kinds.get(name) == "f":
                wanted[name] = types["b"]
        options = arrow.csv.ConvertOptions(column_types=wanted, include_columns=list(kinds))
        return arrow.csv.open_csv(self.path, convert_options=options)

    def _unreadable(self, row: int, error: Exception) -> RequestError:
        told = str(error).partition("\n")[0] or type(error).__name__
        if self._kind == "csv" and (found := _csv_problem(self.path, told)):
            line, name, told = found
            return bad_row(self.path, line - 2, name, told)
        if "footer" in told or "Unexpected end" in told:
            told = f"it ends in the middle, or is something else ({told[:120]})"
        where = f" after row {row:,}" if row else ""
        return RequestError(
            f"{self.path.name} cannot be read as {self._kind}{where}: {told}",
            f"looked at: {self.path}",
        )

    def _with_first_text(self, name: str, column: Column) -> Column:
        """A column of text with the first line that makes it so."""
        try:
            _ = self._csv({name: "f"}).read_all()
        except self._failures as error:
            line, _, told = _csv_problem(self.path, str(error)) or (0, name, "")
            kind = f"{column.type} (line {line:,} {told.partition(',')[0]})"
            return attrs.evolve(column, type=kind if line else column.type)
        return column


def _texts(column: Any) -> Texts:
    encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return Texts(indices, list(map(as_text, encoded.dictionary.to_pylist())))


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _csv_problem(path: Path, told: str) -> tuple[int, str, str] | None:
    """Line, column and what is wrong with its value, from what pyarrow says."""
    match = _CSV_PROBLEM.search(told)
    if match is None:
        return None
    column, row, kind, value, expected, there = match.groups()
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        reader = csv.reader(stream)
        header = next(reader)
        # pyarrow counts rows: a blank line is none, and text may go on in the next line.
        lines = (reader.line_num for line in reader if line)
        line = next(islice(lines, int(row) - 2, None), int(row))
    if kind:
        return line, header[int(column)], f"holds {value}, expected {_EXPECTED.get(kind, kind)}"
    name = header[min(int(there), len(header) - 1)]
    return line, name, f"is not there: the line has {there} values, the header {expected}"


class NpzFile(LogFile):
    """A NumPy archive, whose arrays are in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                arrays = {
                    member.removesuffix(".npy"): _member(archive, member)
                    for member in archive.namelist()
                }
        except _ARCHIVE_FAILURES as error:
            raise RequestError(
                f"{path.name} cannot be read as npz: {error}.",
                "try: numpy.savez(file, name=array, …), without objects",
            ) from error
        self._arrays = {name: array for name, array in arrays.items() if array.shape}
        letters = {"f": "f", "i": "i", "u": "i", "b": "b", "U": "s", "S": "s"}
        self.columns = {
            name: Column(
                kind=letters.get(array.dtype.kind, ""),
                type=str(array.dtype),
                is_list=array.ndim > 1,
            )
            for name, array in self._arrays.items()
        }

    def count(self) -> int:
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise RequestError(
                f"{self.path.name}: its arrays have different numbers of rows: {shown}."
            )
        return next(iter(lengths.values()), 0)

    def blocks(self, kinds: Mapping[str, str], first: int) -> Iterator[Block]:
        rows = self.count()
        for start in range(first, rows, _BLOCK):
            stop = min(start + _BLOCK, rows)
            parts = {name: self._arrays[name][start:stop] for name in kinds}
            yield (
                start,
                {
                    name: _distinct(part) if kinds[name] == "c" else part
                    for name, part in parts.items()
                },
            )


def _distinct(values: NDArray[Any]) -> Texts:
    distinct, indices = numpy.unique(values, return_inverse=True)
    return Texts(indices.reshape(-1), list(map(as_text, distinct.tolist())))


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as stream:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        return array
