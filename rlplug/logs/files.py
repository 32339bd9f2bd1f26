"""Files of logged rows: Parquet and CSV through pyarrow."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.durable import absolute_path
from rlplug.errors import RequestError, did_you_mean
from rlplug.logs.npz_file import NpzFile
from rlplug.logs.roles import Column, largest

__all__ = ["LogFile", "bad_row", "find_files", "open_file", "pyarrow"]

FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".npz": "npz"}

_LINES_SEARCHED = 10_000

_SCANNED = 131_072
"""Rows of row groups that are scanned at once."""

_BLOCK = 32_768
"""Rows that are read at a time."""


class LogFile(Protocol):
    """One file: its columns, its number of rows, and its rows in blocks."""

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """Its columns by name."""

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """What a Parquet file says of itself."""

    def maximum(self, column: str) -> int:
        """The largest value of a column of whole numbers; -1 if there is none."""

    def count(self) -> int:
        """The number of rows."""

    def blocks(
        self, kinds: Mapping[str, str], first: int
    ) -> Iterator[tuple[int, Mapping[str, NDArray[Any]]]]:
        """The rows from `first` on: the number of the block's first row, and columns by name.

        `kinds` are the columns to read, each with the kind of number wanted: `f`, `i` or `b`.
        """


def bad_row(path: Path, row: int, column: str, what: str) -> RequestError:
    """The error for a value; rows are counted from 0, lines of a CSV file from 1."""
    where = f"row {row:,}" if path.suffix.lower() != ".csv" else f"line {row + 2:,}"
    return RequestError(
        f"{path.name}, {where}: column {column!r} {what}.",
        "try: leave such rows out of the log, or map the column that is right in [data]",
    )


def find_files(names: Sequence[str], kind: str) -> list[Path]:
    """The files of these names, folders and patterns, in order."""
    found: list[Path] = []
    for name in names:
        path = absolute_path(name, "data.files:")
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if _format(one, kind))
            if not inside:
                raise RequestError(
                    f"data.files: folder {name!r} has no file that ends in {', '.join(FORMATS)}.",
                    f"looked in: {path.absolute()}",
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            matches = sorted(path.parent.glob(path.name)) if "*" in path.name else []
            if not matches:
                beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
                guess = did_you_mean(path.name, beside, sentence=True)
                raise RequestError(
                    f"data.files: there is no file {name!r}. {guess}".rstrip(),
                    f"looked at: {path.absolute()}",
                )
            found += matches
    return [one.absolute() for one in found]


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
    if kind == "npz":
        return NpzFile(path)
    return ArrowFile(path, kind)


def _format(path: Path, kind: str) -> str:
    return FORMATS.get(path.suffix.lower(), "") if kind == "auto" else kind


def pyarrow(what: str) -> Any:
    """The package, with its data sets."""
    try:
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError as error:
        raise RequestError(
            f"reading {what} needs pyarrow, which is not installed.",
            "try: pip install 'rlplug[parquet]'",
        ) from error
    return pyarrow


class ArrowFile:
    """A Parquet or CSV file, scanned by pyarrow in blocks of bounded size."""

    def __init__(self, path: Path, kind: str) -> None:
        self._arrow = arrow = pyarrow(path.name)
        self.path, self._kind = path, kind
        try:
            self._schema = arrow.dataset.dataset(path, format=kind).schema
        except (arrow.ArrowInvalid, OSError) as error:
            raise self._bad_value({}, 0, error) from error
        self.metadata: Mapping[bytes, bytes] = self._schema.metadata or {}
        columns = {field.name: _column(arrow.types, field.type) for field in self._schema}
        if kind == "csv":
            columns = _with_first_text(path, columns)
        self.columns: Mapping[str, Column] = columns

    def count(self) -> int:
        try:
            return int(self._dataset({}).count_rows())
        except (self._arrow.ArrowInvalid, OSError) as error:
            raise self._bad_value({}, 0, error) from error

    def blocks(
        self, kinds: Mapping[str, str], first: int
    ) -> Iterator[tuple[int, Mapping[str, NDArray[Any]]]]:
        if self._kind == "csv":
            kinds = {name: self._read_as(name, kind) for name, kind in kinds.items()}
        try:
            start, fragments = self._from(kinds, first)
        except (self._arrow.ArrowInvalid, OSError) as error:
            raise self._bad_value(kinds, 0, error) from error
        if self._kind != "csv":
            # A scan of many row groups reads further ahead than is learned from.
            fragments = [part for one in fragments for part in _pieces(one)]
        for fragment in fragments:
            batches = fragment.scanner(
                columns=list(kinds), batch_size=_BLOCK, **self._scan_options()
            ).to_batches()
            while True:
                try:
                    batch = next(batches, None)
                except (self._arrow.ArrowInvalid, OSError) as error:
                    raise self._bad_value(kinds, start, error) from error
                if batch is None:
                    break
                skipped = min(max(first - start, 0), len(batch))
                start += len(batch)
                if skipped == len(batch):
                    continue
                rows = batch.slice(skipped)
                row = start - len(rows)
                yield row, {name: self._array(rows.column(name), name, row) for name in kinds}

    def maximum(self, column: str) -> int:
        blocks = self.blocks({column: "i"}, 0)
        return max((largest(columns[column]) for _, columns in blocks), default=-1)

    def _from(self, kinds: Mapping[str, str], first: int) -> tuple[int, list[Any]]:
        """Where reading begins so that `first` is not missed, and what is read from there."""
        dataset = self._dataset(kinds)
        if self._kind == "csv" or not first:
            return 0, [dataset]
        (fragment,) = dataset.get_fragments()
        start, groups = 0, list(fragment.row_groups)
        while groups and start + groups[0].num_rows <= first:
            start += groups.pop(0).num_rows
        return start, [fragment.subset(row_group_ids=[one.id for one in groups])] if groups else []

    def _read_as(self, name: str, kind: str) -> str:
        """Whole numbers that a CSV file writes as 2.0 are read as such, and checked."""
        return "f" if kind == "i" and self.columns[name].kind == "f" else kind

    def _scan_options(self) -> dict[str, Any]:
        """Options with which memory stays bounded: by default, what was read is kept."""
        options: dict[str, Any] = {
            "use_threads": True,
            "batch_readahead": 1,
            "fragment_readahead": 1,
        }
        if self._kind != "csv":
            parquet = self._arrow.dataset.ParquetFragmentScanOptions
            options["fragment_scan_options"] = parquet(pre_buffer=False, use_buffered_stream=True)
        return options

    def _dataset(self, kinds: Mapping[str, str]) -> Any:
        arrow = self._arrow
        if self._kind != "csv":
            return arrow.dataset.dataset(self.path, format="parquet")
        types = {"f": arrow.float64(), "i": arrow.int64(), "b": arrow.bool_()}
        convert = arrow.csv.ConvertOptions(
            column_types={name: types[kind] for name, kind in kinds.items()}
        )
        return arrow.dataset.dataset(
            self.path, format=arrow.dataset.CsvFileFormat(convert_options=convert)
        )

    def _array(self, column: Any, name: str, row: int) -> NDArray[Any]:
        """The values as an array (n, …); a missing one is NaN among floats, else refused."""
        types = self._arrow.types
        if types.is_list(column.type) or types.is_large_list(column.type):
            lengths = numpy.diff(column.offsets.to_numpy())
            if column.null_count or (len(lengths) and (lengths != lengths[0]).any()):
                wrong = int((lengths != lengths[0]).argmax())
                what = f"has {lengths[wrong]} values, other rows have {lengths[0]}"
                if column.null_count:
                    wrong, what = _first_null(column), "is missing"
                raise bad_row(self.path, row + wrong, name, what)
            return self._nested(column, name, row)
        if types.is_fixed_size_list(column.type):
            if column.null_count:
                raise bad_row(self.path, row + _first_null(column), name, "is missing")
            return self._nested(column, name, row)
        if column.null_count and not types.is_floating(column.type):
            raise bad_row(self.path, row + _first_null(column), name, "is missing")
        array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return array

    def _nested(self, column: Any, name: str, row: int) -> NDArray[Any]:
        flat = self._array(column.flatten(), name, row)
        return flat.reshape(len(column), -1, *flat.shape[1:]) if len(column) else flat

    def _bad_value(self, kinds: Mapping[str, str], row: int, error: Exception) -> RequestError:
        if self._kind == "csv":
            for line, name, what in _bad_lines(self.path, kinds):
                return bad_row(self.path, line - 2, name, what)
        return self._unreadable(error, f" after row {row:,}" if row else "")

    def _unreadable(self, error: Exception, where: str = "") -> RequestError:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "footer" in said or "Unexpected end" in said:
            said = f"it ends in the middle, or is something else ({said[:120]})"
        return RequestError(
            f"{self.path.name} cannot be read as {self._kind}{where}: {said}",
            f"looked at: {self.path}",
        )


def _pieces(scanned: Any) -> Iterator[Any]:
    """Row groups of a Parquet file, a few at a time."""
    fragments = scanned.get_fragments() if hasattr(scanned, "get_fragments") else [scanned]
    for fragment in fragments:
        ids: list[int] = []
        rows = 0
        for group in fragment.row_groups:
            ids.append(group.id)
            rows += group.num_rows
            if rows >= _SCANNED:
                yield fragment.subset(row_group_ids=ids)
                ids, rows = [], 0
        if ids:
            yield fragment.subset(row_group_ids=ids)


def _first_null(column: Any) -> int:
    return int(column.is_null().to_numpy(zero_copy_only=False).argmax())


def _column(types: Any, kind: Any) -> Column:
    inner, is_list = kind, False
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner, is_list = inner.value_type, True
    letter = ""
    if types.is_floating(inner):
        letter = "f"
    elif types.is_integer(inner):
        letter = "i"
    elif types.is_boolean(inner):
        letter = "b"
    return Column(kind=letter, type=str(kind), is_list=is_list)


def _with_first_text(path: Path, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Columns of text, with the first line that makes them so."""
    texts = {name: "f" for name, column in columns.items() if not column.kind}
    found = dict(columns)
    for line, name, what in _bad_lines(path, texts) if texts else ():
        if texts.pop(name, None):
            kind = f"{columns[name].type} (line {line:,} {what.partition(',')[0]})"
            found[name] = attrs.evolve(columns[name], type=kind)
        if not texts or line > _LINES_SEARCHED:
            break
    return found


def _bad_lines(path: Path, kinds: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Lines that cannot be read, found value by value: number, column and what is wrong."""
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        rows = csv.reader(stream)
        header = next(rows, [])
        for row in rows:
            if row and len(row) != len(header):
                yield (
                    rows.line_num,
                    header[min(len(row), len(header) - 1)],
                    f"is not there: the line has {len(row)} values, the header {len(header)}",
                )
            for name, text in zip(header, row, strict=False):
                if name in kinds and not _is_number(text, kinds[name]):
                    words = {"f": "a number", "i": "a whole number", "b": "true or false"}
                    yield rows.line_num, name, f"holds {text!r}, expected {words[kinds[name]]}"


def _is_number(text: str, kind: str) -> bool:
    if kind == "b":
        return text.strip().lower() in ("true", "false", "0", "1", "")
    try:
        _ = float(text or "nan") if kind == "f" else int(text)
    except ValueError:
        return False
    return True
