"""Log: the logged rows of one or several files, checked, in batches of bounded size."""

from __future__ import annotations

import math
from collections import Counter
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
from rlplug.logs.encoding import Encoder, Feature, Unseen, fit_features, stacked
from rlplug.logs.files import LogFile, Texts, bad_row, find_files, open_file
from rlplug.logs.minari_file import MinariFile
from rlplug.logs.obd import ObdFile, find_obd, obd_section
from rlplug.logs.recording import spaces_from_metadata
from rlplug.logs.roles import PER_ARM, natural, same_roles
from rlplug.spaces import AnySpace

__all__ = ["Log", "LogRows"]

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

    def __init__(
        self,
        files: Sequence[LogFile],
        section: DataSection,
        name: str,
        encoder: Encoder | None = None,
    ) -> None:
        self.name = name
        # Of a CSV file that ends after its header, no types are known.
        self._files = [(file, count) for file in files if (count := file.count())]
        self.roles = same_roles(section, [file for file, _ in self._files])
        """Which columns are read, and as what."""
        self.rows = sum(count for _, count in self._files)
        """The number of rows of all files."""
        if not self.rows:
            raise RequestError(
                f"the log has no rows: {', '.join(file.path.name for file in files):.200}.",
                "try: a file with at least one row",
            )
        self._kinds = self.roles.kinds()
        self.unseen: Unseen = Counter()
        """How often the rows read so far hold levels that the encoder does not know."""
        self._counted = 0
        """The rows of which `unseen` tells."""
        features = self._features(section, encoder)
        self.encoder = Encoder(features=features, arms=() if encoder is None else encoder.arms)
        """How features and arms are read; empty where both are numbers in order."""
        self._kinds |= {one.name: "c" for one in features if one.is_category}
        if self.encoder.arms:
            self._kinds[self.roles.columns["action"][0]] = "c"
        declared = spaces_from_metadata(self._files[0][0].metadata)
        # Features of arms in one list are split among as many as are said.
        self.num_arms = section.num_arms if declared is None else 0
        """0: actions are not discrete."""
        self.first_action = 0
        """The number of the first arm."""
        first = next(self._blocks(0))[3]
        if declared is None:
            self.num_arms, arms = self._find_arms(section, first, may_name=encoder is None)
            self.encoder = attrs.evolve(self.encoder, arms=tuple(arms))
            if arms:
                self._kinds[self.roles.columns["action"][0]] = "c"
                self._refuse_other_arms()
            declared = self._spaces_of(first)
        self.observation_space, self.action_space = declared
        if isinstance(self.action_space, spaces.Discrete):
            self.num_arms = int(self.action_space.n)
            self.first_action = int(self.action_space.start)
        # The first rows are checked before anything else happens.
        next(self.read(0, 1))

    @classmethod
    def open(cls, section: DataSection, encoder: Encoder | None = None) -> Log:
        """The log of `[data]`; what is wrong with its files, columns or first rows is raised.

        `encoder` is that of a policy: features and arms are those that it knows.
        """
        name = Path(section.files[0]).stem.replace("*", "") or "log"
        if section.format == "obd":
            files = [ObdFile(path) for path in find_obd(section.files)]
            return cls(files, obd_section(section), name, encoder)
        if section.format == "minari":
            return cls([MinariFile(data_set) for data_set in section.files], section, name, encoder)
        paths = find_files(section.files, section.format)
        return cls([open_file(path, section.format) for path in paths], section, name, encoder)

    @property
    def is_bandit(self) -> bool:
        """Whether every row is an episode of its own."""
        return not {"episode", "terminated", "truncated", "next_context"} & set(self.roles.columns)

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
                    start, is_new = before + row, before + row >= self._counted
                    unseen = self.unseen if is_new else None
                    by_role = self._by_role(columns, file.path, row, unseen)
                    self._counted = max(self._counted, start + 1)
                    yield start, file.path, row, by_role
            before += count

    def _by_role(
        self, columns: Mapping[str, Any], path: Path, row: int, unseen: Unseen | None
    ) -> dict[str, NDArray[Any]]:
        values: dict[str, NDArray[Any]] = {}
        for role, names in self.roles.columns.items():
            single = columns[names[0]]
            if role == "context" and self.encoder.features:
                values[role] = self.encoder.matrix(columns, unseen)
            elif role == "action" and self.encoder.arms:
                values[role] = self._arm_indices(single, path, row)
            elif len(names) > 1:
                values[role] = stacked([columns[name] for name in names])
            else:
                values[role] = single[:, None] if self.roles.is_single(role) else single
        if "arms" in values and values["arms"].ndim == 2:
            values["arms"] = self._arms_of(values, path)
        return values

    def _arm_indices(self, texts: Texts, path: Path, first: int) -> NDArray[Any]:
        """The arms of these names; refused if one is not known."""
        indices = self.encoder.arm_indices(texts)
        if indices.min(initial=0) < 0:
            row = int(indices.argmin())
            value = [*texts.values, ""][texts.indices[row]]
            shown = ", ".join(map(str, self.encoder.arms))
            told = f"holds {value!r}, which is none of the arms {shown:.200}"
            name = self.roles.columns["action"][0]
            raise bad_row(path, first + row, name, told if value else "is missing")
        return indices

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
        if inner and not self.roles.is_list(role):
            # Columns of features are numbered through all arms.
            feature = int(numpy.ravel_multi_index(inner, columns[role].shape[1:]))
            name = self.encoder.column_of(feature) if role == "context" else names[feature]
        elif inner:
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

    def _features(self, section: DataSection, encoder: Encoder | None) -> tuple[Feature, ...]:
        """What the columns of the context become; none if it is one column of lists."""
        names, columns = self.roles.columns.get("context", ()), self.roles.of_file
        if not names or self.roles.is_list("context"):
            return ()
        if encoder is None:
            return fit_features(names, columns, section, self._read)
        if encoder.features and set(encoder.names) != set(names):
            raise RequestError(
                f"the policy learned from features {', '.join(encoder.names):.200}, log "
                f"{self.name!r} has {', '.join(names):.200}.",
                "try: --set data.context= with the same features",
            )
        numbers = {one.name for one in encoder.features if not one.is_category}
        for name in numbers or set(names) - set(encoder.categories):
            if columns[name].kind == "s":
                raise RequestError(
                    f"column {name!r} of log {self.name!r} holds {columns[name].type}, the policy "
                    "learned from numbers.",
                    "try: a log with the columns that it was trained on",
                )
        return encoder.features or tuple(Feature(name=name) for name in names)

    def _find_arms(
        self, section: DataSection, first: Mapping[str, Any], *, may_name: bool
    ) -> tuple[int, Sequence[str | int]]:
        """The number of arms, and their names where they are not 0, 1, 2, …"""
        if self.roles.is_list("action"):
            return 0, ()
        if self.encoder.arms:
            return len(self.encoder.arms), self.encoder.arms
        (column,) = self.roles.columns["action"]
        is_text, given = self._kinds[column] == "c", section.num_arms
        if is_text and not may_name:
            raise RequestError(
                f"column {column!r} of log {self.name!r} holds names, the policy numbers its arms.",
                "try: --set data.action=COLUMN with the numbers of the arms",
            )
        if given and not is_text:
            return given, ()
        known = [first[role].shape[1] for role in (*PER_ARM, "arms") if role in first]
        lowest, highest = (0, 0) if is_text else self._range(column)
        if known and not is_text:
            from_1 = lowest > 0 and highest == known[0] and may_name
            return int(known[0]), range(1, highest + 1) if from_1 else ()
        if not is_text and not (lowest > 0 and may_name):
            return self._checked_number(column, 1 + highest), ()
        values = {value for block in self._read({column: "c"}) for value in block[column].values}
        names = sorted(values - {""}, key=natural)
        if is_text and given not in (0, len(names)):
            raise RequestError(
                f"data.num_arms is {given}, column {column!r} names {len(names):,} arms.",
                "try: leave it out",
            )
        return self._checked_number(column, len(names)), names if is_text else list(map(int, names))

    def _checked_number(self, column: str, count: int) -> int:
        """The number of arms; refused where they are more than can be meant."""
        if count > max(self.rows, _MANY_ARMS):
            raise RequestError(
                f"column {column!r} says that there are {count:,} arms, the log has {self.rows:,} "
                "rows.",
                "try: a column that numbers the arms from 0, or --set data.num_arms=N",
            )
        return max(2, count)

    def _range(self, column: str) -> tuple[float, int]:
        """The lowest and the highest number of an arm; others are refused when rows are checked."""
        lowest, highest = math.inf, -1
        is_float = self.roles.of_file[column].kind == "f"
        for block in self._read({column: "f" if is_float else "i"}):
            values = block[column]
            values = values[numpy.isfinite(values)]
            if values.size:
                # Numbers with fractions count from 0.
                lowest = min(lowest, 0 if is_float else int(values.min()))
                highest = max(highest, int(values.max()))
        return lowest, highest

    def _refuse_other_arms(self) -> None:
        """Refuse columns of arms whose names do not end as those of the arms."""
        arms = [str(arm) for arm in self.encoder.arms]
        for role in PER_ARM:
            names = self.roles.columns.get(role, ())
            if len(names) == len(arms) > 1:
                for name, arm in zip(names, arms, strict=True):
                    if not name.endswith(arm):
                        raise RequestError(
                            f"data.{role}: column {name!r} is in the place of arm {arm!r}.",
                            f"try: a column for each of {', '.join(arms):.200}, named after it",
                        )

    def _read(self, kinds: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        """These columns of all files, in blocks."""
        for file, _ in self._files:
            for _, columns in file.blocks(kinds, 0):
                yield columns

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


def _as_in(space: AnySpace, column: NDArray[Any]) -> NDArray[Any]:
    """The values with the shape and the type of the space."""
    shape = space.shape or ()
    if column[0].size != int(numpy.prod(shape)):
        raise RequestError(f"the log has values of shape {column.shape[1:]}, others have {shape}.")
    return column.reshape(len(column), *shape).astype(space.dtype, copy=False)


def _joined(parts: Sequence[LogRows]) -> LogRows:
    first = parts[0]
    if len(parts) == 1:
        return first
    columns = {role: numpy.concatenate([part[role] for part in parts]) for role in first.columns}
    return attrs.evolve(first, columns=columns)
