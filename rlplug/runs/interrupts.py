"""Ctrl-C and SIGTERM end a run after the update that is under way; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rlplug.runs.result import RunResult

__all__ = ["Interrupts", "RunInterrupted", "Terminated"]


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM."""


class RunInterrupted(KeyboardInterrupt):
    """A run was ended by a person or by the system; what it had is written and in `result`."""

    def __init__(self, result: RunResult, *, by_signal: bool) -> None:
        super().__init__(f"interrupted at step {result.step:,}")
        self.result = result
        self.by_signal = by_signal
        """True for SIGTERM, False for Ctrl-C."""


class Interrupts:
    """While it is entered, signals only leave a note, which `check` turns into an exception."""

    def __init__(self) -> None:
        self.at_once = False
        """Whether somebody asked twice: then an update may have been cut in two."""
        self._noted: type[KeyboardInterrupt] | None = None
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise what was noted, if anything was."""
        if self._noted is not None:
            raise self._noted

    def __enter__(self) -> Self:
        # Handlers can only be set in the main thread; elsewhere signals do what they always do.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self._noted is not None:
            self.at_once = True
            raise kind
        self._noted = kind
