"""Signals that end a run (Ctrl-C, SIGTERM, SIGHUP) or ask for a checkpoint (SIGUSR1)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from rlplug.scale.launcher import place_of_torchrun

__all__ = ["ANSWER_SECONDS", "Interrupted", "Interrupts"]

ANSWER_SECONDS = 2.0
"""How long MLflow may take to answer a run that ends at once; further signals wait for it."""

_NOTICE = b"\r\x1b[2Krlplug: the run is being ended; a second Ctrl-C ends it at once.\n"


class Interrupted(KeyboardInterrupt):
    """The process received a signal that ends the run."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number
        """What shells report of a process that this signal ended."""

    @classmethod
    def of(cls, error: KeyboardInterrupt) -> Interrupted:
        """The exception itself; one that other code raised counts as Ctrl-C."""
        return error if isinstance(error, cls) else cls()


class Interrupts:
    """Raises the first signal at the next `check`, and a second one at once.

    Until `check` is called for the first time, there is no work to protect: the first signal raises
    at once, too, unless it comes between `hold` and `release`.
    """

    def __init__(self, *, notice: bool = False) -> None:
        self.at_once = False
        """Whether a signal was raised at once: then an update may have been left half done."""
        self.checkpoint: Callable[[], None] = lambda: None
        """Called by `check` after SIGUSR1."""
        self._notice = notice
        # A terminal sends Ctrl-C to all processes, and torchrun sends it to its own once more.
        self._comes_twice = place_of_torchrun() is not None
        self._held = self._creating = self._wants_checkpoint = False
        self._number: int | None = None
        """The first signal."""
        self._since = 0.0
        """When the first signal came, or when one was last raised at once."""
        self._previous: dict[int, Any] = {}

    def hold(self) -> None:
        """Defer signals while the run is created in MLflow: it must not exist unknown to us."""
        self._held = self._creating = True

    def release(self) -> None:
        """Raise what was deferred since `hold`, and what comes from now on at once."""
        self._held = self._creating = False
        if self._number is not None:
            self._raise()

    def poll(self) -> tuple[int, bool]:
        """The signal that was deferred, or 0, and whether SIGUSR1 came, which is told once.

        From here on signals are deferred, as after `check`.
        """
        self._held = True
        wanted, self._wants_checkpoint = self._wants_checkpoint, False
        return self._number or 0, wanted

    @property
    def is_ending(self) -> bool:
        """Whether a signal that ends the run has come."""
        return self._number is not None

    def received(self) -> Interrupted:
        """The exception for the first signal."""
        return Interrupted(self._number or signal.SIGINT)

    def check(self) -> None:
        """Raise a deferred signal, or save a checkpoint if SIGUSR1 came."""
        self._held = True
        if self._number is not None:
            raise self.received()
        if self._wants_checkpoint:
            self._wants_checkpoint = False
            self.checkpoint()

    def __enter__(self) -> Self:
        # Signal handlers can only be set in the main thread.
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
                number = getattr(signal, name, None)
                if number is None:
                    continue
                before = signal.getsignal(number)
                # None: set by other code, which Python could not set again. `nohup` ignores SIGHUP.
                if before is not None and not (name == "SIGHUP" and before == signal.SIG_IGN):
                    handler = self._save if name == "SIGUSR1" else self._end
                    self._previous[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _end(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._number is None:
            self._number, self._since = number, now
            if self._held:
                # To a person; `print` may be what the signal interrupted.
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    if self._notice and sys.stderr.isatty():
                        os.write(sys.stderr.fileno(), _NOTICE)
                return
        elif (
            self._creating or self.at_once or self._comes_twice
        ) and now - self._since < ANSWER_SECONDS:
            return
        self._raise()

    def _save(self, number: int, frame: FrameType | None) -> None:
        self._wants_checkpoint = True

    def _raise(self) -> None:
        self.at_once, self._since = True, time.monotonic()
        raise self.received()
