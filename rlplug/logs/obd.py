"""The Open Bandit Dataset (Saito et al. 2021): a folder `BEHAVIOR/CAMPAIGN` with `CAMPAIGN.csv`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.config.sections import DataSection
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.logs.encoding import Encoder, Feature
from rlplug.logs.files import ArrowFile, Block, Column

__all__ = ["ObdFile", "find_obd", "obd_section"]

_NAMES = {"action": "item_id", "reward": "click", "propensity": "propensity_score"}
_USERS = "user_feature_*"
_AFFINITY = "user-item_affinity_"
_ITEMS = "item_context.csv"


def obd_section(section: DataSection) -> DataSection:
    """Options with the columns of the data set, unless others were chosen."""
    columns: dict[str, Any] = {**_NAMES, "context": _USERS, "categories": _USERS}
    plain = DataSection()
    free = [name for name in columns if getattr(section, name) == getattr(plain, name)]
    return attrs.evolve(section, **{name: columns[name] for name in free})


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


class ObdFile(ArrowFile):
    """A campaign's table, with features per item as columns to be mapped by `data.arms`.

    `item_features` are those of the items, `affinities` the user's affinity to each, `items` both.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "csv")
        missing = [name for name in _NAMES.values() if name not in self.columns]
        if missing:
            raise RequestError(
                f"{path.name} is no table of the Open Bandit Dataset: it has no column "
                f"{missing[0]!r}.",
                "try: --set data.format=csv, and a mapping in [data]",
            )
        affinities = [name for name in self.columns if name.startswith(_AFFINITY)]
        self._affinities = sorted(affinities, key=lambda name: int(name.removeprefix(_AFFINITY)))
        self._items = _item_features(path.parent / _ITEMS)
        parts = {"item_features": self._items is not None, "affinities": bool(affinities)}
        self._lists = [
            name for name, is_there in {**parts, "items": all(parts.values())}.items() if is_there
        ]
        column = Column(kind="f", type="list of double", is_list=True)
        self.columns = {**self.columns, **dict.fromkeys(self._lists, column)}

    def blocks(self, kinds: Mapping[str, str], first: int) -> Iterator[Block]:
        reading = {name: kind for name, kind in kinds.items() if name not in self._lists}
        if {"affinities", "items"} & set(kinds):
            reading |= dict.fromkeys(self._affinities, "f")
        for row, block in super().blocks(reading, first):
            n = len(next(iter(block.values())))
            lists = [name for name in kinds if name in self._lists]
            yield row, {**block, **{name: self._features(name, block, n) for name in lists}}

    def _features(self, name: str, block: Mapping[str, Any], n: int) -> NDArray[Any]:
        """Features (n, items, features) of the items."""
        parts: list[NDArray[Any]] = []
        if name != "affinities" and self._items is not None:
            parts.append(numpy.broadcast_to(self._items, (n, *self._items.shape)))
        if name != "item_features":
            columns = [block[affinity] for affinity in self._affinities]
            parts.append(numpy.stack(columns, axis=1)[:, :, None])
        if len({part.shape[1] for part in parts}) > 1:
            raise RequestError(
                f"{self.path.name} has affinities to {parts[1].shape[1]} items, {_ITEMS} has "
                f"{parts[0].shape[1]}.",
                "try: --set data.arms=affinities",
            )
        return numpy.concatenate(parts, axis=2)


def _item_features(path: Path) -> NDArray[Any] | None:
    """Features (items, features) in the order of the items: numbers, and levels of texts."""
    if not path.is_file():
        return None
    file = ArrowFile(path, "csv")
    names = [name for name in file.columns if name.startswith("item_feature_")]
    kinds = {name: "c" if file.columns[name].kind == "s" else "f" for name in names}
    ((_, table),) = file.blocks({**kinds, "item_id": "i"}, 0)
    ids = table["item_id"]
    if sorted(ids) != list(range(len(ids))):
        raise RequestError(f"{path.name}: its item_id are not 0 to {len(ids) - 1}, each once.")
    features = [Feature(name=name) for name in names if kinds[name] == "f"]
    features += [
        Feature(name=name, is_category=True, levels=tuple(sorted(table[name].values)))
        for name in names
        if kinds[name] == "c"
    ]
    return Encoder(features=tuple(features)).matrix(table)[numpy.argsort(ids)]
