"""Progress of a run: a line that is drawn over and over in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO, TypeAlias

from rlplug.quantities import format_duration, format_number
from rlplug.review.record import RETURN, REWARD
from rlplug.tracking.activity import Activities
from rlplug.tracking.summary import labeled

if TYPE_CHECKING:
    import rich.console
    from rich.live import Live
    from rich.text import Text

    from rlplug.hooks.events import RunInfo

_PLAIN_LINES = 10
_PER_SECOND = 4
_BAR, _SHORTEST_BAR = 24, 6
_GAP = "  "
_HEADLINES = {
    RETURN: "return",
    REWARD: "reward",
    "rollout/regret_mean": "regret",
    "data/reward_mean": "logged reward",
    "eval/return_mean": "eval",
}
"""Metric → label."""

Part: TypeAlias = tuple[int, str]
"""Rank and text: of a line that does not fit, the highest ranks are left out first; 0: never."""


def console_for(stream: TextIO | None = None) -> LiveConsole | PlainConsole:
    """A live console for a terminal, a plain one elsewhere; by default on stderr."""
    stream = sys.stderr if stream is None else stream
    return LiveConsole(stream) if stream.isatty() else PlainConsole(stream)


class SilentConsole:
    """Shows nothing."""

    def __init__(self) -> None:
        self.activities = Activities()
        self._latest: dict[str, float] = {}

    def say(self, line: str) -> None:
        """Print a line; also from other threads."""

    def episodes_started(self, episodes: int, played: Callable[[], int]) -> None:
        """Show how many of so many episodes have been played."""

    def evaluation_finished(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def close(self) -> None:
        """Leave nothing open."""

    def _numbers(self) -> list[str]:
        """`reward 0.91`, `regret 0.02`: the headline metrics."""
        values = labeled(self._latest, _HEADLINES)
        return [f"{word} {format_number(value)}" for word, value in values]


Console: TypeAlias = SilentConsole


class PlainConsole(SilentConsole):
    """About ten lines per run, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._next = 0
        self.activities = Activities(self.say)

    def say(self, line: str) -> None:
        _write(self._stream, f"{line}\n")

    def run_started(self, run: RunInfo) -> None:
        self._run, self._next, self._latest = run, 0, {}
        for line in _title(run):
            self.say(line)

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)
        tenth = _PLAIN_LINES * step // self._run.steps
        if tenth >= self._next:
            self._next = tenth + 1
            self.say(self._line(step))

    def _line(self, step: int) -> str:
        run, speed = self._run, self._latest.get("time/steps_per_second", 0.0)
        share = f"{min(100 * step // run.steps, 100):>3}%"
        far = f"{step:>{len(f'{run.steps:,}')},} {run.unit}"
        return _GAP.join([share, far, f"{speed:>9,.0f} {run.unit}/s", *self._numbers()])


class LiveConsole(SilentConsole):
    """A progress bar with speed, time left and headline metrics."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._live: Live | None = None
        self._console: rich.console.Console | None = None
        self._started = 0.0
        # From the start of the run on, the bar shows them.
        self.activities = Activities(lambda line: None if self._console else self.say(line))

    def say(self, line: str) -> None:
        if self._console is None:
            _write(self._stream, f"{line}\n")
            return
        with contextlib.suppress(OSError):
            # Not wrapped: ids and paths stay whole where a person copies them.
            self._console.print(line, markup=False, soft_wrap=True)

    def run_started(self, run: RunInfo) -> None:
        # Read when the line is drawn, so that the run need not report every step.
        self._begin(run.steps, run.progress, lambda step: self._of_run(run, step))
        for line in _title(run):
            self.say(line)

    def episodes_started(self, episodes: int, played: Callable[[], int]) -> None:
        def parts(there: int) -> list[Part]:
            far = (0, f"{there:,}/{episodes:,} episodes")
            return [(3, "evaluating"), far, *self._left(episodes - there, there)]

        self._begin(episodes, played, parts)

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def close(self) -> None:
        """Take the bar away; it must not hide the cursor of a terminal for ever."""
        if self._live is not None:
            self._live.stop()
            self._live = None

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
            return _bar_and(parts(there), there / max(total, 1), console.width)

        self._live = Live(
            get_renderable=draw, console=console, refresh_per_second=_PER_SECOND, transient=True
        )
        self._live.start()

    def _of_run(self, run: RunInfo, step: int) -> list[Part]:
        far = [(0, f"{100 * step // run.steps:>3}%"), (4, f"{step:,}/{run.steps:,} {run.unit}")]
        numbers = [(0, text) for text in self._numbers()]
        activity = self.activities.long
        if activity is not None:
            return [*far, (0, str(activity)), *numbers]
        speed = (3, f"{self._speed(step - run.step):,.0f} {run.unit}/s")
        return [*far, speed, *self._left(run.steps - step, step - run.step), *numbers]

    def _speed(self, done: int) -> float:
        return done / max(time.perf_counter() - self._started, 1e-9)

    def _left(self, rest: int, done: int) -> list[Part]:
        return [(2, f"{format_duration(rest / self._speed(done))} left")] if done > 0 else []


def _bar_and(parts: list[Part], share: float, width: int) -> Text:
    """A bar, and the parts that fit beside it."""
    from rich.text import Text

    kept = list(parts)
    # The last column stays empty: some terminals would begin a new line.
    while (room := width - 1 - sum(len(text) + len(_GAP) for _, text in kept)) < _SHORTEST_BAR:
        last = max(kept, key=lambda part: part[0])
        if last[0] == 0:
            break
        kept.remove(last)
    bar = min(room, _BAR) if room >= _SHORTEST_BAR else 0
    full = round(share * bar)
    line = Text(no_wrap=True, overflow="ellipsis")
    if bar:
        line.append("━" * full, "green").append("─" * (bar - full), "dim").append(_GAP)
    return line.append(_GAP.join(text for _, text in kept))


def _title(run: RunInfo) -> list[str]:
    """What runs where, and how long; and what it learns from."""
    names = " + ".join(one.name for one in run.participants)
    title = f"{names} on {run.environment}, {run.steps:,} {run.unit}, seed {run.config.run.seed}"
    resumed = f", resumed at step {run.step:,}" if run.resumed else ""
    # Enough of the id for `rlplug resume`, should the process be killed.
    return [f"{title}, run {run.run_id[:8]}{resumed}", *([run.feed] if run.feed else [])]


def _write(stream: TextIO, text: str) -> None:
    # The reader may have gone; the run continues.
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()
