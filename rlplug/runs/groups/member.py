"""A member of a group: one run, how far it is, and how it ended."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from rlplug.review.record import RunAbout, RunRecord, best_evaluation
from rlplug.tracking.location import RunFolder
from rlplug.tracking.reading import read_record
from rlplug.tracking.status import RUNNING

__all__ = ["ERROR", "REFUSED", "Member", "all_refused"]

MemberStatus: TypeAlias = Literal[
    "waiting", "running", "finished", "pruned", "failed", "interrupted"
]

REFUSED = 2
"""The exit code of a run that was wrong before anything was run."""

ERROR = "rlplug: error: "
"""How a process begins to say why it failed."""

_WITHOUT_RUN = {"failed": "FAILED", "interrupted": "KILLED", "waiting": "not started"}


@attrs.define(kw_only=True, eq=False)
class Member:
    """One run of a group: its order, and what is known of it."""

    seed: int
    trial: int = -1
    """The number of its trial in a study."""
    name: str = attrs.field(
        default=attrs.Factory(lambda self: f"seed {self.seed}", takes_self=True)
    )
    """For people, and unlike that of any other run beside it."""
    order: Mapping[str, Any] = attrs.field(factory=dict)
    """What its process is to do: see `rlplug.runs.groups.child`."""
    refusal: str = ""
    """Why it is not started; empty: it is."""
    folder: Path | None = None
    """The folder of its run; None until it has one."""
    status: MemberStatus = "waiting"
    has_begun: bool = False
    """Whether its process has a run, or goes on with one."""
    step: int = 0
    steps: int = 0
    """Total number of environment steps; 0: not known yet."""
    latest: dict[str, float] = attrs.field(factory=dict)
    """The last value of each metric."""
    error: list[str] = attrs.field(factory=list)
    """What it said of its failure, line by line."""
    code: int | None = None
    """The exit code of its process."""
    _since: float = attrs.field(init=False, default=0.0)
    _first: int = attrs.field(init=False, default=0)

    def found(self, run: RunFolder) -> None:
        """Take what is known of a run that began before."""
        self.folder, record = run.path, read_record(run)
        if record.status == "FINISHED":
            self.status, self.code = "finished", 0
            self.step, self.steps = record.step, run.about.steps
            self.latest.update(record.latest)

    def report(self, report: Mapping[str, Any]) -> None:
        """Take what its process reports."""
        if "folder" in report:
            self.folder, self.has_begun = Path(report["folder"]), True
            self.steps, self._first = report["steps"], report["step"]
            self._since = time.monotonic()
        self.step = max(self.step, report["step"])
        self.latest.update(report.get("metrics", {}))

    def line(self, line: str) -> bool:
        """Whether the line is part of its error, which is shown once it has ended."""
        if line.startswith(ERROR):
            self.error = [line.removeprefix(ERROR)]
        elif self.error:
            self.error.append(line)
        return bool(self.error)

    def end(self, code: int, *, ending: bool) -> None:
        """Its process has ended; `ending` if it was asked to."""
        self.code = code
        record = self.record()
        if code == 0:
            self.status = "finished"
        elif (code < 0 or code > 128) and (ending or record.status == "KILLED"):
            self.status = "interrupted"
        else:
            self.status = "failed"
            how = f"ended with exit code {code}"
            with contextlib.suppress(ValueError):
                how = f"was ended by {signal.Signals(-code if code < 0 else code - 128).name}"
            self.error = self.error or [f"its process {how}."]
        self.step = max(self.step, record.step)
        self.latest.update(record.latest)

    def record(self) -> RunRecord:
        """What the folder of its run says; without one, what is known here."""
        run = None if self.folder is None else RunFolder.read(self.folder)
        if run is not None:
            found = read_record(run)
            # One whose process was killed, or whose files are not complete.
            failed = self.status == "failed" and found.status in (RUNNING, "FINISHED")
            return attrs.evolve(found, status="FAILED") if failed else found
        status = _WITHOUT_RUN.get(self.status, RUNNING)
        return RunRecord(run_id="", name="", about=RunAbout(seed=self.seed), status=status)

    @property
    def has_checkpoint(self) -> bool:
        """Whether its run can go on from where it was."""
        return self.folder is not None and any(self.folder.glob("checkpoints/step-*/manifest.json"))

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and mean return of the best evaluation so far."""
        return best_evaluation(self.latest)

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None if that is not known."""
        seconds, steps = time.monotonic() - self._since, self.step - self._first
        if self.status != "running" or not self._since or steps <= 0:
            return None
        return seconds * max(self.steps - self.step, 0) / steps


def all_refused(members: Iterable[Member]) -> bool:
    """Whether a run was refused and none has begun: what was asked for is wrong."""
    started = list(members)
    refused = any(member.code == REFUSED for member in started)
    return refused and not any(member.has_begun for member in started)
