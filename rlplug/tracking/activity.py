"""What a run does besides its steps, told to whoever waits: evaluating, saving, closing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from rlplug.quantities import format_duration

_PATIENCE = 1.0
"""Seconds that something may take without being told of."""
_AGAIN = 4.0
"""How many times longer it takes until it is told of again."""


def _nothing() -> str:
    return ""


@attrs.define(eq=False)
class Activity:
    """One thing that is being done."""

    what: str
    detail: Callable[[], str]
    """Returns how far it is: `3 of 10 episodes`; may be called from another thread."""
    started: float = attrs.field(factory=time.perf_counter)

    @property
    def takes_long(self) -> bool:
        """Whether it has taken over a second."""
        return time.perf_counter() - self.started > _PATIENCE

    def __str__(self) -> str:
        detail = self.detail()
        return f"{self.what}: {detail}" if detail else f"{self.what} …"


class Activities:
    """What is being done now, the innermost last.

    `say` is given a line where something takes over a second, and again where it takes much longer.
    """

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self._say = say
        self._now: list[Activity] = []
        self._told: set[str] = set()

    @property
    def long(self) -> Activity | None:
        """The outermost thing that has taken over a second."""
        return next((one for one in list(self._now) if one.takes_long), None)

    @contextmanager
    def doing(self, what: str, detail: Callable[[], str] = _nothing) -> Iterator[None]:
        """Tell of what is done in the block."""
        activity, ended = Activity(what, detail), threading.Event()
        self._now.append(activity)
        if self._say is not None:
            arguments = (activity, ended, self._say)
            threading.Thread(target=self._tell, args=arguments, daemon=True).start()
        try:
            yield
        finally:
            self._now.remove(activity)
            ended.set()

    def _tell(self, activity: Activity, ended: threading.Event, say: Callable[[str], None]) -> None:
        # What is done at intervals is told of at once only the first time.
        seconds = _PATIENCE * (_AGAIN if activity.what in self._told else 1)
        while not ended.wait(seconds):
            again = activity.what in self._told
            self._told.add(activity.what)
            # The same line again would look like a second start.
            so_far = f" for {format_duration(time.perf_counter() - activity.started)}"
            say(f"{activity}{so_far if again else ''}")
            seconds *= _AGAIN
