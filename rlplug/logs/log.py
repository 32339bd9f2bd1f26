"""Log: the logged rows of one or several files, checked, in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.config.sections import DataSection
from rlplug.errors import RequestError
from rlplug.logs.checks import first_bad_value
from rlplug.logs.files import LogFile, bad_row, find_files, open_file
from rlplug.logs.minari_file import MinariFile
from rlplug.logs.obd import ObdFile, find_obd
from rlplug.logs.recording import spaces_from_metadata
from rlplug.logs.roles import PER_ARM, same_roles
from rlplug.spaces import AnySpace

__all__ = ["Log", "LogRows"]

_TRANSPOSED = 2048
"""Rows of a table that are copied into rows of a matrix at a time: they fit into the cache."""

_TYPES = {"terminated": bool, "truncated": bool, "action_mask": numpy.int8}

_MANY_ARMS = 10_000
"""Numbers of arms above this and the rows of the log are taken for identifiers."""


@attrs.frozen(kw_only=True, eq=False)
class LogRows:
    """Consecutive rows of a log: checked columns by role."""

    first: int
    """Number of the first row."""
    columns: Mapping[str, NDArray[Any]]
    observation_space: AnySpace
    first_action: int = 0
    """The number of the first arm: that of an environment may not be 0."""

    def __len__(self) -> int:
        return len(self.columns["reward"])

    def __getitem__(self, role: str) -> NDArray[Any]:
        return self.columns[role]

    def get(self, role: str) -> NDArray[Any] | None:
        """A column, or None."""
        return self.columns.get(role)

    def part(self, start: int, stop: int) -> LogRows:
        """Some of the rows."""
        return attrs.evolve(self.take(slice(start, stop)), first=self.first + start)

    def take(self, places: Any) -> LogRows:
        """Rows at these places, in this order; they are not consecutive any more."""
        columns = {role: column[places] for role, column in self.columns.items()}
        return attrs.evolve(self, columns=columns)

    @property
    def action_index(self) -> NDArray[Any]:
        """The arms that were chosen, counted from 0."""
        actions = self.columns["action"]
        return actions - self.first_action if self.first_action else actions

    def propensity_or_uniform(self, num_arms: int) -> NDArray[Any]:
        """The propensities of the chosen arms; if unknown, uniform ones among those present."""
        columns, found = self.columns, self.columns.get("propensity")
        if found is not None:
            return found
        if "propensities" in columns:
            found = columns["propensities"][numpy.arange(len(self)), self.action_index]
        elif "action_log_prob" in columns:
            found = numpy.exp(columns["action_log_prob"])
        elif "action_mask" in columns:
            found = 1.0 / (columns["action_mask"] != 0).sum(1)
        else:
            found = numpy.full(len(self), 1.0 / num_arms)
        return found

    @property
    def observations(self) -> Any:
        """What was chosen from, as the algorithm gets it from an environment."""
        if isinstance(self.observation_space, spaces.Dict):
            return {name: self.columns[name] for name in self.observation_space}
        context = self.columns.get("context")
        return numpy.empty((len(self), 0)) if context is None else context


class Log:
    """Logged rows of several files with the same columns, numbered across files."""

    def __init__(self, files: Sequence[LogFile], section: DataSection, name: str) -> None:
        self.name = name
        # Of a CSV file that ends after its header, no types are known.
        filled = [
            file for file in files if {column.type for column in file.columns.values()} - {"null"}
        ]
        self.roles = same_roles(section, filled)
        """Which columns are read, and as what."""
        self._files = [(file, file.count()) for file in filled]
        self.rows = sum(count for _, count in self._files)
        """The number of rows of all files."""
        if not self.rows:
            raise RequestError(
                f"the log has no rows: {', '.join(file.path.name for file in files):.200}.",
                "try: a file with at least one row",
            )
        self._kinds = self.roles.kinds()
        declared = spaces_from_metadata(filled[0].metadata)
        # Features of arms in one list are split among as many as are said.
        self.num_arms = section.num_arms if declared is None else 0
        """0: actions are not discrete."""
        self.first_action = 0
        """The number of the first arm."""
        first = next(self._blocks(0))[3]
        if declared is None:
            self.num_arms = self._find_num_arms(section, first)
            declared = self._spaces_of(first)
        self.observation_space, self.action_space = declared
        if isinstance(self.action_space, spaces.Discrete):
            self.num_arms = int(self.action_space.n)
            self.first_action = int(self.action_space.start)
        # The first rows are checked before anything else happens.
        next(self.read(0, 1))

    @classmethod
    def open(cls, section: DataSection) -> Log:
        """The log of `[data]`; what is wrong with its files, columns or first rows is raised."""
        name = Path(section.files[0]).stem.replace("*", "") or "log"
        if section.format == "obd":
            return cls([ObdFile(path) for path in find_obd(section.files)], section, name)
        if section.format == "minari":
            return cls([MinariFile(data_set) for data_set in section.files], section, name)
        paths = find_files(section.files, section.format)
        return cls([open_file(path, section.format) for path in paths], section, name)

    @property
    def is_bandit(self) -> bool:
        """Whether every row is an episode of its own."""
        return not {"episode", "terminated", "truncated", "next_context"} & set(self.roles.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features of the context; none of a column of lists."""
        names = self.roles.columns.get("context", ())
        return () if names and self.roles.is_list("context") else names

    @property
    def has_propensities(self) -> bool:
        """Whether the log tells with which probability its actions were chosen."""
        return bool({"propensity", "propensities", "action_log_prob"} & set(self.roles.columns))

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in order."""
        return tuple(str(file.path) for file, _ in self._files)

    def fingerprint(self) -> list[list[Any]]:
        """Name, rows and bytes of each file: a resumed run must read the same."""
        return [
            [file.path.name, count, file.path.stat().st_size if file.path.is_file() else 0]
            for file, count in self._files
        ]

    def read(self, first: int, size: int) -> Iterator[LogRows]:
        """The rows from `first` on, `size` at a time; the last batch may be smaller."""
        pending: list[LogRows] = []
        for start, path, row, columns in self._blocks(first):
            self._check(columns, path, row)
            block = LogRows(
                first=start,
                columns=self._typed(columns),
                observation_space=self.observation_space,
                first_action=self.first_action,
            )
            pending.append(block)
            count = sum(map(len, pending))
            if count >= size:
                rows = _joined(pending)
                for begin in range(0, count - size + 1, size):
                    yield rows.part(begin, begin + size)
                rest = count % size
                pending = [rows.part(count - rest, count)] if rest else []
        if pending:
            yield _joined(pending)

    def whole(self) -> LogRows:
        """All rows at once."""
        return next(self.read(0, self.rows))

    def _blocks(self, first: int) -> Iterator[tuple[int, Path, int, Mapping[str, NDArray[Any]]]]:
        """Blocks of columns by role: number of the first row, its file and its number there."""
        before = 0
        for file, count in self._files:
            if before + count > first:
                for row, columns in file.blocks(self._kinds, max(first - before, 0)):
                    yield before + row, file.path, row, self._by_role(columns, file.path)
            before += count

    def _by_role(self, columns: Mapping[str, NDArray[Any]], path: Path) -> dict[str, NDArray[Any]]:
        values: dict[str, NDArray[Any]] = {}
        for role, names in self.roles.columns.items():
            single = columns[names[0]]
            if len(names) > 1:
                values[role] = _matrix([columns[name] for name in names])
            else:
                values[role] = single[:, None] if self.roles.is_single(role) else single
        if "arms" in values and values["arms"].ndim == 2:
            values["arms"] = self._arms_of(values, path)
        return values

    def _arms_of(self, columns: Mapping[str, NDArray[Any]], path: Path) -> NDArray[Any]:
        """Features (n, arms, f) of (n, arms × f)."""
        flat, names = columns["arms"], self.roles.columns["arms"]
        count = next((columns[role].shape[1] for role in PER_ARM if role in columns), 0)
        count = count or self.num_arms
        if not count and len(names) > 1:
            count = len({name.rsplit("_", 1)[0] for name in names})
        if not count or flat.shape[1] % count:
            raise RequestError(
                f"{path.name}: {flat.shape[1]} features of arms cannot be split among "
                f"{count or 'an unknown number of'} arms.",
                "try: --set data.num_arms=N, or columns named arms_ARM_FEATURE",
            )
        return flat.reshape(len(flat), count, -1)

    def _check(self, columns: Mapping[str, NDArray[Any]], path: Path, first: int) -> None:
        """Refuse the first value that cannot be; `first` is the number of the first row."""
        for role in ("arms", *PER_ARM):
            if role in columns and columns[role].shape[1] != self.num_arms:
                names = self.roles.columns[role]
                shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
                raise RequestError(
                    f"{path.name}: {role} ({shown}) are of {columns[role].shape[1]} arms, there "
                    f"are {self.num_arms}.",
                    "try: one value per arm, or --set data.num_arms=N",
                )
        bad = first_bad_value(columns, range(self.first_action, self.first_action + self.num_arms))
        if bad is None:
            return
        role, (row, *inner), told = bad
        names = self.roles.columns[role]
        name = names[0]
        if inner and len(names) > 1:
            # Columns of features are numbered through all arms.
            name = names[int(numpy.ravel_multi_index(inner, columns[role].shape[1:]))]
        elif inner and self.roles.is_list(role):
            told = f"(value {', '.join(map(str, inner))}) {told}"
        raise bad_row(path, first + row, name, told)

    def _typed(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Columns with the types that a run has them in."""
        space, typed = self.observation_space, dict(columns)
        parts = space.spaces if isinstance(space, spaces.Dict) else {"context": space}
        for role, column in columns.items():
            if role in _TYPES:
                typed[role] = column.astype(_TYPES[role], copy=False)
            elif role in ("context", "next_context"):
                typed[role] = _as_in(parts["context"], column)
            elif role == "action" and not self.num_arms:
                typed[role] = _as_in(self.action_space, column)
            elif role == "action":
                typed[role] = column.astype(numpy.int64, copy=False)
            elif column.dtype.kind in "iub" and role not in ("episode", "position"):
                typed[role] = column.astype(numpy.float64)
        return typed

    def _find_num_arms(self, section: DataSection, first: Mapping[str, NDArray[Any]]) -> int:
        if self.roles.is_list("action"):
            return 0
        if section.num_arms:
            return section.num_arms
        known = [first[role].shape[1] for role in (*PER_ARM, "arms") if role in first]
        if known:
            return int(known[0])
        (column,) = self.roles.columns["action"]
        highest = max(_maximum(file, column) for file, _ in self._files)
        if highest >= max(self.rows, _MANY_ARMS):
            raise RequestError(
                f"column {column!r} holds {highest:,}, the log has {self.rows:,} rows: arms are "
                "numbered from 0.",
                "try: a column that numbers the arms, or --set data.num_arms=N",
            )
        return max(2, 1 + highest)

    def _spaces_of(self, first: Mapping[str, NDArray[Any]]) -> tuple[AnySpace, AnySpace]:
        """The spaces of observations and actions with these values."""
        parts: dict[str, AnySpace] = {}
        for role in ("context", "arms"):
            if role in first:
                values = first[role]
                dtype = numpy.float32 if values.dtype == numpy.float32 else numpy.float64
                parts[role] = spaces.Box(-numpy.inf, numpy.inf, values.shape[1:], dtype)
        if "action_mask" in first:
            parts["action_mask"] = spaces.MultiBinary(first["action_mask"].shape[1])
        actions: AnySpace = (
            spaces.Discrete(self.num_arms)
            if self.num_arms
            else spaces.Box(-numpy.inf, numpy.inf, first["action"].shape[1:], numpy.float32)
        )
        if set(parts) <= {"context"}:
            nothing = spaces.Box(-numpy.inf, numpy.inf, (0,), numpy.float64)
            return parts.get("context", nothing), actions
        return spaces.Dict(parts), actions


def _maximum(file: LogFile, column: str) -> int:
    """The largest finite value; -1 if there is none above it."""
    highest = -1
    for _, columns in file.blocks({column: "f" if file.columns[column].kind == "f" else "i"}, 0):
        values = columns[column]
        # Others are refused when rows are checked.
        values = values[numpy.isfinite(values)]
        highest = max(highest, int(values.max()) if values.size else -1)
    return highest


def _as_in(space: AnySpace, column: NDArray[Any]) -> NDArray[Any]:
    """The values with the shape and the type of the space."""
    shape = space.shape or ()
    if column[0].size != int(numpy.prod(shape)):
        raise RequestError(f"the log has values of shape {column.shape[1:]}, others have {shape}.")
    return column.reshape(len(column), *shape).astype(space.dtype, copy=False)


def _matrix(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns as the columns of a matrix (n, columns), row by row in memory."""
    matrix = numpy.empty((len(columns[0]), len(columns)), numpy.result_type(*columns))
    for start in range(0, len(matrix), _TRANSPOSED):
        part = slice(start, start + _TRANSPOSED)
        matrix[part] = numpy.stack([column[part] for column in columns]).T
    return matrix


def _joined(parts: Sequence[LogRows]) -> LogRows:
    first = parts[0]
    if len(parts) == 1:
        return first
    columns = {role: numpy.concatenate([part[role] for part in parts]) for role in first.columns}
    return attrs.evolve(first, columns=columns)
