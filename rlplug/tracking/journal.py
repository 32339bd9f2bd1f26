"""The journal of a run: all metrics on disk, written before they are uploaded."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import attrs

__all__ = [
    "FORBIDDEN",
    "NONFINITE",
    "Journal",
    "Recorded",
    "Report",
    "Row",
    "metric_name",
    "read_journal",
    "recorded_in",
]

NONFINITE = "train/nonfinite"
"""The metric that counts values that were not finite."""

Row = tuple[str, float, int, int]
"""Name, value, milliseconds since the epoch, environment step."""

FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""The characters that MLflow refuses in names of params and metrics."""
_LONGEST_NAME = 250


@attrs.frozen
class Report:
    """The metrics reported at one environment step."""

    step: int
    time: int
    """Milliseconds since the epoch, stored so that uploading a report twice has no effect."""
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, step: int, seconds: float, metrics: Mapping[str, Any]) -> Report:
        """A report with names valid in MLflow and plain numbers; infinities become NaN."""
        numbers = {metric_name(name): _number(value) for name, value in metrics.items()}
        return cls(int(step), int(seconds * 1000), numbers)

    @classmethod
    def parse(cls, line: bytes) -> Report | None:
        """The report that a line holds; None if it is incomplete or damaged."""
        try:
            row = json.loads(line)
            values = row["metrics"].items()
            metrics = {name: math.nan if x is None else float(x) for name, x in values}
            return cls(int(row["step"]), int(row["time"]), metrics)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    @property
    def nonfinite(self) -> int:
        """Number of non-finite values."""
        return sum(math.isnan(value) for value in self.metrics.values())

    def rows(self) -> list[Row]:
        """One row per metric."""
        return [(name, value, self.time, self.step) for name, value in self.metrics.items()]

    def line(self) -> bytes:
        """One line of JSON, with null for NaN."""
        values = {name: None if math.isnan(x) else x for name, x in self.metrics.items()}
        row = {"step": self.step, "time": self.time, "metrics": values}
        return json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class Journal:
    """`metrics.jsonl` of one run, and `metrics.acked`: the byte up to which it is in MLflow."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self._acknowledged = folder / "metrics.acked"
        _end_last_line(self.path)
        # Unbuffered: what a failed write left in a buffer would be written twice.
        self._file = self.path.open("ab", buffering=0)
        self._end = self._file.tell()
        self._points = _points_in(self.path)

    def append(self, reports: list[Report]) -> list[int]:
        """Write all the reports or none, and return the end offset of each."""
        lines = [report.line() for report in reports]
        content = b"".join(lines)
        self._check_in_place()
        try:
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        ends = [self._end + end for end in accumulate(len(line) for line in lines)]
        self._end = ends[-1] if ends else self._end
        self._points += sum(len(report.metrics) for report in reports)
        return ends

    def sync(self) -> None:
        """fsync the file: what MLflow is sent is in the journal first, also after a power cut."""
        os.fsync(self._file.fileno())

    @property
    def is_in_place(self) -> bool:
        """Whether the file was neither deleted nor moved."""
        try:
            self._check_in_place()
        except OSError:
            return False
        return True

    def _check_in_place(self) -> None:
        """Raise if the file was deleted or moved: what is written would be lost."""
        if not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
            raise OSError(errno.ENOENT, "another file is in its place", str(self.path))

    def acknowledge(self, offset: int) -> None:
        """Record that everything before this byte is in MLflow."""
        partial = self._acknowledged.with_suffix(".acked.new")
        partial.write_text(str(offset))
        os.replace(partial, self._acknowledged)

    @property
    def acknowledged(self) -> int:
        """The byte up to which the journal is in MLflow."""
        try:
            return int(self._acknowledged.read_text())
        except (OSError, ValueError):
            return 0

    def points_unsent(self) -> int:
        """Number of metric values that are not in MLflow, as far as is known."""
        return _points_in(self.path, self.acknowledged)

    def points_missing(self) -> int:
        """Number of metric values that were written and cannot be read again."""
        return max(self._points - _points_in(self.path), 0)

    def read_lines(self) -> set[bytes]:
        """The lines that are in the file; none if it is gone."""
        if not self.path.is_file():
            return set()
        try:
            return set(self.path.read_bytes().splitlines(keepends=True))
        except OSError:
            return set()

    def close(self) -> None:
        """fsync and close the file, if it is open."""
        if self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        finally:
            self._file.close()


def read_journal(path: Path, start: int = 0) -> Iterator[Report]:
    """The reports from byte `start` on; incomplete lines are skipped."""
    return (report for report, _ in read_with_ends(path, start))


def read_with_ends(path: Path, start: int = 0) -> Iterator[tuple[Report, int]]:
    """The reports from byte `start` on, each with its end offset."""
    with path.open("rb") as file:
        file.seek(start)
        end = start
        for line in file:
            end += len(line)
            report = Report.parse(line)
            if report is not None:
                yield report, end


@attrs.frozen(kw_only=True)
class Recorded:
    """What a journal holds when a run is continued."""

    marks: Mapping[str, int] = attrs.field(factory=dict)
    """Metric → highest step; what is reported again up to there is known already."""
    nonfinite: int = 0
    first_nonfinite_step: int | None = None
    unsent: Sequence[tuple[Report, int]] = ()
    """The reports that are not in MLflow, each with its end offset."""


def recorded_in(path: Path, acknowledged: int, marks: Mapping[str, int]) -> Recorded:
    """Read a journal again; `marks` are the highest steps known from elsewhere."""
    highest = dict(marks)
    nonfinite, first = 0, None
    unsent = []
    # A longer journal was cut off: all of it is sent again, which has no effect.
    start = acknowledged if acknowledged <= path.stat().st_size else 0
    for report, end in read_with_ends(path):
        for name in report.metrics:
            highest[name] = max(report.step, highest.get(name, report.step))
        if NONFINITE in report.metrics:
            nonfinite = int(report.metrics[NONFINITE])
            first = report.step if first is None else first
        if end > start:
            unsent.append((report, end))
    return Recorded(
        marks=highest, nonfinite=nonfinite, first_nonfinite_step=first, unsent=tuple(unsent)
    )


def _points_in(path: Path, start: int = 0) -> int:
    """Number of metric values that can be read from byte `start` on."""
    if not path.is_file():
        return 0
    try:
        return sum(len(report.metrics) for report in read_journal(path, start))
    except OSError:
        return 0


def metric_name(name: str) -> str:
    """The name with characters that are invalid in MLflow replaced."""
    parts = [part for part in FORBIDDEN.sub("_", str(name)).split("/") if part.strip(". ")]
    return "/".join(parts)[:_LONGEST_NAME] or "unnamed"


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    # MLflow would store infinity as the largest float, which spoils the plot.
    return number if math.isfinite(number) else math.nan


def _end_last_line(path: Path) -> None:
    """Complete a line that a crash cut off, so that the next one starts on a new line."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
