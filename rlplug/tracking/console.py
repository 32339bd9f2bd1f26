"""Progress of a run: a line that is drawn over and over in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rlplug.quantities import format_duration, format_number
from rlplug.review.record import RETURN, REWARD

if TYPE_CHECKING:
    import rich.console
    from rich.live import Live
    from rich.text import Text

    from rlplug.hooks.events import RunInfo

_PLAIN_LINES = 10
_PER_SECOND = 4
_BAR, _SHORTEST_BAR = 24, 6
_GAP = "  "
_PATIENCE = 1.0
"""Seconds that something may take without a line that says so."""
_AGAIN = 4.0
"""How many times longer it takes until that is said again."""
_HEADLINES = {
    RETURN: "return",
    REWARD: "reward",
    "rollout/regret_mean": "regret",
    "data/reward_mean": "logged reward",
    "eval/return_mean": "eval",
}
"""Metric → label."""


class Activities:
    """What is being done besides steps: evaluating, saving, closing; the innermost last.

    `say` is given a line where something takes over a second, and again where it takes much longer.
    """

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self._say = say
        self._now: list[tuple[float, Callable[[], str]]] = []
        self._said: set[str] = set()

    @property
    def long(self) -> str:
        """The outermost thing that has taken over a second; empty if there is none."""
        before = time.perf_counter() - _PATIENCE
        return next((text() for started, text in list(self._now) if started < before), "")

    @contextlib.contextmanager
    def doing(self, what: str, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Name what is done in the block; `detail()` is how far it is: `3 of 10 episodes`."""

        def text() -> str:
            far = detail()
            return f"{what}: {far}" if far else f"{what} …"

        activity, ended = (time.perf_counter(), text), threading.Event()
        self._now.append(activity)
        if self._say is not None:
            arguments = (what, activity, ended, self._say)
            threading.Thread(target=self._tell, args=arguments, daemon=True).start()
        try:
            yield
        finally:
            self._now.remove(activity)
            ended.set()

    def _tell(
        self,
        what: str,
        activity: tuple[float, Callable[[], str]],
        ended: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        # What is done at intervals is said soon only the first time.
        seconds = _PATIENCE * (_AGAIN if what in self._said else 1)
        while not ended.wait(seconds):
            # The same line again would look like a second start.
            so_far = f" for {format_duration(time.perf_counter() - activity[0])}"
            say(f"{activity[1]()}{so_far if what in self._said else ''}")
            self._said.add(what)
            seconds *= _AGAIN


class Console:
    """Shows a run on a stream: a bar in a terminal, about ten lines elsewhere; None: nothing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._console: rich.console.Console | None = None
        """Of a terminal, once there is a bar."""
        self._live: Live | None = None
        self._latest: dict[str, float] = {}
        self._next = 0
        """The tenth of the run at which the next line is due."""
        self._started = 0.0
        # A bar shows them itself.
        say = None if stream is None else lambda line: None if self._console else self.say(line)
        self.activities = Activities(say)

    @property
    def is_silent(self) -> bool:
        """Whether it shows nothing."""
        return self._stream is None

    def say(self, line: str) -> None:
        """Print a line; also from other threads."""
        # The reader may have gone; the run continues.
        with contextlib.suppress(OSError, ValueError):
            if self._console is not None:
                # Not wrapped: ids and paths stay whole where a person copies them.
                self._console.print(line, markup=False, soft_wrap=True)
            elif self._stream is not None:
                self._stream.write(f"{line}\n")
                self._stream.flush()

    def run_started(self, run: RunInfo) -> None:
        self._run, self._next = run, 0
        if self._stream is not None and self._stream.isatty():
            # Read when the line is drawn, so that the run need not report every step.
            self._begin(run.steps, run.progress, lambda step: self._of_run(run, step))
        names = " + ".join(participant.name for participant in run.participants)
        title = f"{names} on {run.environment}, {run.steps:,} {run.unit}"
        resumed = f", resumed at step {run.step:,}" if run.resumed else ""
        # Enough of the id for `rlplug resume`, should the process be killed.
        self.say(f"{title}, seed {run.config.run.seed}, run {run.run_id[:8]}{resumed}")
        if run.feed:
            self.say(run.feed)

    def episodes_started(self, episodes: int, played: Callable[[], int]) -> None:
        """Show in a terminal how many of the episodes have been played."""

        def parts(there: int) -> list[str]:
            far = f"evaluating  {there:,}/{episodes:,} episodes"
            return [far, *self._left(episodes - there, there)]

        if self._stream is not None and self._stream.isatty():
            self._begin(episodes, played, parts)

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)
        run = self._run
        tenth = _PLAIN_LINES * step // run.steps
        if tenth >= self._next and self._console is None:
            self._next = tenth + 1
            far = f"{step:>{len(f'{run.steps:,}')},} {run.unit}"
            speed = f"{metrics.get('time/steps_per_second', 0.0):>9,.0f} {run.unit}/s"
            share = f"{min(100 * step // run.steps, 100):>3}%"
            self.say(_GAP.join([share, far, speed, *self._numbers()]))

    def evaluation_finished(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def close(self) -> None:
        """Take the bar away; it must not hide the cursor of a terminal for ever."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _begin(
        self, total: int, done: Callable[[], int], parts: Callable[[int], Sequence[str]]
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

    def _of_run(self, run: RunInfo, step: int) -> list[str]:
        """What is to be seen, the most important first."""
        numbers, activity = self._numbers(), self.activities.long
        far = [f"{100 * step // run.steps:>3}%", *numbers]
        if activity:
            return [*far, activity]
        done, steps = step - run.step, f"{step:,}/{run.steps:,} {run.unit}"
        speed = done / max(time.perf_counter() - self._started, 1e-9)
        return [*far, *self._left(run.steps - step, done), f"{speed:,.0f} {run.unit}/s", steps]

    def _left(self, rest: int, done: int) -> list[str]:
        seconds = time.perf_counter() - self._started
        return [f"{format_duration(rest * seconds / done)} left"] if done > 0 else []

    def _numbers(self) -> list[str]:
        """`reward 0.91`, `regret 0.02`: the headline metrics."""
        values = labeled(self._latest, _HEADLINES)
        return [f"{word} {format_number(value)}" for word, value in values]


def console_for(stream: TextIO | None = None) -> Console:
    """A console that shows what it is given, by default on stderr."""
    return Console(sys.stderr if stream is None else stream)


def labeled(metrics: Mapping[str, float], labels: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Labels and values of the metrics that have a label, in the order of the labels."""
    for name, label in labels.items():
        # The reward per step says nothing beside the return.
        if name in metrics and not (name == REWARD and RETURN in metrics):
            yield label, metrics[name]


def _bar_and(parts: Sequence[str], share: float, width: int) -> Text:
    """A bar, and as many of the parts as fit beside it; the first one is always shown."""
    from rich.text import Text

    # The last column stays empty: some terminals would begin a new line.
    room, shown = width - 1 - len(parts[0]), [parts[0]]
    for part in parts[1:]:
        if room - len(_GAP + part) < 0:
            break
        shown.append(part)
        room -= len(_GAP + part)
    bar = min(room - len(_GAP), _BAR)
    line = Text(no_wrap=True, overflow="ellipsis")
    if bar >= _SHORTEST_BAR:
        full = round(share * bar)
        line.append("━" * full, "green").append("─" * (bar - full), "dim").append(_GAP)
    return line.append(_GAP.join(shown))
