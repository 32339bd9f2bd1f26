"""Progress in a terminal: one line that is drawn again and again, and fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TextIO

from rlplug.quantities import format_duration
from rlplug.tracking.activity import Activities
from rlplug.tracking.headline import headline, title

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from rlplug.hooks.events import RunInfo

__all__ = ["LiveConsole", "Part", "fitted"]

_BAR = 24
_SHORTEST_BAR = 6
_GAP = "  "
_PER_SECOND = 4


class Part(NamedTuple):
    """A part of the line."""

    text: str
    rank: int = 0
    """Where the line does not fit, parts of the highest rank are left out first; 0: never."""
    style: str = ""


class LiveConsole:
    """A progress bar with speed, time left and headline metrics."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None
        self._console: Console | None = None
        self._started = 0.0
        self._latest: dict[str, float] = {}
        self.activities = Activities(self._say_before_start)

    def say(self, line: str, style: str = "") -> None:
        """Print a line, above the bar if it is there."""
        try:
            if self._console is None:
                print(line, file=self._stream, flush=True)
            else:
                # Not wrapped: ids and paths stay whole where a person copies them.
                self._console.print(line, style=style, markup=False, soft_wrap=True)
        except OSError:
            # Nobody reads; the run continues.
            return

    def run_started(self, run: RunInfo) -> None:
        # Read when the line is drawn, so that the run need not report every step.
        self._begin(run.steps, run.progress, partial(self._parts_of_run, run))
        self.say(title(run), "bold")
        if run.feed:
            self.say(run.feed, "dim")

    def episodes_started(self, episodes: int, played: Callable[[], int]) -> None:
        """Show how many of so many episodes have been played."""
        self._begin(episodes, played, partial(self._parts_of_episodes, episodes))

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def evaluation_finished(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def close(self) -> None:
        """Take the bar away; it must not hide the cursor of a terminal for ever."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say_before_start(self, line: str) -> None:
        # From then on, the bar shows it.
        if self._console is None:
            self.say(line)

    def _begin(
        self, total: int, done: Callable[[], int], parts: Callable[[int], list[Part]]
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self.close()
        self._started = time.perf_counter()
        self._console = console = Console(file=self._stream, highlight=False)

        def draw() -> Text:
            there = min(done(), total)
            return _line(parts(there), there / max(total, 1), console.width)

        self._live = Live(
            get_renderable=draw, console=console, refresh_per_second=_PER_SECOND, transient=True
        )
        self._live.start()

    def _parts_of_run(self, run: RunInfo, step: int) -> list[Part]:
        numbers = [Part(text, style="cyan") for text in headline(self._latest)]
        parts = [
            Part(f"{100 * step // run.steps:>3}%"),
            Part(f"{step:,}/{run.steps:,} {run.unit}", 4),
        ]
        activity = self.activities.long
        if activity is not None:
            return [*parts, Part(str(activity)), *numbers]
        speed = self._speed(step - run.step)
        parts.append(Part(f"{speed:,.0f} {run.unit}/s", 3))
        return [*parts, *self._left(run.steps - step, speed), *numbers]

    def _parts_of_episodes(self, episodes: int, played: int) -> list[Part]:
        left = self._left(episodes - played, self._speed(played))
        return [Part("evaluating", 3), Part(f"{played:,}/{episodes:,} episodes"), *left]

    def _speed(self, done: int) -> float:
        seconds = time.perf_counter() - self._started
        return done / seconds if seconds else 0.0

    def _left(self, rest: int, speed: float) -> list[Part]:
        return [Part(f"{format_duration(rest / speed)} left", 2)] if speed else []


def fitted(parts: Sequence[Part], width: int) -> tuple[int, list[Part]]:
    """How long the bar is, and the parts that fit beside it."""
    kept = list(parts)
    while True:
        taken = sum(len(one.text) + len(_GAP) for one in kept)
        last = max(kept, key=lambda one: one.rank)
        if width - taken >= _SHORTEST_BAR:
            return min(width - taken, _BAR), kept
        if last.rank == 0:
            return 0, kept
        kept.remove(last)


def _line(parts: Sequence[Part], share: float, width: int) -> Text:
    from rich.text import Text

    # The last column stays empty: some terminals would begin a new line.
    bar, kept = fitted(parts, width - 1)
    full = round(share * bar)
    line = Text(no_wrap=True, overflow="ellipsis")
    if bar:
        line.append("━" * full, "green").append("─" * (bar - full), "dim").append(_GAP)
    for index, one in enumerate(kept):
        line.append(_GAP if index else "").append(one.text, one.style)
    return line
