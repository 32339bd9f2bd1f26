"""Log: the logged rows of one or several files, checked, in batches of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.config.data_section import DataSection
from rlplug.errors import RequestError
from rlplug.logs.checks import check_block
from rlplug.logs.files import LogFile, find_files, open_file
from rlplug.logs.minari_file import MinariFile
from rlplug.logs.obd import ObdFile, find_obd
from rlplug.logs.roles import Column, Roles, find_roles
from rlplug.logs.space_json import space_from_json

__all__ = ["SPACES_KEY", "Log", "LogRows"]

SPACES_KEY = b"rlplug"
"""Key of the metadata in which recordings keep their spaces."""

_TRANSPOSED = 2048
"""Rows of a table that are copied into rows of a matrix at a time: they fit into the cache."""

_MANY_ARMS = 10_000
"""Numbers of arms above this and the rows of the log are taken for identifiers."""

_PER_ARM = ("action_mask", "arm_ids", "propensities", "rewards")


@attrs.frozen(kw_only=True, eq=False)
class LogRows:
    """Consecutive rows of a log: checked columns by role."""

    first: int
    """Number of the first row."""
    columns: Mapping[str, NDArray[Any]]
    observation_space: spaces.Space[Any]
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
        columns = {role: column[start:stop] for role, column in self.columns.items()}
        return attrs.evolve(self, first=self.first + start, columns=columns)

    def take(self, places: NDArray[Any]) -> LogRows:
        """Rows at these places, in this order; they are not consecutive any more."""
        columns = {role: column[places] for role, column in self.columns.items()}
        return attrs.evolve(self, columns=columns)

    @property
    def action_index(self) -> NDArray[Any]:
        """The arms that were chosen, counted from 0."""
        actions = self.columns["action"]
        return actions - self.first_action if self.first_action else actions

    @property
    def propensity(self) -> NDArray[Any] | None:
        """Probability with which each row's arm was chosen; None if the log does not tell."""
        columns = self.columns
        if "propensity" in columns:
            return columns["propensity"]
        if "propensities" in columns:
            rows = numpy.arange(len(self))
            chosen: NDArray[Any] = columns["propensities"][rows, self.action_index]
            return chosen
        if "action_log_prob" in columns:
            logged: NDArray[Any] = numpy.exp(columns["action_log_prob"])
            return logged
        return None

    def propensity_or_uniform(self, num_arms: int) -> NDArray[Any]:
        """The propensities, or uniform ones among the arms that were present."""
        logged = self.propensity
        if logged is not None:
            return logged
        mask = self.get("action_mask")
        present = numpy.full(len(self), num_arms) if mask is None else (mask != 0).sum(1)
        uniform: NDArray[Any] = 1.0 / present
        return uniform

    @property
    def observations(self) -> Any:
        """What was chosen from, as the algorithm gets it from an environment."""
        if isinstance(self.observation_space, spaces.Dict):
            return {name: self.columns[name] for name in self.observation_space}
        if "context" not in self.columns:
            return numpy.empty((len(self), 0))
        return self.columns["context"]


class Log:
    """Logged rows of several files with the same columns, numbered across files."""

    def __init__(self, files: Sequence[LogFile], section: DataSection, name: str) -> None:
        self.name = name
        self._files = files
        self._roles = roles = self._same_roles(section)
        self._counts = [one.count() for one in files]
        self.rows = sum(self._counts)
        """The number of rows of all files."""
        if not self.rows:
            raise _without_rows(files)
        self._kinds = {
            name: _wanted(role, files[0].columns[name])
            for role, names in roles.columns.items()
            for name in names
        }
        declared = files[0].metadata.get(SPACES_KEY)
        # Features of arms in one list are split among as many as are said.
        self.num_arms = section.num_arms if declared is None else 0
        """0: actions are not discrete."""
        self.first_action = 0
        """The number of the first arm."""
        first = next(self._blocks(0))[2]
        if declared is not None:
            told = json.loads(declared)
            self.observation_space: spaces.Space[Any] = space_from_json(told["observation_space"])
            self.action_space: spaces.Space[Any] = space_from_json(told["action_space"])
            if isinstance(self.action_space, spaces.Discrete):
                self.num_arms = int(self.action_space.n)
                self.first_action = int(self.action_space.start)
        else:
            self.num_arms = self._find_num_arms(section, first)
            self.action_space = self._actions_of(first)
            self.observation_space = self._observations_of(first)
        # The first rows are checked before anything else happens.
        next(self.read(0, 1))

    @classmethod
    def open(cls, section: DataSection) -> Log:
        """The log of `[data]`; what is wrong with its files, columns or first rows is raised."""
        name = Path(section.files[0]).stem.replace("*", "") or "log"
        if section.format == "obd":
            return cls([ObdFile(path) for path in find_obd(section.files)], section, name)
        if section.format == "minari":
            return cls([MinariFile(one) for one in section.files], section, name)
        files = [
            open_file(path, section.format) for path in find_files(section.files, section.format)
        ]
        # Of a CSV file that ends after its header, no types are known.
        filled = [one for one in files if _has_types(one) or one.count()]
        if not filled:
            raise _without_rows(files)
        return cls(filled, section, name)

    @property
    def roles(self) -> Roles:
        """Which columns are read, and as what."""
        return self._roles

    @property
    def is_bandit(self) -> bool:
        """Whether every row is an episode of its own."""
        return not {"episode", "terminated", "truncated", "next_context"} & set(self._roles.columns)

    @property
    def has_propensities(self) -> bool:
        """Whether the log tells with which probability its actions were chosen."""
        return any(
            role in self._roles for role in ("propensity", "propensities", "action_log_prob")
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in order."""
        return tuple(str(one.path) for one in self._files)

    def fingerprint(self) -> list[list[Any]]:
        """Name, rows and bytes of each file: a resumed run must read the same."""
        return [
            [one.path.name, count, one.path.stat().st_size if one.path.is_file() else 0]
            for one, count in zip(self._files, self._counts, strict=True)
        ]

    def read(self, first: int, size: int) -> Iterator[LogRows]:
        """The rows from `first` on, `size` at a time; the last batch may be smaller."""
        pending: list[LogRows] = []
        there = 0
        arms = range(self.first_action, self.first_action + self.num_arms)
        for start, path, columns in self._blocks(first):
            check_block(columns, self._roles, arms, path[0], path[1])
            block = LogRows(
                first=start,
                columns=self._typed(columns),
                observation_space=self.observation_space,
                first_action=self.first_action,
            )
            begin = 0
            while there + len(block) - begin >= size:
                stop = begin + size - there
                pending.append(block.part(begin, stop))
                yield _joined(pending)
                pending, there, begin = [], 0, stop
            if begin < len(block):
                pending.append(block.part(begin, len(block)))
                there += len(block) - begin
        if pending:
            yield _joined(pending)

    def whole(self, limit: int = 0) -> LogRows:
        """All rows at once, or the first `limit`."""
        size = min(self.rows, limit) if limit else self.rows
        return next(self.read(0, size))

    def _blocks(
        self, first: int
    ) -> Iterator[tuple[int, tuple[Path, int], Mapping[str, NDArray[Any]]]]:
        """Blocks of columns by role: number of the first row, and its file and number there."""
        before = 0
        for file, count in zip(self._files, self._counts, strict=True):
            if before + count > first:
                for row, columns in file.blocks(self._kinds, max(first - before, 0)):
                    yield before + row, (file.path, row), self._by_role(columns, file.path)
            before += count

    def _by_role(self, columns: Mapping[str, NDArray[Any]], path: Path) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}
        for role, names in self._roles.columns.items():
            if len(names) > 1:
                found[role] = _matrix([columns[name] for name in names])
            elif role in self._roles.lists:
                found[role] = columns[names[0]]
            elif role in ("context", "next_context", "arms", *_PER_ARM):
                found[role] = columns[names[0]][:, None]
            else:
                found[role] = columns[names[0]]
        if "arms" in found and found["arms"].ndim == 2:
            found["arms"] = self._arms_of(found, path)
        return found

    def _arms_of(self, columns: Mapping[str, NDArray[Any]], path: Path) -> NDArray[Any]:
        """Features (n, arms, f) of (n, arms × f)."""
        flat = columns["arms"]
        count = next((columns[role].shape[1] for role in _PER_ARM if role in columns), 0)
        count = count or self.num_arms
        names = self._roles.columns["arms"]
        if not count and len(names) > 1:
            count = len({name.rsplit("_", 1)[0] for name in names})
        if not count or flat.shape[1] % count:
            raise RequestError(
                f"{path.name}: {flat.shape[1]} features of arms cannot be split among "
                f"{count or 'an unknown number of'} arms.",
                "try: --set data.num_arms=N, or columns named arms_ARM_FEATURE",
            )
        return flat.reshape(len(flat), count, -1)

    def _typed(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Columns with the types that a run has them in."""
        typed = dict(columns)
        for role, column in columns.items():
            if role in ("terminated", "truncated"):
                typed[role] = column.astype(bool, copy=False)
            elif role == "action_mask":
                typed[role] = column.astype(numpy.int8, copy=False)
            elif role in ("context", "next_context"):
                typed[role] = self._as_observation(column)
            elif role == "action":
                typed[role] = self._as_action(column)
            elif column.dtype.kind in "iub" and role not in ("arm_ids", "episode", "position"):
                typed[role] = column.astype(numpy.float64)
        return typed

    def _as_observation(self, column: NDArray[Any]) -> NDArray[Any]:
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            space = space["context"]
        shape = space.shape or ()
        if column.shape[1:] != shape:
            if column[0].size != int(numpy.prod(shape)):
                raise RequestError(
                    f"the log has observations of shape {column.shape[1:]}, others have {shape}."
                )
            column = column.reshape(len(column), *shape)
        return column.astype(space.dtype, copy=False)

    def _as_action(self, column: NDArray[Any]) -> NDArray[Any]:
        if self.num_arms:
            return column.astype(numpy.int64, copy=False)
        space = self.action_space
        return column.reshape(len(column), *(space.shape or ())).astype(space.dtype, copy=False)

    def _same_roles(self, section: DataSection) -> Roles:
        """The roles of the columns; refused if files differ in them."""
        first, *others = self._files
        roles = find_roles(section, first.columns, first.path.name)
        for other in others:
            for name in roles.names:
                there = other.columns.get(name)
                if there is None:
                    raise RequestError(
                        f"{other.path.name} has no column {name!r}, which {first.path.name} has.",
                        "try: files with the same columns, or a mapping in [data] to those that "
                        "all have",
                    )
                here = first.columns[name]
                if (there.kind, there.is_list) != (here.kind, here.is_list) and {
                    there.kind,
                    here.kind,
                } != {"f", "i"}:
                    raise RequestError(
                        f"column {name!r} holds {there.type} in {other.path.name}, {here.type} in "
                        f"{first.path.name}.",
                        "try: files with the same types of columns",
                    )
            more = find_roles(section, other.columns, other.path.name)
            if more.columns != roles.columns:
                role = next(
                    one for one in more.columns if more.columns[one] != roles.columns.get(one)
                )
                raise RequestError(
                    f"{other.path.name} has {len(more.columns[role])} columns for data.{role}, "
                    f"{first.path.name} has {len(roles.columns.get(role, ()))}.",
                    "try: files with the same columns",
                )
        return roles

    def _find_num_arms(self, section: DataSection, first: Mapping[str, NDArray[Any]]) -> int:
        if "action" in self._roles.lists:
            return 0
        if section.num_arms:
            return section.num_arms
        known = [first[role].shape[1] for role in (*_PER_ARM, "arms") if role in first]
        if known:
            return int(known[0])
        (column,) = self._roles.columns["action"]
        highest = max(one.maximum(column) for one in self._files)
        if highest >= max(self.rows, _MANY_ARMS):
            raise RequestError(
                f"column {column!r} holds {highest:,}, the log has {self.rows:,} rows: arms are "
                "numbered from 0.",
                "try: a column that numbers the arms, or --set data.num_arms=N",
            )
        return max(2, 1 + highest)

    def _actions_of(self, first: Mapping[str, NDArray[Any]]) -> spaces.Space[Any]:
        if self.num_arms:
            return spaces.Discrete(self.num_arms)
        shape = first["action"].shape[1:]
        return spaces.Box(-numpy.inf, numpy.inf, shape, numpy.float32)

    def _observations_of(self, first: Mapping[str, NDArray[Any]]) -> spaces.Space[Any]:
        parts: dict[str, spaces.Space[Any]] = {}
        for role in ("context", "arms"):
            if role in first:
                values = first[role]
                single = values.dtype == numpy.float32
                dtype = numpy.float32 if single else numpy.float64
                parts[role] = spaces.Box(-numpy.inf, numpy.inf, values.shape[1:], dtype)
        if "action_mask" in first:
            parts["action_mask"] = spaces.MultiBinary(first["action_mask"].shape[1])
        if "arm_ids" in first:
            shape = first["arm_ids"].shape[1:]
            parts["arm_ids"] = spaces.Box(0, 2**31 - 1, shape, numpy.int64)
        if set(parts) <= {"context"}:
            nothing = spaces.Box(-numpy.inf, numpy.inf, (0,), numpy.float64)
            return parts.get("context", nothing)
        return spaces.Dict(parts)


def _has_types(file: LogFile) -> bool:
    return any(column.type != "null" for column in file.columns.values())


def _without_rows(files: Sequence[LogFile]) -> RequestError:
    shown = f"{files[0].path.name} of data.files is"
    if len(files) > 1:
        shown = f"all {len(files)} files of data.files are"
    return RequestError(f"the log has no rows: {shown} empty.", "try: a file with at least one row")


def _wanted(role: str, column: Column) -> str:
    """The kind of number that a column is read as, where its file leaves that open."""
    if role in ("action", "arm_ids", "episode", "position", "action_mask"):
        return "f" if column.kind == "f" else "i"
    if role in ("terminated", "truncated"):
        return column.kind
    return "f"


def _matrix(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns as the columns of a matrix (n, columns), row by row in memory."""
    n, dtype = len(columns[0]), numpy.result_type(*columns)
    matrix = numpy.empty((n, len(columns)), dtype)
    for start in range(0, n, _TRANSPOSED):
        stop = start + _TRANSPOSED
        matrix[start:stop] = numpy.stack([one[start:stop] for one in columns]).T
    return matrix


def _joined(parts: Sequence[LogRows]) -> LogRows:
    if len(parts) == 1:
        return parts[0]
    columns = {
        role: numpy.concatenate([part.columns[role] for part in parts]) for role in parts[0].columns
    }
    return attrs.evolve(parts[0], columns=columns)
