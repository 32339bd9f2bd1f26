"""The Open Bandit Dataset (Saito et al. 2021): a folder `BEHAVIOR/CAMPAIGN` with `CAMPAIGN.csv`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.logs.files import bad_row, pyarrow
from rlplug.logs.roles import Column

__all__ = ["ObdFile", "find_obd"]

_COLUMNS = {"action": "item_id", "reward": "click", "propensity": "propensity_score"}
_USER = "user_feature_"
_AFFINITY = "user-item_affinity_"
_ITEMS = "item_context.csv"
_ITEM_COLUMNS = ("item_features", "affinities", "items")
"""Columns of features per item: its own, the user's affinity to it, and both."""
_BLOCK = 32_768


def find_obd(names: tuple[str, ...]) -> list[Path]:
    """The tables in these folders, or these tables."""
    found = []
    for name in names:
        path = absolute_path(name, "data.files:")
        table = path / f"{path.name}.csv" if path.is_dir() else path
        if not table.is_file():
            raise RequestError(
                f"data.files: {name!r} is no folder of the Open Bandit Dataset: it has no "
                f"{table.name}.",
                "try: the folder of a campaign, such as open_bandit_dataset/random/all",
            )
        found.append(table)
    return found


class ObdFile:
    """A campaign's table, its user features as indicators, as Open Bandit Pipeline has them.

    Of each feature all values but the first, in order, have a column. Positions count from 0.
    Features of items and affinities are columns to be mapped: `data.arms` is `items`, or another
    one of `_ITEM_COLUMNS`.
    """

    metadata: Mapping[bytes, bytes] = {}

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrow = arrow = pyarrow(path.name)
        try:
            self._data = arrow.dataset.dataset(path, format="csv")
        except (arrow.ArrowInvalid, OSError) as error:
            raise self._unreadable(error) from error
        names = self._data.schema.names
        missing = [name for name in _COLUMNS.values() if name not in names]
        if missing:
            raise RequestError(
                f"{path.name} is no table of the Open Bandit Dataset: it has no column "
                f"{missing[0]!r}.",
                "try: --set data.format=csv, and a mapping in [data]",
            )
        self._users = [name for name in names if name.startswith(_USER)]
        self._has_position = "position" in names
        wanted = [*self._users, *(["position"] if self._has_position else [])]
        self._values = {name: self._distinct(name) for name in wanted}
        self._indicators = [
            (name, value) for name in self._users for value in self._values[name][1:]
        ]
        self._items = _item_features(path.parent / _ITEMS, arrow)
        self._affinities = sorted(
            (name for name in names if name.startswith(_AFFINITY)),
            key=lambda name: int(name.removeprefix(_AFFINITY)),
        )
        numbers = {
            "action": Column(kind="i", type="int64"),
            "reward": Column(kind="f", type="double"),
            "propensity": Column(kind="f", type="double"),
        }
        if self._has_position:
            numbers["position"] = Column(kind="i", type="int64")
        context = {
            f"context_{index}": Column(kind="f", type="indicator")
            for index in range(len(self._indicators))
        }
        there = {"item_features": self._items is not None, "affinities": bool(self._affinities)}
        there["items"] = all(there.values())
        for name in _ITEM_COLUMNS:
            if there[name]:
                numbers[name] = Column(kind="f", type="list of double", is_list=True)
        self.columns: Mapping[str, Column] = {**context, **numbers}

    def count(self) -> int:
        try:
            return int(self._data.count_rows())
        except (self._arrow.ArrowInvalid, OSError) as error:
            raise self._unreadable(error) from error

    def maximum(self, column: str) -> int:
        return max(
            (int(block[column].max()) for _, block in self.blocks({column: "i"}, 0)), default=-1
        )

    def blocks(
        self, kinds: Mapping[str, str], first: int
    ) -> Iterator[tuple[int, Mapping[str, NDArray[Any]]]]:
        wanted = [_COLUMNS[name] for name in kinds if name in _COLUMNS]
        wanted += self._users if any(name.startswith("context_") for name in kinds) else []
        wanted += ["position"] if "position" in kinds else []
        wanted += self._affinities if {"affinities", "items"} & set(kinds) else []
        # Rows are counted by any column.
        wanted = wanted or [_COLUMNS["action"]]
        row = 0
        for batch in self._batches(wanted):
            skipped = min(max(first - row, 0), len(batch))
            row += len(batch)
            if skipped < len(batch):
                rows = batch.slice(skipped)
                start = row - len(rows)
                yield start, self._read(rows, kinds, start)

    def _read(self, rows: Any, kinds: Mapping[str, str], start: int) -> dict[str, NDArray[Any]]:
        compute = self._arrow.compute
        found: dict[str, NDArray[Any]] = {}
        codes = {
            name: compute.index_in(rows.column(name), value_set=self._values[name]).to_numpy(
                zero_copy_only=False
            )
            for name in rows.schema.names
            if name in self._values
        }
        for name in kinds:
            source = "position" if name == "position" else _COLUMNS.get(name)
            if source is None:
                continue
            column = rows.column(source)
            if column.null_count:
                place = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
                raise bad_row(self.path, start + place, source, "is missing")
            if name == "position":
                found[name] = codes[name].astype(numpy.int64)
            else:
                found[name] = column.to_numpy(zero_copy_only=False)
        found |= self._of_items(rows, kinds)
        indicators: dict[str, Any] = {}
        index = 0
        for name in self._users if "context_0" in kinds else ():
            for value in range(1, len(self._values[name])):
                indicators[f"context_{index}"] = (codes[name] == value).astype(numpy.float64)
                index += 1
        return {**found, **{name: one for name, one in indicators.items() if name in kinds}}

    def _of_items(self, rows: Any, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
        """Features of all items in each row, (n, items, features)."""
        found: dict[str, NDArray[Any]] = {}
        if self._items is not None:
            found["item_features"] = numpy.broadcast_to(
                self._items, (len(rows), *self._items.shape)
            )
        if {"affinities", "items"} & set(kinds):
            columns = [
                rows.column(name).to_numpy(zero_copy_only=False) for name in self._affinities
            ]
            found["affinities"] = numpy.stack(columns, axis=1).astype(numpy.float64)[:, :, None]
        if "items" in kinds:
            if found["item_features"].shape[1] != len(self._affinities):
                raise RequestError(
                    f"{self.path.name} has affinities to {len(self._affinities)} items, {_ITEMS} "
                    f"has {found['item_features'].shape[1]}.",
                    "try: --set data.arms=affinities",
                )
            found["items"] = numpy.concatenate(
                [found["item_features"], found["affinities"]], axis=2
            )
        return {name: one for name, one in found.items() if name in kinds}

    def _distinct(self, name: str) -> Any:
        """The values of a column in order."""
        arrow, seen = self._arrow, set()
        for batch in self._batches([name]):
            seen |= set(batch.column(name).unique().to_pylist())
        seen.discard(None)
        return arrow.array(sorted(seen))

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        try:
            yield from self._data.scanner(
                columns=columns, batch_size=_BLOCK, batch_readahead=2, fragment_readahead=1
            ).to_batches()
        except (self._arrow.ArrowInvalid, OSError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> RequestError:
        return RequestError(f"{self.path.name} cannot be read as csv: {error}")


def _item_features(path: Path, arrow: Any) -> NDArray[Any] | None:
    """Features (items, features) in the order of the items: numbers, and indicators of texts."""
    if not path.is_file():
        return None
    table = arrow.csv.read_csv(path)
    ids = table.column("item_id").to_numpy()
    if sorted(ids) != list(range(len(ids))):
        raise RequestError(f"{path.name}: its item_id are not 0 to {len(ids) - 1}, each once.")
    columns = []
    for name in table.column_names:
        if name.startswith("item_feature_"):
            values = table.column(name).combine_chunks()
            if arrow.types.is_floating(values.type) or arrow.types.is_integer(values.type):
                columns.append(values.to_numpy(zero_copy_only=False).astype(numpy.float64))
                continue
            texts = numpy.array(values.to_pylist())
            columns += [(texts == one).astype(numpy.float64) for one in numpy.unique(texts)[1:]]
    return numpy.stack(columns, axis=1)[numpy.argsort(ids)]
