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
from rlplug.spaces import AnySpace, describe, space_from_dict, space_to_dict

__all__ = ["Recording", "spaces_as_metadata", "spaces_from_metadata"]

_KEY = b"rlplug"
"""Key of the metadata in which recordings keep their spaces."""

_PARTS = ("context", "arms", "action_mask")
"""The parts of observations that have columns of their own."""

_BYTES = 2**26
"""Size at which rows in memory become a file."""


class Recording:
    """A folder of logged rows, numbered from 0; complete files only."""

    def __init__(self, folder: Path, observation_space: AnySpace, action_space: AnySpace) -> None:
        self._arrow = pyarrow("recordings")
        self.folder = folder
        parts = {"context": observation_space}
        if isinstance(observation_space, spaces.Dict):
            parts = dict(observation_space.spaces)
        for name, space in {**parts, "action": action_space}.items():
            is_plain = isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary)
            if name not in (*_PARTS, "action") or not is_plain:
                raise UnsupportedSpaceError(
                    f"{describe(space)} of the key {name!r} cannot be recorded.",
                    f"recorded are: Box, Discrete, and Dict with the keys {', '.join(_PARTS)}",
                )
        self._metadata = spaces_as_metadata(observation_space, action_space)
        self.rows = 0
        """Rows recorded so far, those in memory included."""
        self._pending: list[Mapping[str, NDArray[Any]]] = []
        self._pending_bytes = 0

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
        rows = {**{name: numpy.array(seen[name]) for name in seen}, **columns}
        count = len(rows["reward"])
        if not count:
            return
        self.rows += count
        self._pending.append(rows)
        self._pending_bytes += sum(column.nbytes for column in rows.values())
        if self._pending_bytes > _BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory as a file."""
        if not self._pending:
            return
        arrow, pending = self._arrow, self._pending
        columns = {name: numpy.concatenate([rows[name] for rows in pending]) for name in pending[0]}
        table = arrow.table({name: _to_arrow(arrow, column) for name, column in columns.items()})
        file = self.folder / f"part-{self.rows - len(columns['reward']):012d}.parquet"
        partial = file.with_suffix(".new")
        arrow.parquet.write_table(table.replace_schema_metadata(self._metadata), partial)
        os.replace(partial, file)
        self._pending, self._pending_bytes = [], 0

    def resume(self, rows: int) -> None:
        """Go on after so many rows; files of later ones are deleted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.glob("part-*.parquet"):
            if int(file.stem.removeprefix("part-")) >= rows:
                file.unlink()
        self.rows, self._pending, self._pending_bytes = rows, [], 0


def spaces_as_metadata(observations: AnySpace, actions: AnySpace) -> dict[bytes, bytes]:
    """The metadata of a Parquet file that holds the spaces of its rows."""
    told = {"observation_space": observations, "action_space": actions}
    content = {name: space_to_dict(space) for name, space in told.items()}
    return {_KEY: json.dumps(content, default=_array_in_json).encode()}


def spaces_from_metadata(metadata: Mapping[bytes, bytes]) -> tuple[AnySpace, AnySpace] | None:
    """The spaces of observations and actions, None where the metadata holds none."""
    if _KEY not in metadata:
        return None
    told = json.loads(metadata[_KEY], object_hook=_array_from_json)
    return space_from_dict(told["observation_space"]), space_from_dict(told["action_space"])


def _array_in_json(array: NDArray[Any]) -> dict[str, Any]:
    """Its numbers, which are one number where all are the same."""
    same = array.size and (array == array.flat[0]).all()
    numbers = array.flat[0].item() if same else array.tolist()
    return {"numbers": numbers, "shape": array.shape, "dtype": str(array.dtype)}


def _array_from_json(values: dict[str, Any]) -> Any:
    if "numbers" not in values:
        return values
    return numpy.full(values["shape"], values["numbers"], values["dtype"])


def _to_arrow(arrow: Any, values: NDArray[Any]) -> Any:
    """An array (n, …) as a column, of lists of fixed size where it has more axes."""
    column = arrow.array(numpy.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        column = arrow.FixedSizeListArray.from_arrays(column, size)
    return column
