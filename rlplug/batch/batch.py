"""Experience on its way to an update: named columns of equal length, and tables beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy
import torch
from torch import Tensor

from rlplug.batch.nested import first_leaf, leaves, mapped, to_arrays, to_tensors
from rlplug.errors import RequestError

if TYPE_CHECKING:
    from rlplug.batch.extended import Extended

__all__ = ["SIDE_TABLES", "Batch", "Column"]

Column: TypeAlias = "Tensor | numpy.ndarray[Any, Any] | Mapping[str, Any] | tuple[Any, ...]"

SIDE_TABLES = frozenset(("fragments", "final_observations", "state", "continued"))
"""Tables with one row per fragment: a piece of an episode inside a rollout."""


class Batch(Mapping[str, Any]):
    """A light mapping of tensors, read `batch["rewards"]`.

    Columns that arrive as NumPy arrays become tensors when they are first read as such, without a
    copy; `array` reads them as NumPy. Observations of Dict and Tuple spaces are nested alike.
    `fragments` (start, stop), `final_observations`, `state` and, where episodes were cut to pieces
    for a memory, `continued` (whether the next one goes on) have one row per fragment instead.
    """

    __slots__ = ("_checked", "_columns")

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns: dict[str, Any] = dict(columns)
        self._checked = 0
        """How many rows it has, once it is known that every column fits."""

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if isinstance(column, Tensor):
            return column
        try:
            made = self._columns[name] = to_tensors(column)
        except TypeError as error:
            raise RequestError(
                f"column {name!r} of the batch cannot become a tensor: {error}",
                "give numbers or truth values, as tensors or arrays, nested as mappings or tuples",
            ) from error
        return made

    def array(self, name: str) -> Any:
        """The column as NumPy, without a copy where it is on the CPU."""
        return to_arrays(self._columns[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of columns, as for any mapping; see `rows`."""
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __repr__(self) -> str:
        parts = (
            f"{name} {' + '.join(str(tuple(leaf.shape)) for leaf in leaves(column))}"
            for name, column in self._columns.items()
        )
        return f"Batch({', '.join(parts)})"

    @property
    def rows(self) -> int:
        """How many rows every column has."""
        if self._checked:
            return self._checked
        for name, column in self._columns.items():
            if name not in SIDE_TABLES:
                return len(first_leaf(column))
        return 0

    def with_columns(self, columns: Mapping[str, Column]) -> Batch:
        """A batch with these columns replaced or added; this one stays as it is."""
        made = Batch({**self._columns, **columns})
        rows = self._checked
        if rows and all(_is_plain(name, column, rows) for name, column in columns.items()):
            made._checked = rows
        return made

    def without(self, names: frozenset[str]) -> Batch:
        """A batch without these columns."""
        return Batch({name: part for name, part in self._columns.items() if name not in names})

    def select(self, rows: slice | Tensor) -> Batch:
        """These rows of every column; tables of fragments are left out."""
        if isinstance(rows, slice):
            return Batch(self._mapped(lambda leaf: leaf[rows]))
        return Batch(self._mapped(lambda leaf: leaf.index_select(0, rows)))

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Batch:
        """The same on a device; `dtype` is for the columns with fractional numbers."""
        if self._stays(device, dtype):
            return self

        def move(leaf: Tensor) -> Tensor:
            wanted = dtype if leaf.is_floating_point() else None
            if device.type == "cuda" and leaf.device.type == "cpu":
                # Only from pinned memory does a copy run beside the computation.
                leaf = leaf.pin_memory() if leaf.numel() >= _WORTH_PINNING else leaf
                return leaf.to(device, wanted, non_blocking=True)
            return leaf.to(device, wanted)

        return Batch({name: mapped(self[name], move) for name in self._columns})

    def check(self) -> None:
        """Refuse columns whose lengths differ, and fragments that do not fit the rows."""
        if self._checked:
            return
        rows = self.rows
        if not rows:
            raise RequestError("the batch has no rows.", "leave its module out of the update")
        for name, column in self._columns.items():
            if _is_plain(name, column, rows):
                continue
            if name in SIDE_TABLES:
                self._check_table(name, column)
                continue
            for leaf in leaves(column):
                if not hasattr(leaf, "shape"):
                    raise RequestError(
                        f"column {name!r} of the batch holds a {type(leaf).__name__}.",
                        "try: numpy.asarray(…), or a tensor",
                    )
                if not leaf.shape or len(leaf) != rows:
                    first = next(key for key in self._columns if key not in SIDE_TABLES)
                    raise RequestError(
                        f"column {name!r} of the batch has shape {tuple(leaf.shape)}, "
                        f"but {first!r} has {rows} rows.",
                        "give every column one value per row",
                    )
        self._checked = rows

    def extended(self) -> Extended:
        """Each fragment with its final observation appended, for one pass over all of them."""
        from rlplug.batch.extended import extend

        return extend(self)

    def _stays(self, device: torch.device, dtype: torch.dtype | None) -> bool:
        """Whether every column can be read as it is; on the CPU, arrays can."""
        formats = _formats_of_arrays(device, dtype)
        for column in self._columns.values():
            if type(column) is numpy.ndarray:
                # One letter each: comparing formats themselves takes several times as long.
                fits = column.dtype.char in formats
            else:
                fits = isinstance(column, Tensor) and (
                    column.device == device
                    and (dtype in (None, column.dtype) or not column.is_floating_point())
                )
            if not fits:
                return False
        return True

    def _check_table(self, name: str, column: Any) -> None:
        if "fragments" not in self._columns:
            raise RequestError(
                f"the batch has {name!r}, but no 'fragments'.",
                "add the starts and stops of its fragments, shape (fragments, 2)",
            )
        fragments = self["fragments"]
        for leaf in leaves(column):
            if len(leaf) != len(fragments):
                raise RequestError(
                    f"{name!r} of the batch has {len(leaf)} rows for {len(fragments)} fragments.",
                    "give one row per fragment",
                )
        # What is on a device already is not read back: that would wait for it.
        if name == "fragments" and fragments.device.type == "cpu":
            _check_cover(fragments, self.rows)

    def _mapped(self, change: Any) -> dict[str, Any]:
        return {
            name: mapped(self[name], change) for name in self._columns if name not in SIDE_TABLES
        }


@cache
def _formats_of_arrays(device: torch.device, dtype: torch.dtype | None) -> str:
    """Letters of what needs no move; remembered, for torch is slow to tell a device's type."""
    return _ARRAY_FORMATS.get(dtype, "") if device.type == "cpu" else ""


def _is_plain(name: str, column: Any, rows: int) -> bool:
    """Whether this is what nearly every column is: a tensor or array of the right length."""
    return (
        type(column) in _PLAIN and name not in SIDE_TABLES and column.ndim and len(column) == rows
    )


_PLAIN = frozenset((Tensor, numpy.ndarray))

_WHOLE_NUMBERS = "?bBhHiIlLqQ"
_ARRAY_FORMATS = {
    None: _WHOLE_NUMBERS + "efd",
    torch.float32: _WHOLE_NUMBERS + "f",
    torch.float64: _WHOLE_NUMBERS + "d",
}
"""NumPy's letters for what can be read as it is where a format is wanted for fractions."""

_WORTH_PINNING = 4096
"""Numbers in a column: below, pinning costs more than it saves."""


def _check_cover(fragments: Tensor, rows: int) -> None:
    if fragments.dim() == 2 and len(fragments):
        starts, stops = fragments[:, 0], fragments[:, 1]
        joined = bool((starts[1:] == stops[:-1]).all()) and bool((starts < stops).all())
        if joined and int(starts[0]) == 0 and int(stops[-1]) == rows:
            return
    raise RequestError(
        f"'fragments' of the batch must cover its {rows} rows, one after the other.",
        f"found {fragments.tolist()}",
    )
