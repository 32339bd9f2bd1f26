"""The journal of a run: all metrics on disk, written before they are uploaded."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

JOURNAL = "metrics.jsonl"
ACKNOWLEDGED = "metrics.acked"
"""The file with the byte up to which the journal is in MLflow."""
ROWS_PER_REQUEST = 1000

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
    """`metrics.jsonl` of one run, open for writing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        # Unbuffered: what a failed write left in a buffer would be written twice.
        self._file = self.path.open("a+b", buffering=0)
        self._end = self._file.seek(0, os.SEEK_END)
        if self._end:
            self._file.seek(-1, os.SEEK_END)
            # A crash cut the last line off.
            if self._file.read(1) != b"\n":
                self._end += self._file.write(b"\n") or 0
        self.points = 0
        """Number of metric values that this process has written."""

    def append(self, reports: list[Report]) -> None:
        """Write all the reports or none."""
        content = b"".join(report.line() for report in reports)
        if not self.path.exists():
            # What is written would be lost.
            raise FileNotFoundError(errno.ENOENT, "it was deleted", str(self.path))
        try:
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += len(content)
        self.points += sum(len(report.metrics) for report in reports)

    def sync(self) -> None:
        """fsync the file: what MLflow is sent is in the journal first, also after a power cut."""
        with contextlib.suppress(OSError, ValueError):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """fsync and close the file."""
        self.sync()
        self._file.close()


def read_journal(path: Path, start: int = 0) -> Iterator[Report]:
    """The reports from byte `start` on; incomplete and damaged lines are passed over."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            report = Report.parse(line)
            if report is not None:
                yield report


def unsent(folder: Path, end: int) -> Iterator[tuple[list[Row], int]]:
    """The rows from byte `end` on, as many as fit into a request, with the byte where they end."""
    with contextlib.suppress(FileNotFoundError), (folder / JOURNAL).open("rb") as file:
        file.seek(end)
        rows: list[Row] = []
        for line in file:
            report = Report.parse(line)
            # One that is just being written has no end yet.
            if not line.endswith(b"\n"):
                break
            new = [] if report is None else report.rows()
            if rows and len(rows) + len(new) > ROWS_PER_REQUEST:
                yield rows, end
                rows = []
            rows += new
            end += len(line)
        if rows:
            yield rows, end


def acknowledge(folder: Path, offset: int) -> None:
    """Record that everything before this byte of the journal is in MLflow."""
    partial = folder / f"{ACKNOWLEDGED}.tmp"
    partial.write_text(str(offset))
    os.replace(partial, folder / ACKNOWLEDGED)


def acknowledged(folder: Path) -> int:
    """The byte up to which the journal is in MLflow."""
    try:
        offset = int((folder / ACKNOWLEDGED).read_text())
        # A longer journal was cut off: all of it is sent again, which has no effect.
        return offset if offset <= (folder / JOURNAL).stat().st_size else 0
    except (OSError, ValueError):
        return 0


@attrs.frozen(kw_only=True)
class Recorded:
    """What a journal holds when a run is continued."""

    marks: Mapping[str, int] = attrs.field(factory=dict)
    """Metric → highest step; what is reported again up to there is known already."""
    nonfinite: int = 0
    first_nonfinite_step: int | None = None

    @classmethod
    def read(cls, path: Path) -> Recorded:
        """Read a journal again."""
        marks: dict[str, int] = {}
        nonfinite, first = 0, None
        for report in read_journal(path):
            for name in report.metrics:
                marks[name] = max(report.step, marks.get(name, report.step))
            if NONFINITE in report.metrics:
                nonfinite = int(report.metrics[NONFINITE])
                first = report.step if first is None else first
        return cls(marks=marks, nonfinite=nonfinite, first_nonfinite_step=first)


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
