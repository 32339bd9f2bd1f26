"""Files of logged rows: Parquet and CSV through pyarrow, and NumPy archives."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import attrs
import numpy
from numpy.lib import format as npy
from numpy.typing import NDArray

from rlplug.durable import absolute_path
from rlplug.errors import RequestError, did_you_mean
from rlplug.logs.roles import Column

__all__ = [
    "FORMATS",
    "ArrowFile",
    "Block",
    "LogFile",
    "bad_row",
    "find_files",
    "open_file",
    "pyarrow",
]

FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".npz": "npz"}

_LINES_SEARCHED = 10_000

_SCANNED = 131_072
"""Rows of row groups that are scanned at once."""

_BLOCK = 32_768
"""Rows that are read at a time."""

_BYTES = 2**26
"""Size of a block of one array of an archive, unless a row is larger."""

_ARCHIVE_FAILURES = (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError)

_EXPECTED = {"f": "a number", "i": "a whole number", "b": "true or false"}

Block: TypeAlias = tuple[int, Mapping[str, NDArray[Any]]]
"""The number of the first row, and columns by name."""


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
        `s` for text, or nothing in particular.
        """
        raise NotImplementedError

    def maximum(self, column: str) -> int:
        """The largest finite value of a column of numbers; -1 if there is none above it."""
        highest = -1
        kind = "f" if self.columns[column].kind == "f" else "i"
        for _, columns in self.blocks({column: kind}, 0):
            values = columns[column]
            # Others are refused when rows are checked.
            values = values[numpy.isfinite(values)]
            highest = max(highest, int(values.max()) if values.size else -1)
        return highest


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
        told = f"there is no file {name!r}."
        if path.is_dir():
            matches = sorted(file for file in path.rglob("*") if _format(file, kind))
            told = f"folder {name!r} has no file that ends in {', '.join(FORMATS)}."
        elif path.is_file():
            matches = [path]
        else:
            matches = sorted(path.parent.glob(path.name)) if "*" in path.name else []
        if not matches:
            beside = path.parent.iterdir() if path.parent.is_dir() else ()
            near = () if path.is_dir() else [file.name for file in beside]
            guess = did_you_mean(path.name, near, sentence=True)
            raise RequestError(f"data.files: {told} {guess}".rstrip(), f"looked at: {path}")
        paths += matches
    return paths


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
    """The package, with its data sets."""
    try:
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError as error:
        raise RequestError(
            f"reading {needed_for} needs pyarrow, which is not installed.",
            "try: pip install 'rlplug[parquet]'",
        ) from error
    return pyarrow


class ArrowFile(LogFile):
    """A Parquet or CSV file, scanned by pyarrow in blocks of bounded size."""

    def __init__(self, path: Path, kind: str) -> None:
        self.arrow = arrow = pyarrow(path.name)
        self.path, self._kind = path, kind
        self._failures = (arrow.ArrowInvalid, OSError)
        # By default, a scan keeps what it read.
        self._scanning = {"batch_size": _BLOCK, "batch_readahead": 1, "fragment_readahead": 1}
        if kind == "parquet":
            options = arrow.dataset.ParquetFragmentScanOptions
            self._scanning["fragment_scan_options"] = options(
                pre_buffer=False, use_buffered_stream=True
            )
        try:
            schema = arrow.dataset.dataset(path, format=kind).schema
        except self._failures as error:
            raise self._unreadable({}, 0, error) from error
        self.metadata = schema.metadata or {}
        columns = {field.name: _column(arrow.types, field.type) for field in schema}
        self.columns = _with_first_text(path, columns) if kind == "csv" else columns

    def count(self) -> int:
        try:
            return int(self._dataset({}).count_rows())
        except self._failures as error:
            raise self._unreadable({}, 0, error) from error

    def blocks(self, kinds: Mapping[str, str], first: int) -> Iterator[Block]:
        for row, batch in self.batches(kinds, first):
            yield row, {name: self.array(batch.column(name), name, row) for name in kinds}

    def batches(self, kinds: Mapping[str, str], first: int) -> Iterator[tuple[int, Any]]:
        """The rows from `first` on as pyarrow has them: number of the first row, and a batch."""
        row = 0
        try:
            row, fragments = self._fragments(kinds, first)
            for fragment in fragments:
                scanner = fragment.scanner(columns=list(kinds), **self._scanning)
                for batch in scanner.to_batches():
                    skipped = min(max(first - row, 0), len(batch))
                    row += len(batch)
                    if skipped < len(batch):
                        rows = batch.slice(skipped)
                        yield row - len(rows), rows
        except self._failures as error:
            raise self._unreadable(kinds, row, error) from error

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

    def _fragments(self, kinds: Mapping[str, str], first: int) -> tuple[int, list[Any]]:
        """Where reading begins so that `first` is not missed, and what is scanned from there.

        Of a Parquet file a few row groups at a time: a scan of many reads further ahead than is
        learned from.
        """
        dataset = self._dataset(kinds)
        if self._kind == "csv":
            return 0, [dataset]
        (fragment,) = dataset.get_fragments()
        start, rows, groups = 0, 0, list(fragment.row_groups)
        while groups and start + groups[0].num_rows <= first:
            start += groups.pop(0).num_rows
        pieces: list[list[int]] = [[]]
        for group in groups:
            if rows >= _SCANNED:
                rows = 0
                pieces.append([])
            rows += group.num_rows
            pieces[-1].append(group.id)
        return start, [fragment.subset(row_group_ids=ids) for ids in pieces if ids]

    def _dataset(self, kinds: Mapping[str, str]) -> Any:
        arrow, form = self.arrow, self._kind
        if form == "csv":
            types = {"f": arrow.float64(), "i": arrow.int64(), "b": arrow.bool_()}
            types["s"] = arrow.string()
            wanted = {name: types[kind] for name, kind in kinds.items() if kind}
            convert = arrow.csv.ConvertOptions(column_types=wanted)
            form = arrow.dataset.CsvFileFormat(convert_options=convert)
        return arrow.dataset.dataset(self.path, format=form)

    def _unreadable(self, kinds: Mapping[str, str], row: int, error: Exception) -> RequestError:
        if self._kind == "csv":
            for line, name, told in _bad_lines(self.path, kinds):
                return bad_row(self.path, line - 2, name, told)
        told = str(error).partition("\n")[0] or type(error).__name__
        if "footer" in told or "Unexpected end" in told:
            told = f"it ends in the middle, or is something else ({told[:120]})"
        where = f" after row {row:,}" if row else ""
        return RequestError(
            f"{self.path.name} cannot be read as {self._kind}{where}: {told}",
            f"looked at: {self.path}",
        )


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _column(types: Any, kind: Any) -> Column:
    inner = kind
    while _is_list(types, inner):
        inner = inner.value_type
    tests = {"f": types.is_floating, "i": types.is_integer, "b": types.is_boolean}
    letter = next((letter for letter, test in tests.items() if test(inner)), "")
    return Column(kind=letter, type=str(kind), is_list=inner is not kind)


def _with_first_text(path: Path, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Columns of text, with the first line that makes them so."""
    texts = {name: "f" for name, column in columns.items() if not column.kind}
    told = dict(columns)
    for line, name, what in _bad_lines(path, texts) if texts else ():
        if texts.pop(name, None):
            kind = f"{columns[name].type} (line {line:,} {what.partition(',')[0]})"
            told[name] = attrs.evolve(columns[name], type=kind)
        if not texts or line > _LINES_SEARCHED:
            break
    return told


def _bad_lines(path: Path, kinds: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Lines that cannot be read, looked at value by value: number, column and what is wrong."""
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        rows = csv.reader(stream)
        header = next(rows, [])
        for row in rows:
            if row and len(row) != len(header):
                column = header[min(len(row), len(header) - 1)]
                told = f"the line has {len(row)} values, the header {len(header)}"
                yield rows.line_num, column, f"is not there: {told}"
            for name, text in zip(header, row, strict=False):
                kind = kinds.get(name, "")
                if kind in _EXPECTED and not _is_number(text, kind):
                    yield rows.line_num, name, f"holds {text!r}, expected {_EXPECTED[kind]}"


def _is_number(text: str, kind: str) -> bool:
    if kind == "b":
        return text.strip().lower() in ("true", "false", "0", "1", "")
    try:
        _ = float(text or "nan") if kind == "f" else int(text)
    except ValueError:
        return False
    return True


class NpzFile(LogFile):
    """A NumPy archive, compressed or not; an array in Fortran order is read whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._archive() as archive:
            self._arrays = {}
            for member in archive.namelist():
                with archive.open(member) as stream:
                    self._arrays[member.removesuffix(".npy")] = _Rows(stream)
        letters = {"f": "f", "i": "i", "u": "i", "b": "b"}
        self.columns = {
            name: Column(
                kind=letters.get(array.dtype.kind, ""),
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

    def blocks(self, kinds: Mapping[str, str], first: int) -> Iterator[Block]:
        rows = self.count()
        largest = max((self._arrays[name].row_bytes for name in kinds), default=1)
        block = max(1, min(_BLOCK, _BYTES // max(largest, 1)))
        with self._archive() as archive, ExitStack() as stack:
            readers: dict[str, Callable[[int], NDArray[Any]]] = {}
            for name in kinds:
                member = name if name in archive.NameToInfo else f"{name}.npy"
                readers[name] = _Rows(stack.enter_context(archive.open(member))).read_from(first)
            for start in range(first, rows, block):
                size = min(block, rows - start)
                yield start, {name: read(size) for name, read in readers.items()}

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except _ARCHIVE_FAILURES as error:
            raise RequestError(
                f"{self.path.name} cannot be read as npz: {error}.",
                "try: numpy.savez(file, name=array, …), without objects",
            ) from error


class _Rows:
    """The rows of an array of an archive, whose stream stands behind its header then."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        version = npy.read_magic(stream)
        if version not in readers:
            raise ValueError(f"format {version} of an array is not known")
        self.shape, self._by_columns, self.dtype = readers[version](stream)
        if self.dtype.hasobject:
            raise ValueError("an array holds Python objects")
        self.row_bytes = self.dtype.itemsize * int(numpy.prod(self.shape[1:], dtype=numpy.int64))

    def read_from(self, first: int) -> Callable[[int], NDArray[Any]]:
        """A function that reads the next rows, as many as it is asked for."""
        stream = self._stream
        if self._by_columns and len(self.shape) > 1:
            whole = numpy.frombuffer(stream.read(), self.dtype).reshape(self.shape, order="F")
            stream = io.BytesIO(whole.tobytes())
        stream.seek(first * self.row_bytes, 1)

        def read(rows: int) -> NDArray[Any]:
            content = bytearray(stream.read(rows * self.row_bytes))
            return numpy.frombuffer(content, self.dtype).reshape(rows, *self.shape[1:])

        return read
