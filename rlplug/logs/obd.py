"""The Open Bandit Dataset (Saito et al. 2021): a folder `BEHAVIOR/CAMPAIGN` with `CAMPAIGN.csv`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from rlplug.errors import RequestError
from rlplug.logs.files import bad_row, pyarrow
from rlplug.logs.roles import Column

__all__ = ["ObdFile", "find_obd"]

_COLUMNS = {"action": "item_id", "reward": "click", "propensity": "propensity_score"}
_USER = "user_feature_"
_BLOCK = 32_768


def find_obd(names: tuple[str, ...]) -> list[Path]:
    """The tables in these folders, or these tables."""
    found = []
    for name in names:
        path = Path(name).expanduser().absolute()
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

    Of each user feature all values but the first, in order, have a column. Positions count from 0.
    """

    metadata: Mapping[bytes, bytes] = {}

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrow = arrow = pyarrow(path.name)
        try:
            self._data = arrow.dataset.dataset(path, format="csv")
        except (arrow.ArrowInvalid, OSError) as error:
            raise RequestError(f"{path.name} cannot be read as csv: {error}") from error
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
        self.columns: Mapping[str, Column] = {**context, **numbers}

    def count(self) -> int:
        return int(self._data.count_rows())

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
            if name in _COLUMNS:
                column = rows.column(_COLUMNS[name])
                if column.null_count:
                    place = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
                    raise bad_row(self.path, start + place, _COLUMNS[name], "is missing")
                found[name] = column.to_numpy(zero_copy_only=False)
            elif name == "position":
                found[name] = codes["position"].astype(numpy.int64)
        indicators: dict[str, Any] = {}
        index = 0
        for name in self._users if "context_0" in kinds else ():
            for value in range(1, len(self._values[name])):
                indicators[f"context_{index}"] = (codes[name] == value).astype(numpy.float64)
                index += 1
        return {**found, **{name: one for name, one in indicators.items() if name in kinds}}

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
            raise RequestError(f"{self.path.name} cannot be read as csv: {error}") from error
