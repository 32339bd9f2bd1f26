"""A limit of time for checks: a plugin that hangs is interrupted, and the place is named."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["SECONDS", "TookTooLong", "time_limit"]

SECONDS = 120.0
"""CPU time of one check; a check that waits, and computes nothing, may take three times as long."""
_EVERY = 0.5


class TookTooLong(Exception):  # noqa: N818 # no error of the plugin's code, but of its speed
    """Raised in the thread of a check that took longer than its limit."""


@contextmanager
def time_limit(seconds: float) -> Iterator[list[traceback.StackSummary]]:
    """Raise `TookTooLong` in this thread after so many seconds; gives where it was then."""
    thread = threading.get_ident()
    ended = threading.Event()
    where: list[traceback.StackSummary] = []
    began, began_cpu = time.monotonic(), time.process_time()

    def watch() -> None:
        while not ended.wait(_EVERY):
            waited, computed = time.monotonic() - began, time.process_time() - began_cpu
            if computed < seconds and waited < 3 * seconds:
                continue
            frame = sys._current_frames().get(thread)
            if frame is not None and not ended.is_set():
                where.append(traceback.extract_stack(frame))
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(TookTooLong)
                )
            return

    watcher = threading.Thread(target=watch, daemon=True, name="rlplug-check-limit")
    watcher.start()
    try:
        yield where
    finally:
        ended.set()
        watcher.join()
