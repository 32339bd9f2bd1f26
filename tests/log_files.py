"""Files of logged rows that tests write, and logs opened from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pyarrow
from pyarrow import parquet

from rlplug.config.sections import DataSection
from rlplug.logs import Log

ROWS = 10


def columns(rows: int = ROWS, arms: int = 3, dim: int = 2) -> dict[str, Any]:
    """Row i: context (i, i + 0.5, …), arm i % arms, reward 10 i, propensity 1 / arms."""
    index = numpy.arange(rows)
    return {
        **{f"context_{one}": index + 0.5 * one for one in range(dim)},
        "action": index % arms,
        "reward": 10.0 * index,
        "propensity": numpy.full(rows, 1 / arms),
    }


def changed(row: int, **values: Any) -> dict[str, Any]:
    """The columns with other values in a row."""
    table = {name: list(column) for name, column in columns().items()}
    for name, value in values.items():
        table[name][row] = value
    return table


def write(path: Path, table: Mapping[str, Any], **options: Any) -> Path:
    """A file of the format that its name ends in."""
    if path.suffix == ".csv":
        names = list(table)
        lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
        path.write_text("\n".join([",".join(names), *lines]) + "\n")
    elif path.suffix == ".npz":
        numpy.savez(path, **table)
    else:
        parquet.write_table(pyarrow.table(dict(table)), path, **options)
    return path


def opened(*paths: Path, **options: Any) -> Log:
    """The log of these files and other options of `[data]`."""
    return Log.open(DataSection(files=tuple(map(str, paths)), **options))
