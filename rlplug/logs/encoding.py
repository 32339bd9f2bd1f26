"""Encoders: how columns of a table become features, and names become arms."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.config.sections import DataSection
from rlplug.errors import ConfigError, Problem, RequestError
from rlplug.logs.files import Column, Texts, as_text
from rlplug.logs.roles import matching

__all__ = ["Encoder", "Feature", "Unseen", "fit_features", "said_of", "stacked"]

_MANY_LEVELS = 1000
_SHOWN = 3

_TRANSPOSED = 2048
"""Rows of a table that are copied into rows of a matrix at a time: they fit into the cache."""

Unseen = Counter[tuple[str, str]]
"""How often a column held a level that training did not have."""


@attrs.frozen(kw_only=True)
class Feature:
    """A column of the context, and what it becomes."""

    name: str
    is_category: bool = False
    """Whether it becomes a feature of 0 and 1 for each level, or for each bucket."""
    levels: tuple[str, ...] = ()
    """Those of training; a category that is hashed into buckets has none."""
    buckets: int = 0
    fill: float | None = None
    """In place of a missing number; a missing category has no level. None: it is refused."""
    _places: dict[str, int] = attrs.field(init=False, eq=False, repr=False)

    @_places.default
    def _by_level(self) -> dict[str, int]:
        return {level: place for place, level in enumerate(self.levels)}

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return (self.buckets or len(self.levels)) if self.is_category else 1

    def place(self, value: str) -> int:
        """Which of its features is 1; -1: none is."""
        if self.buckets and value:
            return zlib.crc32(value.encode()) % self.buckets
        return self._places.get(value, -1)


@attrs.frozen(kw_only=True)
class Encoder:
    """The features and the arms that a policy knows, in order."""

    features: tuple[Feature, ...] = ()
    """None where the context is one column of lists."""
    arms: tuple[str | int, ...] = ()
    """Their names, where they are not 0, 1, 2, …"""

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Encoder:
        """The opposite of `plain`; of nothing, an empty one."""
        if not plain:
            return cls()
        features = tuple(
            Feature(**{**values, "levels": tuple(values["levels"])}) for values in plain["features"]
        )
        return cls(features=features, arms=tuple(plain["arms"]))

    def plain(self) -> dict[str, Any]:
        """All of it as plain values."""
        fields = ("name", "is_category", "levels", "buckets", "fill")
        features = [{field: getattr(one, field) for field in fields} for one in self.features]
        for values in features:
            values["levels"] = list(values["levels"])
        return {"features": features, "arms": list(self.arms)}

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it takes."""
        return tuple(feature.name for feature in self.features)

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The levels of the columns that are categories."""
        return {one.name: one.levels for one in self.features if one.is_category}

    def column_of(self, feature: int) -> str:
        """The column that a feature of the matrix is made of."""
        return [one.name for one in self.features for _ in range(one.width)][feature]

    def matrix(self, columns: Mapping[str, Any], unseen: Unseen | None = None) -> NDArray[Any]:
        """The features (n, features) of columns: numbers, and `Texts` for categories.

        Those of a missing value that is not filled are NaN. Levels that training did not have are
        counted in `unseen`.
        """
        numbers, places, start = [], [], 0
        for one in self.features:
            if not one.is_category:
                numbers.append(_filled(columns[one.name], one.fill))
                places.append(start)
            start += one.width
        if len(numbers) == len(self.features):
            return stacked(numbers)
        kind = numpy.result_type(*numbers) if numbers else numpy.float64
        dtype = numpy.float32 if kind == numpy.float32 else numpy.float64
        matrix = numpy.zeros((len(next(iter(columns.values()))), start), dtype)
        if numbers:
            is_block = places[-1] - places[0] == len(places) - 1
            _stack(numbers, matrix, slice(places[0], places[-1] + 1) if is_block else places)
        start = 0
        for one in self.features:
            if one.is_category:
                self._mark(matrix[:, start : start + one.width], one, columns[one.name], unseen)
            start += one.width
        return matrix

    def arm_indices(self, texts: Texts) -> NDArray[Any]:
        """The arms of these names, numbered from 0; -1 for others."""
        places = {as_text(arm): place for place, arm in enumerate(self.arms)}
        lookup = numpy.array([*(places.get(value, -1) for value in texts.values), -1])
        indices: NDArray[Any] = lookup[texts.indices]
        return indices

    def named(self, actions: Any) -> Any:
        """The names of arms that are numbered from 0; the numbers where they have none."""
        return numpy.array(self.arms)[actions] if self.arms else actions

    def _mark(
        self, matrix: NDArray[Any], feature: Feature, texts: Texts, unseen: Unseen | None
    ) -> None:
        """Set the features (n, levels) of one category, which are 0."""
        places = [feature.place(value) for value in texts.values]
        lookup = numpy.array([*places, -1])[texts.indices]
        known = numpy.flatnonzero(lookup >= 0)
        matrix[known, lookup[known]] = 1
        if len(known) == len(lookup):
            return
        missing = numpy.array([not value for value in texts.values] + [True])[texts.indices]
        if feature.fill is None:
            matrix[missing] = numpy.nan
        if unseen is not None:
            others = texts.indices[(lookup < 0) & ~missing]
            for index, count in enumerate(numpy.bincount(others, minlength=1).tolist()):
                if count:
                    unseen[feature.name, texts.values[index]] += count


def stacked(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns as the columns of a matrix (n, columns), row by row in memory."""
    if len(columns) == 1:
        return columns[0][:, None]
    matrix = numpy.empty((len(columns[0]), len(columns)), numpy.result_type(*columns))
    _stack(columns, matrix, slice(None))
    return matrix


def _stack(columns: Sequence[NDArray[Any]], matrix: NDArray[Any], places: Any) -> None:
    for start in range(0, len(matrix), _TRANSPOSED):
        part = slice(start, start + _TRANSPOSED)
        matrix[part, places] = numpy.stack([column[part] for column in columns]).T


def _filled(column: NDArray[Any], fill: float | None) -> NDArray[Any]:
    if fill is None or column.dtype.kind != "f":
        return column
    return numpy.where(numpy.isnan(column), column.dtype.type(fill), column)


def said_of(unseen: Unseen) -> str:
    """What to say of levels that training did not have; empty if there were none."""
    if not unseen:
        return ""
    shown = ", ".join(
        f"{value!r} in column {name!r} ({count:,})"
        for (name, value), count in unseen.most_common(_SHOWN)
    )
    more = f" and {len(unseen) - _SHOWN:,} more" if len(unseen) > _SHOWN else ""
    return f"levels that training did not have, whose features are all 0: {shown}{more}."


def fit_features(
    names: Sequence[str],
    columns: Mapping[str, Column],
    section: DataSection,
    read: Callable[[Mapping[str, str]], Iterator[Mapping[str, Any]]],
) -> tuple[Feature, ...]:
    """What columns become: text and chosen columns are categories, whose levels are read."""
    chosen, hashed = (_chosen(section, option, names) for option in ("categories", "hashed"))
    categories = {name for name in names if columns[name].kind == "s"} | chosen | hashed
    scanned = {name: "c" for name in names if name in categories - hashed}
    if section.missing == "mean":
        scanned |= {name: "f" for name in names if name not in categories}
    levels: dict[str, set[str]] = {name: set() for name in categories}
    sums = {name: numpy.zeros(2) for name in names}
    for block in read(scanned) if scanned else ():
        for name, column in block.items():
            if isinstance(column, Texts):
                levels[name] |= set(column.values) - {""}
                _refuse_many(name, levels[name])
            else:
                there = column[numpy.isfinite(column)]
                sums[name] += there.sum(), len(there)
    for name in categories - chosen - hashed:
        _refuse_numbers(name, levels[name], columns[name])
    fills: dict[str, float | None] = dict.fromkeys(
        names, None if section.missing == "refuse" else 0.0
    )
    if section.missing == "mean":
        fills = {name: float(total / max(count, 1)) for name, (total, count) in sums.items()}
    return tuple(
        Feature(
            name=name,
            is_category=name in categories,
            levels=tuple(sorted(levels.get(name, set()))),
            buckets=section.hash_size if name in hashed else 0,
            fill=fills[name],
        )
        for name in names
    )


def _chosen(section: DataSection, option: str, names: Sequence[str]) -> set[str]:
    """The columns of the context that an option names."""
    pattern = getattr(section, option)
    found = matching(pattern, names, "context", ()) if pattern else ()
    if pattern and not found:
        told = f"no column {pattern!r} among those of the context: {', '.join(names):.200}"
        raise ConfigError("the columns of [data]", [Problem(f"data.{option}", told)])
    return set(found)


def _refuse_many(name: str, levels: set[str]) -> None:
    if len(levels) > _MANY_LEVELS:
        raise RequestError(
            f"column {name!r} has more than {_MANY_LEVELS:,} levels: each would be a feature.",
            f"try: --set data.hashed={name}, or leave it out: --set 'data.context=*,!{name}'",
        )


def _refuse_numbers(name: str, levels: set[str], column: Column) -> None:
    """Refuse text in a few rows of a column of numbers."""
    texts = sorted(level for level in levels if not _is_number(level))
    if texts and len(texts) < len(levels) / 2:
        raise RequestError(
            f"column {name!r} holds {column.type}: {texts[0]!r} among numbers.",
            f"try: mend these rows, or --set data.categories={name} if they are names",
        )


def _is_number(text: str) -> bool:
    try:
        return bool(text) and math.isfinite(float(text))
    except ValueError:
        return False
