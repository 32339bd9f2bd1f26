"""Names an environment whose step or reset takes too long."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

import attrs

from rlplug.envs.sync import SyncVector
from rlplug.sampling.policy_io import PolicyIO
from rlplug.sampling.vector import VectorSampler

__all__ = ["Watchdog"]

_LOG = logging.getLogger("rlplug")

_LONGEST_PAUSE = 5.0
_SHORTEST_PAUSE = 0.05
"""Seconds between two looks."""


@attrs.frozen(eq=False)
class _Call:
    """One step or reset that is going on."""

    frame: FrameType
    method: str
    number: int | None
    """Which environment, where they are stepped one after the other."""
    io: PolicyIO
    timestep: int

    def is_same(self, other: _Call | None) -> bool:
        """Whether both are one call, not two at the same place.

        While a frame is kept here, the frame of no other call is the same object.
        """
        return (
            other is not None
            and self.frame is other.frame
            and (self.method, self.number) == (other.method, other.number)
        )


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
            if call is None or not call.is_same(last):
                last, seconds = call, 0.0
            else:
                # A process that was suspended did not wait for its environment.
                seconds += min(now - looked, 2 * self._pause)
                if seconds >= self._timeout:
                    _warn(call, seconds)
                    return
            looked = now


def _current_call(thread: int) -> _Call | None:
    """The innermost step or reset of environments on the stack of a thread."""
    single: tuple[FrameType, str, int | None] | None = None
    for frame in _frames(thread):
        code, values = frame.f_code, frame.f_locals
        if code is _STEP_INTO or code is _RESET_ALL:
            # Before the first environment, the name is not bound yet.
            method = values.get("doing", "step") if code is _STEP_INTO else "reset"
            single = frame, method, values.get("index", 0)
        elif code is _FILL:
            # Otherwise the policy acts, or the rollout is prepared.
            return single and _Call(*single, values["io"], values["now"])
        elif code is _STEP or code is _RESET:
            here = single or (frame, "step" if code is _STEP else "reset", None)
            return _Call(*here, values["self"], values.get("timestep", 0))
    return None


def _frames(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)
    # The thread goes on meanwhile: beyond a frame that it has left, anything may be found.
    while isinstance(frame, FrameType):
        yield frame
        frame = frame.f_back


def _warn(call: _Call, seconds: float) -> None:
    number = "" if call.number is None else call.io.checks.which(call.number)
    _LOG.warning(
        "rlplug: environment %r%s has been in %s for %s s at step %s%s "
        "(sampling.step_timeout); the run waits for it.",
        call.io.checks.name,
        number,
        call.method,
        f"{seconds:,.4g}",
        f"{call.timestep:,}",
        call.io.checks.during,
    )


_STEP_INTO: Any = SyncVector.step_into.__code__
_RESET_ALL: Any = SyncVector.reset.__code__
_FILL: Any = VectorSampler._fill_zero_copy.__code__
_STEP: Any = PolicyIO.step.__code__
_RESET: Any = PolicyIO.reset.__code__
