"""Progress of a run: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO, TypeAlias

from rlplug.tracking.activity import Activities
from rlplug.tracking.headline import headline, title
from rlplug.tracking.live_console import LiveConsole

if TYPE_CHECKING:
    from rlplug.hooks.events import RunInfo

__all__ = ["Console", "NotebookConsole", "PlainConsole", "SilentConsole", "console_for"]

_PLAIN_LINES = 10
_NOTEBOOK_SECONDS = 0.2
"""The least time between two lines in a notebook."""


def console_for(stream: TextIO | None = None) -> LiveConsole | PlainConsole:
    """A live console for a terminal, a plain one elsewhere; by default on stderr."""
    stream = sys.stderr if stream is None else stream
    if type(stream).__module__.startswith("ipykernel"):
        return NotebookConsole(stream)
    return LiveConsole(stream) if stream.isatty() else PlainConsole(stream)


class SilentConsole:
    """Shows nothing."""

    def __init__(self) -> None:
        self.activities = Activities()

    def say(self, line: str) -> None:
        """Nothing is said."""

    def episodes_started(self, episodes: int, played: Callable[[], int]) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing stays open."""


class PlainConsole:
    """About ten lines per run, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._steps = 0
        self._unit = "steps"
        self._next = 0
        self._latest: dict[str, float] = {}
        self.activities = Activities(self.say)

    def say(self, line: str) -> None:
        """Print a line; also from other threads."""
        try:
            print(line, file=self._stream, flush=True)
        except (OSError, ValueError):
            # The reader is gone; the run continues.
            self.say = lambda line: None  # type: ignore[method-assign] # print no more

    def run_started(self, run: RunInfo) -> None:
        self._steps, self._unit = run.steps, run.unit
        self._next = 0
        self._latest = {}
        self.say(title(run))
        if run.feed:
            self.say(run.feed)

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)
        tenth = _PLAIN_LINES * step // self._steps
        if tenth < self._next:
            return
        self._next = tenth + 1
        self.say(self._line(step, metrics))

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        speed = metrics.get("time/steps_per_second", 0.0)
        width = len(f"{self._steps:,}")
        share = f"{min(100 * step // self._steps, 100):>3}%"
        numbers = "  ".join(headline(self._latest))
        return f"{share}  {step:>{width},} {self._unit}  {speed:>9,.0f} {self._unit}/s  {numbers}"

    def evaluation_finished(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def episodes_started(self, episodes: int, played: Callable[[], int]) -> None:
        """What is being done tells how many there are."""

    def close(self) -> None:
        """Nothing stays open."""


class NotebookConsole(PlainConsole):
    """One line that is written over: a notebook is no terminal, but knows carriage returns."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.activities = Activities(self._write_over)
        self._shown = ""
        self._next_time = 0.0

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)
        now = time.perf_counter()
        if now >= self._next_time or step >= self._steps:
            self._next_time = now + _NOTEBOOK_SECONDS
            self._write_over(self._line(step, metrics))

    def close(self) -> None:
        if self._shown:
            self._shown = ""
            self._write("\n")

    def _write_over(self, line: str) -> None:
        # A shorter line must cover the one before.
        self._write(f"\r{line:<{len(self._shown)}}")
        self._shown = line

    def _write(self, text: str) -> None:
        # The front end may be gone; the run continues.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


Console: TypeAlias = LiveConsole | PlainConsole | SilentConsole
