"""Recordings: experience written as logs, in Parquet files of bounded size."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.errors import RequestError, UnsupportedSpaceError
from rlplug.logs.files import pyarrow
from rlplug.logs.log import SPACES_KEY
from rlplug.logs.space_json import space_to_json

__all__ = ["Recording"]

_PARTS = ("context", "arms", "action_mask", "arm_ids")
"""The parts of observations that have columns of their own."""

_BYTES = 2**26
"""Size at which rows in memory become a file."""


class Recording:
    """A folder of logged rows, numbered from 0; complete files only."""

    def __init__(
        self, folder: Path, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> None:
        self._arrow = pyarrow("recordings")
        self.folder = folder
        told = {
            "observation_space": space_to_json(observation_space),
            "action_space": space_to_json(action_space),
        }
        if isinstance(observation_space, spaces.Dict):
            others = sorted(set(observation_space) - set(_PARTS))
            if others:
                raise UnsupportedSpaceError(
                    f"observations with the key {others[0]!r} cannot be recorded.",
                    f"recorded are: Box, Discrete, and Dict with the keys {', '.join(_PARTS)}",
                )
        self._metadata = {SPACES_KEY: json.dumps(told).encode()}
        self.rows = 0
        """Rows recorded so far, those in memory included."""
        self._pending: list[Mapping[str, NDArray[Any]]] = []
        self._pending_rows = self._pending_bytes = 0

    def start(self) -> None:
        """Make the folder, or refuse one that has a recording."""
        there = sorted(self.folder.glob("*.parquet")) if self.folder.is_dir() else []
        if there:
            raise RequestError(
                f"folder {str(self.folder)!r} has a recording already ({there[0].name}).",
                "try: another folder",
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(
                f"the recording cannot be written to {str(self.folder)!r}: "
                f"{error.strerror or error}.",
                "try: another folder",
            ) from error

    def add(self, observations: Any, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows, which are copied; `columns` by role."""
        seen = observations if isinstance(observations, Mapping) else {"context": observations}
        row = {**{name: numpy.array(seen[name]) for name in seen}, **columns}
        count = len(row["reward"])
        if not count:
            return
        self.rows += count
        self._pending.append(row)
        self._pending_rows += count
        self._pending_bytes += sum(one.nbytes for one in row.values())
        if self._pending_bytes > _BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory as a file."""
        if not self._pending:
            return
        arrow, pending = self._arrow, self._pending
        arrays = {
            name: _to_arrow(arrow, numpy.concatenate([one[name] for one in pending]))
            for name in pending[0]
        }
        table = arrow.table(arrays).replace_schema_metadata(self._metadata)
        file = self.folder / f"part-{self.rows - self._pending_rows:012d}.parquet"
        partial = file.with_suffix(".new")
        arrow.parquet.write_table(table, partial)
        os.replace(partial, file)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def resume(self, rows: int) -> None:
        """Go on after so many rows; files of later ones are deleted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.glob("part-*.parquet"):
            if int(file.stem.removeprefix("part-")) >= rows:
                file.unlink()
        self.rows = rows
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _to_arrow(arrow: Any, values: NDArray[Any]) -> Any:
    """An array (n, …) as a column, of lists of fixed size where it has more axes."""
    column = arrow.array(numpy.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        column = arrow.FixedSizeListArray.from_arrays(column, size)
    return column
