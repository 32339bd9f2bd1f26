"""Load tables from files, from scikit-learn, or generate them."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from rlplug.bandits.table import Table
from rlplug.durable import absolute_path
from rlplug.errors import RequestError, did_you_mean

__all__ = ["GENERATED_SETS", "SKLEARN_SETS", "load_table", "rings_table"]

SKLEARN_SETS = ("breast_cancer", "digits", "iris", "wine")
"""Tables of scikit-learn."""

GENERATED_SETS = ("rings",)
"""Generated tables."""


def load_table(source: str, label: str = "label") -> Table:
    """Load a `.csv`, `.parquet` or `.npz` file, or a table known by name.

    `label` names the column of classes; an `.npz` file has arrays `x` and `y` instead.
    """
    readers = {".csv": _csv_table, ".parquet": _parquet_table, ".npz": _npz_table}
    if source in SKLEARN_SETS:
        return _sklearn_table(source)
    if source in GENERATED_SETS:
        return rings_table()
    # Shells do not expand the ~ in env.table=~/data.csv.
    path = absolute_path(source, "env.table")
    reader = readers.get(path.suffix.lower())
    if reader is None:
        known = (*SKLEARN_SETS, *GENERATED_SETS)
        guess = did_you_mean(source, known)
        raise RequestError(
            f"table {source!r} is neither a file ({', '.join(readers)}) nor one of "
            f"{', '.join(known)}.",
            *([guess] if guess else []),
        )
    if not path.is_file():
        raise RequestError(
            f"table {source!r}: there is no such file.",
            f"looked at: {path.absolute()}",
        )
    return reader(path, label)


def rings_table(
    rows: int = 2_000, rings: int = 6, classes: int = 3, noise: float = 0.15, *, seed: int = 0
) -> Table:
    """Points on concentric rings, ring i with a radius of about i + 1 and class i % classes.

    Neither a linear classifier nor a threshold on the radius separates the classes.
    """
    random = numpy.random.default_rng(seed)
    ring = numpy.arange(rows) % rings
    angles = random.uniform(0.0, 2.0 * numpy.pi, rows)
    distances = 1.0 + ring + noise * random.standard_normal(rows)
    points = distances[:, None] * numpy.stack([numpy.cos(angles), numpy.sin(angles)], axis=1)
    return Table.of(points, ring % classes, name="rings", columns=("x", "y"))


def _csv_table(path: Path, label: str) -> Table:
    """A comma-separated file whose first line names the columns."""
    name = path.name
    header = _header(path)
    _find_label(name, header, label)
    chosen = [index for index, column in enumerate(header) if column != label]
    try:
        features = _columns(path, chosen, numpy.float64)
        labels = _columns(path, [header.index(label)], numpy.str_)[:, 0]
    except ValueError as error:
        raise _bad_line(path, header, chosen) from error
    # A space after a comma must not make another class.
    labels = numpy.char.strip(labels)
    columns = [header[index] for index in chosen]
    return Table.of(features, labels, name=name, columns=columns)


def _parquet_table(path: Path, label: str) -> Table:
    """A Parquet file, read with pyarrow."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise _not_installed(f"reading {path.name}", "pyarrow", "parquet") from error
    try:
        found = parquet.read_table(path)
    except (ValueError, OSError) as error:
        raise RequestError(f"{path.name}: cannot be read as a Parquet file: {error}") from error
    _find_label(path.name, found.column_names, label)
    columns = [column for column in found.column_names if column != label]
    features = numpy.empty((found.num_rows, len(columns)))
    for index, column in enumerate(columns):
        values = found.column(column).to_numpy()
        if values.dtype.kind not in "biuf":
            raise RequestError(
                f"{path.name}: column {column!r} holds {found.column(column).type}, a feature "
                f"must be a number; its first values are {values[:3].tolist()}."
            )
        features[:, index] = values
    labels = found.column(label).to_numpy()
    return Table.of(features, labels, name=path.name, columns=columns)


def _npz_table(path: Path, label: str) -> Table:
    """A NumPy archive with arrays `x` (rows, columns) and `y` (rows); `label` is not used."""
    try:
        with zipfile.ZipFile(path):
            pass
        with numpy.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name in ("x", "y")}
            names = sorted(archive.files)
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise RequestError(f"{path.name}: cannot be read as an .npz file: {error}") from error
    for wanted in ("x", "y"):
        if wanted not in arrays:
            raise RequestError(
                f"{path.name}: there is no array {wanted!r}; there are: "
                f"{', '.join(names) or 'none'}.",
                "try: numpy.savez(path, x=features, y=labels)",
            )
    return Table.of(arrays["x"], arrays["y"], name=path.name)


def _sklearn_table(name: str) -> Table:
    """One of scikit-learn's tables."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise _not_installed(f"the table {name!r}", "scikit-learn", "sklearn") from error
    found = getattr(datasets, f"load_{name}")()
    return Table.of(found.data, found.target, name=name, columns=list(found.feature_names))


def _header(path: Path) -> list[str]:
    """The names of the columns of a CSV file that has a line below them."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            header = [column.strip() for column in next(csv.reader(lines), [])]
            if any(line.strip() for line in lines):
                return header
    except UnicodeDecodeError as error:
        raise RequestError(f"{path.name}: cannot be read as UTF-8 text: {error}") from error
    raise RequestError(f"{path.name}: the table is empty, it has no line below the header.")


def _columns(path: Path, chosen: Sequence[int], kind: type[Any]) -> Any:
    """These columns of a CSV file, by NumPy's reader, which makes no Python lists of rows."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        next(csv.reader(lines))
        return numpy.loadtxt(
            (line for line in lines if not line.isspace()),
            dtype=kind,
            delimiter=",",
            quotechar='"',
            comments=None,
            usecols=list(chosen),
            ndmin=2,
        )


def _bad_line(path: Path, header: Sequence[str], chosen: Sequence[int]) -> RequestError:
    """The error for the first line that is not a row of numbers."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines)
        next(reader)
        for cells in reader:
            if cells and len(cells) != len(header):
                return RequestError(
                    f"{path.name}, line {reader.line_num}: the header names {len(header)} "
                    f"columns, this line has {len(cells)}."
                )
            for index in chosen if cells else ():
                if not _is_number(cells[index]):
                    return RequestError(
                        f"{path.name}, line {reader.line_num}: column {header[index]!r} holds "
                        f"{cells[index]!r}, a feature must be a number.",
                        "try: leave the column out, or give each of its values a column of 0 and 1",
                    )
    return RequestError(f"{path.name}: cannot be read as a comma-separated file.")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _find_label(name: str, columns: Sequence[str], label: str) -> None:
    if label not in columns:
        guess = did_you_mean(label, columns)
        raise RequestError(
            f"{name}: there is no column {label!r} to take labels from; the columns are: "
            f"{', '.join(columns) or 'none'}.",
            *([guess] if guess else []),
            "try: --set env.label=COLUMN",
        )


def _not_installed(what: str, package: str, extra: str) -> RequestError:
    return RequestError(
        f"{what} needs {package}, which is not installed.",
        f'try: pip install "rlplug[{extra}]"',
    )
