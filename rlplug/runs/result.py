"""The result of a run, and the exception that brings it when a signal ended the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.runs.signals import Interrupted

if TYPE_CHECKING:
    from rlplug.plugin import Module
    from rlplug.tracking import Status

__all__ = ["RunInterrupted", "RunResult"]


@attrs.frozen(kw_only=True)
class RunResult:
    """The outcome of one run."""

    run_id: str
    status: Status
    step: int
    """Environment steps taken."""
    metrics: Mapping[str, float]
    """The last value of each metric."""
    module: Module
    """The module at the end of training."""
    folder: Path
    """The folder with the run's files."""
    stopped: str = ""
    """Why training was stopped early; empty if it was not."""
    checkpoints: tuple[int, ...] = ()
    """The steps of the checkpoints that are on disk."""
    best: tuple[int, float] | None = None
    """Step and mean return of the best evaluation. `load` loads its checkpoint, if it is there."""
    nonfinite_step: int | None = None
    """The first step at which weights were found not to be finite; None if they always were."""
    engine: str = ""
    """What computed gradients (`arrays`, `torch`, `compiled`), and why; empty without gradients."""
    where: tuple[str, ...] = ()
    """Where to look at the run, line by line."""

    @property
    def saved(self) -> str:
        """Which checkpoint is on disk, for messages."""
        if not self.checkpoints:
            return "there is no checkpoint"
        return f"checkpoint of step {self.checkpoints[-1]:,}"

    def as_json(self) -> dict[str, Any]:
        """Everything except the module, as JSON values."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "step": self.step,
            "checkpoint": self.checkpoints[-1] if self.checkpoints else None,
            "stopped": self.stopped,
            "best": self.best and {"step": self.best[0], "return_mean": self.best[1]},
            "nonfinite_step": self.nonfinite_step,
            "metrics": dict(self.metrics),
            "folder": str(self.folder),
        }


class RunInterrupted(KeyboardInterrupt):
    """A run was ended by a signal; how far it came, and what of it is on disk, is in `result`."""

    def __init__(self, result: RunResult, signal: Interrupted, *, at_once: bool = False) -> None:
        super().__init__(f"interrupted at step {result.step:,}")
        self.result = result
        self.number = signal.number
        """The first signal."""
        self.exit_code = signal.exit_code
        self.at_once = at_once
        """Whether the run was left as it stood, by a second signal or before its first update."""
