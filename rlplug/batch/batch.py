"""Training batches: named columns of equal length, and tables with one row per fragment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from rlplug.batch.nested import first_leaf, leaves, to_arrays, to_tensors, tree_map
from rlplug.errors import RequestError

__all__ = ["SIDE_TABLES", "Batch", "Column", "ExtendedBatch"]

Column: TypeAlias = "Tensor | numpy.ndarray[Any, Any] | Mapping[str, Any] | tuple[Any, ...]"

SIDE_TABLES = frozenset(("fragments", "final_observations", "state", "continued"))
"""Tables with one row per fragment: a piece of an episode inside a rollout."""


class MissingColumnError(RequestError, KeyError):
    """A batch lacks a column that somebody reads; a KeyError as well, as of any mapping."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"the batch has no column {name!r}.", f"it has: {', '.join(map(str, known)) or 'none'}"
        )

    # A KeyError shows its message in quotes.
    __str__ = Exception.__str__


class Batch(Mapping[str, Any]):
    """A light mapping of tensors, read `batch["rewards"]`.

    NumPy columns become tensors when they are first read, without a copy; `array` reads columns as
    NumPy. Columns of Dict and Tuple spaces are nested like their spaces. `fragments` (start, stop),
    `final_observations`, `state` and, with truncated BPTT, `continued` (whether the next fragment
    continues the episode) have one row per fragment instead.

    `rows` is given by who knows that all columns have that many; `check` then has nothing to do.
    """

    __slots__ = ("_checked", "_columns")

    def __init__(self, columns: Mapping[str, Column], rows: int = 0) -> None:
        self._columns: dict[str, Any] = dict(columns)
        self._checked = rows

    def __getitem__(self, name: str) -> Any:
        column = self._column(name)
        if isinstance(column, Tensor):
            return column
        tensors = self._columns[name] = to_tensors(column)
        return tensors

    def array(self, name: str) -> Any:
        """A column as NumPy, without a copy if it is on the CPU."""
        return to_arrays(self._column(name))

    def get(self, name: str, default: Any = None) -> Any:
        """A column as a tensor, or the default where there is none."""
        return self[name] if name in self._columns else default

    def _column(self, name: str) -> Any:
        try:
            return self._columns[name]
        except KeyError:
            raise MissingColumnError(name, self._columns) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of columns, as for any mapping; see `rows`."""
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __repr__(self) -> str:
        shapes = {name: tuple(first_leaf(column).shape) for name, column in self._columns.items()}
        return f"Batch({', '.join(f'{name} {shape}' for name, shape in shapes.items())})"

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns as they are stored: tensors or NumPy arrays."""
        return self._columns

    @property
    def device(self) -> torch.device:
        """Where the columns are, which `to` put on one device."""
        for column in self._columns.values():
            leaf = first_leaf(column)
            if isinstance(leaf, Tensor):
                return leaf.device
        return _CPU

    @property
    def rows(self) -> int:
        """The number of rows of every column."""
        if self._checked:
            return self._checked
        for name, column in self._columns.items():
            if name not in SIDE_TABLES:
                return int(first_leaf(column).shape[0])
        return 0

    def with_columns(self, columns: Mapping[str, Column]) -> Batch:
        """A new batch with these columns replaced or added."""
        made = Batch({**self._columns, **columns}, self._checked)
        for name, column in columns.items():
            if not _is_plain(name, column, self._checked):
                made._checked = 0
        return made

    def without(self, names: frozenset[str]) -> Batch:
        """A new batch without these columns."""
        return Batch({name: part for name, part in self._columns.items() if name not in names})

    def select(self, rows: slice | Tensor) -> Batch:
        """A new batch with these rows, without the tables of fragments."""
        if isinstance(rows, Tensor) and rows.device != self.device:
            rows = _moved(rows, self.device, None)
        selected: dict[str, Any] = {}
        for name, column in self._columns.items():
            if name not in SIDE_TABLES:
                selected[name] = _selected(column, rows)
        return Batch(selected)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Batch:
        """The batch on a device, without graphs; `dtype` applies to floating-point columns."""
        formats = _ARRAY_FORMATS.get(dtype, "") if device == _CPU else ""
        moved: dict[str, Any] = {}
        for name, column in self._columns.items():
            if not _fits(column, device, dtype, formats):
                moved[name] = tree_map(partial(_moved, device=device, dtype=dtype), column)
        return Batch({**self._columns, **moved}, self._checked) if moved else self

    def check(self) -> None:
        """Refuse columns of different lengths, and fragments that do not cover the rows."""
        if self._checked:
            return
        rows = self.rows
        if not rows:
            raise RequestError("the batch has no rows.", "leave its module out of the update")
        for name, column in self._columns.items():
            if name in _ENDS and getattr(column, "dtype", None) not in _BOOLEANS:
                raise RequestError(
                    f"column {name!r} of the batch does not hold booleans.",
                    f"try: {name} == 1",
                )
            if _is_plain(name, column, rows):
                continue
            length = len(self._column("fragments")) if name in SIDE_TABLES else rows
            for leaf in leaves(column):
                shape = tuple(leaf.shape)
                if shape[:1] != (length,):
                    raise RequestError(
                        f"column {name!r} of the batch is of shape {shape}, not of {length} rows.",
                        "give one value per row, and in tables of fragments one per fragment",
                    )
        if "fragments" in self:
            spans = self["fragments"]
            # Reading them back from a device would synchronise with it.
            if spans.is_cpu and not _covers(spans, rows):
                raise RequestError(
                    f"'fragments' of the batch must cover its {rows} rows, one after the other.",
                    f"found {spans.tolist()}",
                )
        self._checked = rows

    def extended(self) -> ExtendedBatch:
        """Each fragment with its final observation appended: one pass gives all values."""
        fragments = self["fragments"]
        starts, stops = fragments.unbind(1)
        order = torch.arange(len(fragments), device=fragments.device)
        rows = torch.arange(self.rows, device=fragments.device)
        places = rows + order.repeat_interleave(stops - starts)
        ends = stops + order

        def join(column: Tensor, final: Tensor) -> Tensor:
            whole = column.new_empty((len(places) + len(ends), *column.shape[1:]))
            whole[places] = column
            whole[ends] = final.to(column.dtype)
            return whole

        columns = {
            "observations": tree_map(join, self["observations"], self["final_observations"]),
            "fragments": torch.stack((starts + order, ends + 1), dim=1),
        }
        if "state" in self:
            columns["state"] = self["state"]
        extended = ExtendedBatch(columns)
        extended._places = places
        return extended


class ExtendedBatch(Batch):
    """Observations only, with one more row per fragment; `split` leads back to the batch's rows.

    It keeps `fragments` and `state` for recurrent modules.
    """

    __slots__ = ("_places",)

    _places: Tensor

    def split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Of one value per extended row: those of each row, and those of each next row."""
        return values.index_select(0, self._places), values.index_select(0, self._places + 1)


_CPU = torch.device("cpu")
_ENDS = frozenset(("terminated", "truncated"))
_BOOLEANS = (torch.bool, numpy.dtype(bool))
_WHOLE_NUMBERS = "?bBhHiIlLqQ"
_ARRAY_FORMATS = {
    None: _WHOLE_NUMBERS + "efd",
    torch.float32: _WHOLE_NUMBERS + "f",
    torch.float64: _WHOLE_NUMBERS + "d",
}
"""Letters of the NumPy dtypes that can be read as they are, by the floating-point dtype wanted."""
_WORTH_PINNING = 4096
"""Elements of a column below which pinning costs more than it saves."""


def _is_plain(name: str, column: Any, rows: int) -> bool:
    """Whether this is a tensor or array with so many rows, as nearly every column is."""
    return (
        type(column) in (numpy.ndarray, Tensor)
        and name not in SIDE_TABLES
        and column.ndim > 0
        and len(column) == rows
    )


def _covers(spans: Tensor, rows: int) -> bool:
    """Whether fragments follow one another from the first row to the last."""
    start = 0
    if spans.shape[1:] != (2,):
        return False
    for first, stop in spans.tolist():
        if first != start or stop <= first:
            return False
        start = stop
    return start == rows


def _fits(column: Any, device: torch.device, dtype: torch.dtype | None, formats: str) -> bool:
    """Whether a column can be read as it is; arrays can if they have one of the formats."""
    if type(column) is numpy.ndarray:
        # Comparing letters is several times as fast as comparing dtypes.
        return column.dtype.char in formats
    if isinstance(column, Tensor):
        same = dtype is None or column.dtype is dtype or not column.is_floating_point()
        return same and column.device == device and not column.requires_grad
    return all(_fits(leaf, device, dtype, formats) for leaf in leaves(column))


def _moved(leaf: Any, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    # Gradients end here: a second backward pass through a graph of the caller's would fail.
    tensor: Tensor = to_tensors(leaf).detach()
    wanted = dtype if tensor.is_floating_point() else None
    if device.type == "cuda" and tensor.is_cpu:
        # Only copies from pinned memory are asynchronous.
        tensor = tensor.pin_memory() if tensor.numel() >= _WORTH_PINNING else tensor
        return tensor.to(device, wanted, non_blocking=True)
    return tensor.to(device, wanted)


def _selected(column: Any, rows: slice | Tensor) -> Any:
    """These rows of a column, nested like the column."""
    if isinstance(column, numpy.ndarray):
        return column[rows] if isinstance(rows, slice) else column.take(rows.numpy(), 0)
    if isinstance(column, Tensor):
        return column[rows] if isinstance(rows, slice) else column.index_select(0, rows)
    return tree_map(partial(_selected, rows=rows), column)
