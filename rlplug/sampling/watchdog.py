"""Names an environment whose step or reset takes too long."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import FrameType
from typing import Any, Self

from rlplug.envs.sync import SyncVector
from rlplug.sampling.checks import one_of
from rlplug.sampling.collector import Collector
from rlplug.sampling.source import Source

__all__ = ["Watchdog"]

_LOG = logging.getLogger("rlplug")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two looks."""


class Watchdog:
    """Looks every few seconds at what a thread does, and warns once of an environment that hangs.

    It reads the thread's stack, so that sampling does nothing for it. An environment that holds
    the interpreter lock while it hangs (in C code) cannot be told of before it lets go.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._watched = threading.get_ident()
        self._pause = min(_LONGEST_PAUSE, max(timeout / 4, _SHORTEST_PAUSE))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rlplug-watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._timeout:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._timeout:
            self._thread.join()

    def _watch(self) -> None:
        last: Any = None
        seconds, looked = 0.0, time.monotonic()
        while not self._stopped.wait(self._pause):
            now = time.monotonic()
            source, index = _where(self._watched)
            call = source and (source, source.doing, source.timestep, index)
            if not source or call != last:
                last, seconds = call, 0.0
            else:
                # A process that was suspended did not wait for its environment.
                seconds += min(now - looked, 2 * self._pause)
                if seconds >= self._timeout:
                    _warn(source, index, seconds)
                    return
            looked = now


def _where(thread: int) -> tuple[Source | None, tuple[int, str] | None]:
    """The source whose environments a thread is in; which one, and in what, if that is known."""
    frame, at = sys._current_frames().get(thread), None
    # The thread goes on meanwhile: beyond a frame that it has left, anything may be found.
    while isinstance(frame, FrameType):
        values = frame.f_locals
        owner = values.get("self")
        if isinstance(owner, SyncVector) and frame.f_code.co_name in ("step_into", "reset"):
            # Before the first environment, the names are not bound yet.
            at = values.get("index", 0), values.get("doing", "")
        elif isinstance(owner, Collector):
            source = owner.source
            return (source, at) if source.is_watched and source.doing else (None, None)
        frame = frame.f_back
    return None, None


def _warn(source: Source, at: tuple[int, str] | None, seconds: float) -> None:
    index, method = at or (None, "")
    _LOG.warning(
        "rlplug: environment %r%s has been in %s for %s s at step %s%s "
        "(sampling.step_timeout); the run waits for it.",
        source.checks.name,
        "" if index is None else one_of(index, source.own.num),
        method or source.doing,
        f"{seconds:,.4g}",
        f"{source.timestep:,}",
        source.checks.during,
    )
