"""Progress of a group: a line for each run in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO, TypeAlias

from rlplug.quantities import format_duration, format_number
from rlplug.review.record import REGRET, RETURN, REWARD
from rlplug.runs.groups.member import Member

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["GroupDisplay", "MakeDisplay", "QuietDisplay", "SilentDisplay", "member_line"]

_LABELS = {RETURN: "return", REWARD: "reward", REGRET: "regret"}
_BAR = 12
_PARTS = 5
"""Lines per run where there is no terminal, besides the one at its end."""
_PLAIN_WIDTH = 100


class QuietDisplay:
    """Prints nothing but what is wrong."""

    def __init__(self, title: str = "", stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    def update(self, members: Sequence[Member]) -> None:
        """Show the runs as they are; called a few times a second."""

    def ended(self, member: Member) -> None:
        """A run has ended."""

    def say(self, line: str) -> None:
        """Print a line."""
        # The reader may have gone; the runs continue.
        with contextlib.suppress(OSError, ValueError):
            print(line, file=self._stream, flush=True)

    def failed(self, text: str) -> None:
        """Print why a run failed."""
        self.say(text)

    def close(self) -> None:
        """Leave the terminal as it was."""


MakeDisplay: TypeAlias = Callable[[str], QuietDisplay]
"""From a title."""


class SilentDisplay(QuietDisplay):
    """For a caller that raises what failed."""

    def failed(self, text: str) -> None:
        """It is raised at the end."""


class GroupDisplay(QuietDisplay):
    """Lines that are drawn again and again in a terminal; a few per run in logs and pipes."""

    def __init__(self, title: str = "", stream: TextIO | None = None) -> None:
        super().__init__(title, stream)
        self._live: Live | None = None
        self._printed: dict[str, int] = {}
        if not self._stream.isatty():
            self.say(title)
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream, highlight=False)
        console.print(title, style="bold", markup=False)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def update(self, members: Sequence[Member]) -> None:
        """Draw the lines; elsewhere, print the runs that have come another part of their way."""
        if self._live is not None:
            from rich.text import Text

            width, height = self._live.console.size
            running = [member for member in members if member.status == "running"]
            # Where the terminal has fewer lines than there are runs, those in progress.
            shown = members if len(members) < height else running[: height - 1]
            digits = max((len(one.name.rpartition(" ")[2]) for one in members), default=0)
            lines = "\n".join(member_line(member, width, digits) for member in shown)
            self._live.update(Text(lines, no_wrap=True, overflow="ellipsis"), refresh=True)
            return
        for member in members:
            part = _PARTS * _percent(member) // 100
            is_due = member.steps and self._printed.get(member.name) != part
            if member.status == "running" and is_due:
                self._printed[member.name] = part
                self.say(member_line(member, _PLAIN_WIDTH, 0))

    def ended(self, member: Member) -> None:
        """Print how it ended; in a terminal, its line says so."""
        if self._live is None and member.has_begun:
            self.say(member_line(member, _PLAIN_WIDTH, 0))

    def say(self, line: str) -> None:
        """Print a line, in a terminal above the others."""
        if self._live is None:
            super().say(line)
        else:
            self._live.console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Take the lines away, and give the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def member_line(member: Member, width: int, digits: int) -> str:
    """One run in so many columns: `seed 3   45%  13,500/30,000  return 182.3  best 210.5 @ 9,000`.

    `digits` is how wide the numbers in their names are.
    """
    kind, _, number = member.name.rpartition(" ")
    name = f"{kind} {number:>{digits}}"
    runs = member.status == "running"
    if not member.steps:
        return f"{name}  {'starting' if runs else member.status}"
    wide, percent = width >= 90, _percent(member)
    ended = "" if runs else f"  {member.status}"
    if runs and member.step >= member.steps:
        ended = "  closing"
    parts = [name, f"{percent:>3}%"]
    if wide and not ended and digits:
        full = _BAR * percent // 100
        parts.append("━" * full + "─" * (_BAR - full))
    if wide:
        parts.append(f"{member.step:>{len(f'{member.steps:,}')},}/{member.steps:,}")
    latest = member.latest
    for metric, label in _LABELS.items():
        # The return of one-step episodes is their reward.
        if metric in latest and (metric != REWARD or RETURN not in latest):
            parts.append(f"{label} {format_number(latest[metric])}")
    if member.best is not None:
        step, value = member.best
        parts.append(f"best {format_number(value)}" + (f" @ {step:,}" if wide else ""))
    left = member.seconds_left
    if left is not None and not ended:
        parts.append(f"{format_duration(left)} left")
    return ("  ".join(parts) + ended)[:width]


def _percent(member: Member) -> int:
    return min(100 * member.step // member.steps, 100) if member.steps else 0
