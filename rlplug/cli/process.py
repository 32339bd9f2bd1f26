"""The process of a command: no search for garbage while it starts, and none while it ends.

Imports make a million objects, nearly all of which stay: looking through them costs a fifth of the
start, and a second at the end.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from typing import NoReturn

__all__ = ["Start", "forget_garbage", "leave_at_once", "started"]


def started() -> None:
    """Collect garbage from here on, but not among what was imported."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


class Start:
    """A listener of a run, with which the start of the process ends."""

    def run_started(self) -> None:
        """The run has begun."""
        started()


def forget_garbage() -> None:
    """Spare the end of the process the search for garbage.

    Objects in it are not finalized: files that a plugin left open are flushed here.
    """
    for one in gc.get_objects():
        if type(one) in (io.TextIOWrapper, io.BufferedWriter):
            with contextlib.suppress(OSError, ValueError):
                one.flush()
    gc.freeze()


def leave_at_once(code: int) -> NoReturn:
    """End the process without waiting for threads or taking modules down, which takes seconds."""
    for stream in (sys.stdout, sys.stderr):
        # sys.stdout is None if the shell closed it; after SIGHUP, nobody reads.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
