"""Names an environment whose step or reset takes too long."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

import attrs

from rlplug.envs.sync import SyncVector
from rlplug.sampling.checks import one_of
from rlplug.sampling.collector import Collector
from rlplug.sampling.tensors import TensorSource
from rlplug.sampling.vector import VectorSource

__all__ = ["Watchdog"]

_LOG = logging.getLogger("rlplug")

_LONGEST_PAUSE = 5.0
_SHORTEST_PAUSE = 0.05
"""Seconds between two looks."""


@attrs.frozen
class _Call:
    """One step or reset that is going on."""

    source: VectorSource | TensorSource = attrs.field(eq=id)
    timestep: int
    method: str
    index: int | None
    """Which environment, where they are stepped one after the other."""


class Watchdog:
    """Looks every few seconds at what a thread does, and warns once of an environment that hangs.

    It reads the thread's stack, so that sampling does nothing for it. An environment that holds
    the interpreter lock while it hangs (in C code) cannot be told of before it lets go.
    """

    def __init__(self, timeout: float, thread: int | None = None) -> None:
        self._timeout = timeout
        self._watched = threading.get_ident() if thread is None else thread
        self._pause = min(_LONGEST_PAUSE, max(timeout / 4, _SHORTEST_PAUSE))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rlplug-watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._timeout:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        if self._timeout:
            self._thread.join()

    def _watch(self) -> None:
        last: _Call | None = None
        seconds, looked = 0.0, time.monotonic()
        while not self._stopped.wait(self._pause):
            now = time.monotonic()
            call = _current_call(self._watched)
            if call is None or call != last:
                last, seconds = call, 0.0
            else:
                # A process that was suspended did not wait for its environment.
                seconds += min(now - looked, 2 * self._pause)
                if seconds >= self._timeout:
                    _warn(call, seconds)
                    return
            looked = now


def _current_call(thread: int) -> _Call | None:
    """The step or reset of environments that a thread is in."""
    method, index = "", None
    for frame in _frames(thread):
        values, name = frame.f_locals, frame.f_code.co_name
        owner, doing = values.get("self"), _DOING.get(name, "")
        if doing and isinstance(owner, SyncVector):
            # Before the first environment, the names are not bound yet.
            method, index = values.get("doing", doing), values.get("index", 0)
        elif doing and isinstance(owner, VectorSource | TensorSource):
            return _Call(owner, owner.timestep, method or doing, index)
        elif isinstance(owner, Collector):
            source = owner.source
            # Otherwise the policy acts, or the rollout is prepared.
            return _Call(source, source.timestep, method, index) if method else None
    return None


_DOING = {"step_into": "step", "recv": "step", "reset": "reset"}


def _frames(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)
    # The thread goes on meanwhile: beyond a frame that it has left, anything may be found.
    while isinstance(frame, FrameType):
        yield frame
        frame = frame.f_back


def _warn(call: _Call, seconds: float) -> None:
    source = call.source
    which = "" if call.index is None else one_of(call.index, source.own.num)
    _LOG.warning(
        "rlplug: environment %r%s has been in %s for %s s at step %s%s "
        "(sampling.step_timeout); the run waits for it.",
        source.checks.name,
        which,
        call.method,
        f"{seconds:,.4g}",
        f"{call.timestep:,}",
        source.checks.during,
    )
