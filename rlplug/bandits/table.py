"""Tables of features and class labels: from files, from scikit-learn, or generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.bandits.environments import Floats
from rlplug.durable import absolute_path
from rlplug.errors import RequestError, did_you_mean
from rlplug.logs.files import FORMATS, open_file

__all__ = ["NAMES", "PREPROCESSING", "Table", "load_table", "rings_table"]

_SKLEARN_SETS = ("breast_cancer", "digits", "iris", "wine")

NAMES = (*_SKLEARN_SETS, "rings")
"""Tables that are known by name."""

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
        rows, given = numpy.asarray(features), numpy.asarray(labels)
        if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "biuf":
            raise RequestError(
                f"{name}: features must be numbers of shape (rows, columns), at least one of each, "
                f"found {rows.dtype} of shape {rows.shape}."
            )
        if given.shape != rows.shape[:1]:
            raise RequestError(
                f"{name}: label must have shape {rows.shape[:1]}, one for each row of the "
                f"features, found {given.shape}."
            )
        rows = numpy.ascontiguousarray(rows, dtype=numpy.float64)
        names = tuple(columns) or tuple(f"x{index}" for index in range(rows.shape[1]))
        bad = numpy.argwhere(~numpy.isfinite(rows))
        if len(bad):
            row, column = bad[0].tolist()
            raise RequestError(
                f"{name}: {rows[row, column]} in column {names[column]!r}, row {row} "
                "(counted from 0).",
                "try: leave such rows out, or fill them",
            )
        classes, places = numpy.unique(_classes(name, given), return_inverse=True)
        if len(classes) < 2:
            raise RequestError(
                f"{name}: all rows are of one class, {str(classes[0])!r}; a bandit needs at least "
                "two."
            )
        return cls(
            name=name,
            features=rows,
            labels=places.reshape(-1).astype(numpy.int64),
            classes=tuple(map(str, classes.tolist())),
            columns=names,
        )

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


def load_table(source: str, label: str = "label") -> Table:
    """Load a `.csv`, `.parquet` or `.npz` file, or a table known by name.

    `label` names the column of classes; an `.npz` file has arrays `x` and `y` instead.
    """
    if source == "rings":
        return rings_table()
    if source in NAMES:
        return _sklearn_table(source)
    # Shells do not expand the ~ in env.table=~/data.csv.
    path = absolute_path(source, "env.table")
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        guess = did_you_mean(source, NAMES)
        raise RequestError(
            f"table {source!r} is neither a file ({', '.join(FORMATS)}) nor one of "
            f"{', '.join(NAMES)}.",
            *([guess] if guess else []),
        )
    if not path.is_file():
        raise RequestError(f"table {source!r}: there is no such file.", f"looked at: {path}")
    file = open_file(path, "auto")
    names = {name.strip(): name for name in file.columns}
    columns = [name for name in names if name != label]
    if suffix == ".npz":
        label, columns = "y", ["x"]
    missing = [name for name in (label, *columns) if name not in names]
    if missing:
        guess = did_you_mean(missing[0], names)
        raise RequestError(
            f"{path.name}: there is no column {missing[0]!r}; there are: "
            f"{', '.join(names) or 'none'}.",
            *([guess] if guess else []),
            "try: --set env.label=COLUMN; an .npz file has arrays x (features) and y (labels)",
        )
    if not columns or not file.count():
        raise RequestError(f"{path.name}: the table is empty: it has no features or no rows.")
    for name in columns:
        column = file.columns[names[name]]
        if column.kind not in ("f", "i", "b"):
            raise RequestError(
                f"{path.name}: column {name!r} holds {column.type}, a feature must be a number.",
                "try: leave the column out, or give each of its values a column of 0 and 1",
            )
    kinds = {**{names[name]: "f" for name in columns}, names[label]: "s"}
    blocks = [block for _, block in file.blocks(kinds, 0)]
    parts = [numpy.column_stack([block[names[name]] for name in columns]) for block in blocks]
    return Table.of(
        numpy.concatenate(parts),
        numpy.concatenate([block[names[label]] for block in blocks]),
        name=path.name,
        columns=() if suffix == ".npz" else columns,
    )


def rings_table(
    rows: int = 2_000, rings: int = 6, classes: int = 3, noise: float = 0.15, *, seed: int = 0
) -> Table:
    """Points on concentric rings, ring i with a radius of about i + 1 and class i % classes.

    Neither a linear classifier nor a threshold on the radius separates the classes.
    """
    random = numpy.random.default_rng(seed)
    ring = numpy.arange(rows) % rings
    angles = random.uniform(0.0, 2.0 * numpy.pi, rows)
    distances = 1.0 + ring + noise * random.standard_normal(rows)
    points = distances[:, None] * numpy.stack([numpy.cos(angles), numpy.sin(angles)], axis=1)
    return Table.of(points, ring % classes, name="rings", columns=("x", "y"))


def _sklearn_table(name: str) -> Table:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise RequestError(
            f"the table {name!r} needs scikit-learn, which is not installed.",
            'try: pip install "rlplug[sklearn]"',
        ) from error
    loaded = getattr(datasets, f"load_{name}")()
    return Table.of(loaded.data, loaded.target, name=name, columns=list(loaded.feature_names))


def _classes(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as integers if all are whole numbers, as text if any is no number."""
    if labels.dtype.kind in "biu":
        return labels
    texts = numpy.array(["" if label is None else str(label).strip() for label in labels.tolist()])
    if (texts == "").any():
        raise RequestError(
            f"{name}: row {int((texts == '').argmax())} (counted from 0) has no label.",
            "try: leave such rows out",
        )
    try:
        numbers = texts.astype(numpy.float64)
    except ValueError:
        return texts
    whole = numpy.isfinite(numbers) & (numbers == numpy.floor(numbers))
    if not whole.all():
        row = int(whole.argmin())
        raise RequestError(
            f"{name}: label {labels[row]} in row {row} (counted from 0) is no class: "
            "classes are text or whole numbers."
        )
    return numbers.astype(numpy.int64)
