"""Progress of several seeds: a line for each in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from rlplug.quantities import format_duration, format_number
from rlplug.review.record import HEADLINES
from rlplug.runs.seeds.state import SeedState

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["LiveSeeds", "PlainSeeds", "QuietSeeds", "SilentSeeds", "display_for", "seed_line"]

_LABELS = {"rollout/return_mean": "return", "rollout/reward_mean": "reward"}
_BAR = 12
_PARTS = 5
"""Lines per seed where there is no terminal, besides the one at its end."""


def display_for(title: str, stream: TextIO | None = None) -> LiveSeeds | PlainSeeds:
    """Live lines in a terminal, plain ones elsewhere; by default on stderr."""
    stream = sys.stderr if stream is None else stream
    return LiveSeeds(stream, title) if stream.isatty() else PlainSeeds(stream, title)


class QuietSeeds:
    """Prints nothing but what is wrong."""

    def __init__(self, title: str = "", stream: TextIO | None = None) -> None:
        self._stream = stream

    def update(self, states: Sequence[SeedState]) -> None:
        """Nothing to show."""

    def ended(self, state: SeedState) -> None:
        """Nothing to show."""

    def say(self, line: str) -> None:
        """Print a line on stderr."""
        _print(line, sys.stderr if self._stream is None else self._stream)

    def failed(self, text: str) -> None:
        """Print it."""
        self.say(text)

    def close(self) -> None:
        """Nothing stays open."""


class SilentSeeds(QuietSeeds):
    """For a caller that raises what failed."""

    def failed(self, text: str) -> None:
        """It is raised at the end."""


class LiveSeeds:
    """A line per seed, drawn again and again."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream = stream
        self._title = title
        self._live: Live | None = None

    def update(self, states: Sequence[SeedState]) -> None:
        """Draw the lines."""
        from rich.text import Text

        if self._live is None:
            self._live = self._begin(states)
        width, height = self._live.console.size
        lines = _that_fit(states, width, height - 1)
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    def ended(self, state: SeedState) -> None:
        """Its line says so."""

    def say(self, line: str) -> None:
        """Print a line above the progress."""
        if self._live is None:
            _print(line, self._stream)
        else:
            self._live.console.print(line, markup=False, soft_wrap=True)

    def failed(self, text: str) -> None:
        """Print it above the progress."""
        self.say(text)

    def close(self) -> None:
        """Take the lines away, and give the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _begin(self, states: Sequence[SeedState]) -> Live:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream, highlight=False)
        console.print(self._title, style="bold", markup=False)
        live = Live(console=console, auto_refresh=False, transient=True)
        live.start()
        return live


class PlainSeeds:
    """A line per seed now and then, for logs and pipes."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream = stream
        self._printed: dict[str, int] = {}
        self.say(title)

    def update(self, states: Sequence[SeedState]) -> None:
        """Print the seeds that have come another part of their way."""
        for state in states:
            part = _PARTS * state.step // state.steps if state.steps else 0
            if state.status == "running" and state.steps and self._printed.get(state.name) != part:
                self._printed[state.name] = part
                self.say(seed_line(state, 100, 0))

    def ended(self, state: SeedState) -> None:
        """Print how it ended."""
        if state.has_begun:
            self.say(seed_line(state, 100, 0))

    def say(self, line: str) -> None:
        """Print a line."""
        _print(line, self._stream)

    def failed(self, text: str) -> None:
        """Print it."""
        self.say(text)

    def close(self) -> None:
        """Nothing stays open."""


def seed_line(state: SeedState, width: int, digits: int) -> str:
    """One seed in so many columns: `seed 3   45%  13,500/30,000  return 182.3  best 210.5 @ 9,000`.

    `digits` is how wide the numbers in their names are.
    """
    kind, _, number = state.name.rpartition(" ")
    name = f"{kind} {number:>{digits}}"
    if state.status == "running" and not state.steps:
        return f"{name}  starting"
    if not state.steps:
        return f"{name}  {state.status}"
    ended = "" if state.status == "running" else f"  {state.status}"
    if state.status == "running" and state.step >= state.steps:
        ended = "  closing"
    wide = width >= 90
    parts = [name, f"{_percent(state):>3}%"]
    if wide and not ended and digits:
        full = _BAR * _percent(state) // 100
        parts.append("━" * full + "─" * (_BAR - full))
    parts += list(_numbers(state, wide))
    left = state.seconds_left
    if left is not None and not ended:
        parts.append(f"{format_duration(left)} left")
    return ("  ".join(parts) + ended)[:width]


def _numbers(state: SeedState, wide: bool) -> Iterator[str]:
    if wide:
        yield f"{state.step:>{len(f'{state.steps:,}')},}/{state.steps:,}"
    for name, label in _LABELS.items():
        # The return of one-step episodes is their reward.
        if name in state.latest and (label == "return" or HEADLINES[1] not in state.latest):
            yield f"{label} {format_number(state.latest[name])}"
    if "rollout/regret_total" in state.latest:
        yield f"regret {format_number(state.latest['rollout/regret_total'])}"
    if state.best is not None:
        step, value = state.best
        yield f"best {format_number(value)}" + (f" @ {step:,}" if wide else "")


def _percent(state: SeedState) -> int:
    return min(100 * state.step // state.steps, 100) if state.steps else 0


def _that_fit(states: Sequence[SeedState], width: int, height: int) -> list[str]:
    """A line per seed; where the terminal has fewer, of those in progress, and a count."""
    digits = max((len(state.name.rpartition(" ")[2]) for state in states), default=0)
    if len(states) <= height:
        return [seed_line(state, width, digits) for state in states]
    shown = [state for state in states if state.status == "running"][: height - 1]
    others = [state.status for state in states if state not in shown]
    counts = (f"{others.count(one)} {one}" for one in dict.fromkeys(others))
    return [*(seed_line(state, width, digits) for state in shown), ", ".join(counts)[:width]]


def _print(line: str, stream: TextIO) -> None:
    try:
        print(line, file=stream, flush=True)
    except (OSError, ValueError):
        # The reader has gone; the seeds go on.
        return
