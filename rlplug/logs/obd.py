"""The Open Bandit Dataset (Saito et al. 2021): a folder `BEHAVIOR/CAMPAIGN` with `CAMPAIGN.csv`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.logs.files import ArrowFile, Block, Column, LogFile

__all__ = ["ObdFile", "find_obd"]

_SOURCES = {"action": "item_id", "reward": "click", "propensity": "propensity_score"}
_KINDS = {"propensity": "f"}
_USER = "user_feature_"
_AFFINITY = "user-item_affinity_"
_ITEMS = "item_context.csv"


def find_obd(names: tuple[str, ...]) -> list[Path]:
    """The tables in these folders, or these tables."""
    tables = []
    for name in names:
        path = absolute_path(name, "data.files:")
        table = path / f"{path.name}.csv" if path.is_dir() else path
        if not table.is_file():
            raise RequestError(
                f"data.files: {name!r} is no folder of the Open Bandit Dataset: it has no "
                f"{table.name}.",
                "try: the folder of a campaign, such as open_bandit_dataset/random/all",
            )
        tables.append(table)
    return tables


class ObdFile(LogFile):
    """A campaign's table, its user features as indicators, as Open Bandit Pipeline has them.

    Of each feature all values but the first, in order, have an indicator. Positions count from 0.
    Features per item are columns to be mapped by `data.arms`: `item_features` are its own,
    `affinities` the user's affinity to it, `items` both.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table = ArrowFile(path, "csv")
        names = list(self._table.columns)
        missing = [name for name in _SOURCES.values() if name not in names]
        if missing:
            raise RequestError(
                f"{path.name} is no table of the Open Bandit Dataset: it has no column "
                f"{missing[0]!r}.",
                "try: --set data.format=csv, and a mapping in [data]",
            )
        self._users = [name for name in names if name.startswith(_USER)]
        affinities = [name for name in names if name.startswith(_AFFINITY)]
        self._affinities = sorted(affinities, key=lambda name: int(name.removeprefix(_AFFINITY)))
        positions = ["position"] if "position" in names else []
        self._values = {name: self._distinct(name) for name in (*self._users, *positions)}
        self._items = _item_features(path.parent / _ITEMS)
        lists = ["context"] if self._users else []
        lists += [] if self._items is None else ["item_features"]
        lists += ["affinities"] if self._affinities else []
        lists += ["items"] if {"item_features", "affinities"} <= set(lists) else []
        self.columns = {
            **dict.fromkeys(["action", "reward", *positions], Column(kind="i", type="int64")),
            "propensity": Column(kind="f", type="double"),
            **dict.fromkeys(lists, Column(kind="f", type="list of double", is_list=True)),
        }

    def count(self) -> int:
        return self._table.count()

    def blocks(self, kinds: Mapping[str, str], first: int) -> Iterator[Block]:
        # Rows are counted by any column.
        reading = {"item_id": "i"}
        for name in kinds:
            if name in _SOURCES:
                reading[_SOURCES[name]] = _KINDS.get(name, "i")
            elif name == "context":
                reading |= dict.fromkeys(self._users, "")
            elif name == "position":
                reading[name] = ""
            elif name != "item_features":
                reading |= dict.fromkeys(self._affinities, "f")
        for row, batch in self._table.batches(reading, first):
            yield row, {name: self._column(name, batch, row) for name in kinds}

    def _column(self, name: str, rows: Any, row: int) -> NDArray[Any]:
        table = self._table
        if name in _SOURCES:
            return table.array(rows.column(_SOURCES[name]), _SOURCES[name], row)
        if name == "position":
            table.array(rows.column(name), name, row)
            return _places(rows.column(name), self._values[name])
        if name == "context":
            parts = [_indicators(rows.column(user), self._values[user]) for user in self._users]
            return numpy.concatenate(parts, axis=1)
        features = []
        if name != "affinities" and self._items is not None:
            features.append(numpy.broadcast_to(self._items, (len(rows), *self._items.shape)))
        if name != "item_features":
            columns = [table.array(rows.column(item), item, row) for item in self._affinities]
            features.append(numpy.stack(columns, axis=1)[:, :, None])
        if len({part.shape[1] for part in features}) > 1:
            raise RequestError(
                f"{self.path.name} has affinities to {features[1].shape[1]} items, {_ITEMS} has "
                f"{features[0].shape[1]}.",
                "try: --set data.arms=affinities",
            )
        return numpy.concatenate(features, axis=2)

    def _distinct(self, name: str) -> Any:
        """The values of a column in order."""
        values = set()
        for _, batch in self._table.batches({name: ""}, 0):
            values |= set(batch.column(name).unique().to_pylist())
        return self._table.arrow.array(sorted(values - {None}))


def _places(column: Any, values: Any) -> NDArray[Any]:
    """The place of each value among these, -1 where it is missing."""
    import pyarrow.compute

    places = pyarrow.compute.index_in(column, value_set=values)
    numbers: NDArray[Any] = places.fill_null(-1).to_numpy(zero_copy_only=False).astype(numpy.int64)
    return numbers


def _indicators(column: Any, values: Any) -> NDArray[Any]:
    """Indicators (n, values − 1) of all values but the first."""
    places = _places(column, values)
    indicators: NDArray[Any] = places[:, None] == numpy.arange(1, len(values))
    return indicators.astype(numpy.float64)


def _item_features(path: Path) -> NDArray[Any] | None:
    """Features (items, features) in the order of the items: numbers, and indicators of texts."""
    if not path.is_file():
        return None
    file = ArrowFile(path, "csv")
    ((_, table),) = file.batches(dict.fromkeys(file.columns, ""), 0)
    ids = file.array(table.column("item_id"), "item_id", 0)
    if sorted(ids) != list(range(len(ids))):
        raise RequestError(f"{path.name}: its item_id are not 0 to {len(ids) - 1}, each once.")
    parts = []
    for name, column in file.columns.items():
        if name.startswith("item_feature_"):
            values = table.column(name)
            if column.kind in ("f", "i"):
                parts.append(file.array(values, name, 0).astype(numpy.float64)[:, None])
            else:
                distinct = file.arrow.array(sorted(set(values.to_pylist())))
                parts.append(_indicators(values, distinct))
    return numpy.concatenate(parts, axis=1)[numpy.argsort(ids)]
