"""The process of a command: no search for garbage while it starts, and none while it ends.

Imports make a million objects, nearly all of which stay: looking through them costs a fifth of the
start, and a second at the end.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

__all__ = ["Start", "forget_garbage", "leave_at_once", "starting"]


class Start:
    """A listener of the run: its start ends that of the process."""

    def run_started(self) -> None:
        """Collect garbage from here on, but not among what was imported."""
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def starting() -> Iterator[Start]:
    """Collect no garbage until the run has started, or the block has ended.

    Until then, there is nothing to save for SIGUSR1, which must not end the process either.
    """
    gc.disable()
    try:
        with _ignoring("SIGUSR1"):
            yield Start()
    finally:
        gc.unfreeze()
        gc.enable()


@contextlib.contextmanager
def _ignoring(name: str) -> Iterator[None]:
    """Ignore a signal where nobody handles it yet."""
    number = getattr(signal, name, None)
    in_main = threading.current_thread() is threading.main_thread()
    if number is None or not in_main or signal.getsignal(number) != signal.SIG_DFL:
        yield
        return
    signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def forget_garbage() -> None:
    """Spare the end of the process the search for garbage.

    What it would have found is not finalized: files that a plugin left open are written here.
    """
    for one in gc.get_objects():
        if type(one) in (io.TextIOWrapper, io.BufferedWriter):
            with contextlib.suppress(OSError, ValueError):
                one.flush()
    gc.freeze()


def leave_at_once(code: int) -> NoReturn:
    """End the process: no thread is waited for, and no module taken down, which takes seconds."""
    for stream in (sys.stdout, sys.stderr):
        # sys.stdout is None if the shell closed it; after SIGHUP, nobody reads.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
