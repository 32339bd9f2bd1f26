"""The result of a run, and how Ctrl-C and SIGTERM end one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs

if TYPE_CHECKING:
    from rlplug.plugin import Module
    from rlplug.tracking import Status

__all__ = ["Interrupts", "RunInterrupted", "RunResult", "Terminated"]


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
    best: tuple[int, float] | None = None
    """Step and mean return of the best evaluation, whose checkpoint `load` loads."""
    nonfinite_step: int | None = None
    """The first step at which weights were found not to be finite; None if they always were."""
    engine: str = ""
    """What computed gradients (`arrays`, `torch`, `compiled`), and why; empty without gradients."""
    where: tuple[str, ...] = ()
    """Where to look at the run, line by line."""

    def as_json(self) -> dict[str, Any]:
        """Everything except the module, as JSON values."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "step": self.step,
            "stopped": self.stopped,
            "best": self.best and {"step": self.best[0], "return_mean": self.best[1]},
            "nonfinite_step": self.nonfinite_step,
            "metrics": dict(self.metrics),
            "folder": str(self.folder),
        }


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


class RunInterrupted(KeyboardInterrupt):
    """A run was interrupted by Ctrl-C or SIGTERM; what it had is saved, and in `result`."""

    def __init__(self, result: RunResult, *, by_signal: bool) -> None:
        super().__init__(f"interrupted at step {result.step:,}")
        self.result = result
        self.by_signal = by_signal
        """True for SIGTERM, False for Ctrl-C."""


class Interrupts:
    """Defers Ctrl-C and SIGTERM until `check` is called; a second signal raises at once."""

    def __init__(self) -> None:
        self.at_once = False
        """Whether a second signal came: then an update may have been left half done."""
        self._deferred: type[KeyboardInterrupt] | None = None
        self._previous: dict[int, Any] = {}

    def check(self) -> None:
        """Raise the deferred exception, if there is one."""
        if self._deferred is not None:
            raise self._deferred

    def __enter__(self) -> Self:
        # Signal handlers can only be set in the main thread.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._defer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _defer(self, number: int, frame: FrameType | None) -> None:
        kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self._deferred is not None:
            self.at_once = True
            raise kind
        self._deferred = kind
