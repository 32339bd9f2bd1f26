"""Tables of features and class labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.bandits.problem import Floats
from rlplug.errors import RequestError

__all__ = ["PREPROCESSING", "Table"]

PREPROCESSING = ("unit", "standard", "none")
"""Ways to scale features, see `Table.preprocessed`."""


@attrs.frozen(kw_only=True, eq=False)
class Table:
    """Rows of features, each of one class; at least one row and two classes."""

    name: str
    features: Floats
    """(rows, columns)."""
    labels: NDArray[numpy.int64]
    """Index of each row's class in `classes`."""
    classes: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(
        cls, features: Any, labels: Any, *, name: str = "table", columns: Sequence[str] = ()
    ) -> Table:
        """Checks the arrays; `labels` are text or integers, one for each row of `features`."""
        rows = _numbers(name, features)
        names = tuple(columns) or tuple(f"x{index}" for index in range(rows.shape[1]))
        given = numpy.asarray(labels)
        if given.shape != rows.shape[:1]:
            raise RequestError(
                f"{name}: label must have shape {rows.shape[:1]}, one for each row of the "
                f"features, found {given.shape}."
            )
        if not rows.size:
            raise RequestError(
                f"{name}: the table is empty, its features have shape {rows.shape}.",
                "try: a table with at least one row and one column of numbers",
            )
        _refuse_not_finite(name, rows, names)
        classes, places = _classes(name, given)
        return cls(name=name, features=rows, labels=places, classes=classes, columns=names)

    def preprocessed(self, how: str) -> Table:
        """The table with scaled features.

        `standard`: every column with mean 0 and deviation 1. `unit`: also a column of ones, then
        every row scaled to norm 1. `none`: as they are.
        """
        if how == "none":
            return self
        spread = self.features.std(axis=0)
        spread[spread == 0.0] = 1.0
        scaled = (self.features - self.features.mean(axis=0)) / spread
        if how == "standard":
            return attrs.evolve(self, features=scaled)
        scaled = numpy.column_stack([scaled, numpy.ones(len(scaled))])
        scaled /= numpy.sqrt(numpy.einsum("ij,ij->i", scaled, scaled))[:, None]
        return attrs.evolve(self, features=scaled, columns=(*self.columns, "bias"))


def _numbers(name: str, features: Any) -> Floats:
    given = numpy.asarray(features)
    if given.ndim != 2:
        raise RequestError(
            f"{name}: features must have shape (rows, columns), found {given.shape}."
        )
    if given.dtype.kind not in "biuf":
        raise RequestError(f"{name}: features must be numbers, found {given.dtype}.")
    return numpy.ascontiguousarray(given, dtype=numpy.float64)


def _refuse_not_finite(name: str, features: Floats, columns: Sequence[str]) -> None:
    finite = numpy.isfinite(features)
    if not finite.all():
        row, column = (int(place) for place in numpy.argwhere(~finite)[0])
        raise RequestError(
            f"{name}: {features[row, column]} in column {columns[column]!r}, row {row} "
            "(counted from 0).",
            "try: leave such rows out, or fill them",
        )


def _classes(name: str, labels: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[numpy.int64]]:
    """The sorted classes, and the index of each row's class."""
    if labels.dtype.kind not in "biu":
        labels = _whole(name, labels)
    found, places = numpy.unique(labels, return_inverse=True)
    if len(found) < 2:
        raise RequestError(
            f"{name}: all rows are of one class, {str(found[0])!r}; a bandit needs at least two.",
        )
    return tuple(str(one) for one in found.tolist()), places.reshape(-1).astype(numpy.int64)


def _whole(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as integers if all are numbers; else as text."""
    missing = numpy.array([label is None or label == "" for label in labels.tolist()])
    if missing.any():
        raise RequestError(
            f"{name}: row {int(missing.argmax())} (counted from 0) has no label.",
            "try: leave such rows out",
        )
    try:
        numbers = labels.astype(numpy.float64)
    except ValueError:
        return labels.astype(numpy.str_)
    whole = numpy.isfinite(numbers) & (numbers == numpy.floor(numbers))
    if not whole.all():
        row = int(whole.argmin())
        raise RequestError(
            f"{name}: label {labels[row]} in row {row} (counted from 0) is no class: "
            "classes are text or whole numbers."
        )
    return numbers.astype(numpy.int64)
