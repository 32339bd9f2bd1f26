"""What a run leaves in the hands of who started it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

if TYPE_CHECKING:
    from rlplug.plugin import Module

__all__ = ["RunResult", "Status"]

Status = Literal["FINISHED", "FAILED", "KILLED"]


@attrs.frozen(kw_only=True)
class RunResult:
    """One run that has ended."""

    run_id: str
    status: Status
    step: int
    """Environment steps taken."""
    metrics: Mapping[str, float]
    """The last value of each metric."""
    module: Module
    """The module as it was at the end: it acts."""
    folder: Path
    """Where the run keeps its files."""
    stopped: str = ""
    """Why it ended before its last step without having failed; empty if it did not."""
    best: tuple[int, float] | None = None
    """Step and mean return of the best evaluation, whose checkpoint `load` takes."""
    where: tuple[str, ...] = ()
    """How to look at it, line by line."""

    def as_json(self) -> dict[str, Any]:
        """Everything but the module."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "step": self.step,
            "stopped": self.stopped,
            "best": self.best and {"step": self.best[0], "return_mean": self.best[1]},
            "metrics": dict(self.metrics),
            "folder": str(self.folder),
        }
