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
_PARTS = 5
"""Lines per run where there is no terminal, besides the one at its end."""


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
            text = "\n".join(member_line(member, width) for member in shown)
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            return
        for member in members:
            part = _PARTS * _percent(member) // 100
            is_due = member.steps and self._printed.get(member.name) != part
            if member.status == "running" and is_due:
                self._printed[member.name] = part
                self.say(member_line(member))

    def ended(self, member: Member) -> None:
        """Print how it ended; in a terminal, its line says so."""
        if self._live is None and member.has_begun:
            self.say(member_line(member))

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


def member_line(member: Member, width: int = 100) -> str:
    """A run in so many columns: `seed 3   45%  running  return 182.3  best 210.5 @ 9,000`."""
    status: str = member.status
    if status == "running" and member.step >= member.steps:
        status = "closing" if member.steps else "starting"
    parts = [member.name, f"{_percent(member):>3}%", f"{status:<8}"]
    for metric, label in _LABELS.items():
        # The return of one-step episodes is their reward.
        if metric in member.latest and (metric != REWARD or RETURN not in member.latest):
            parts.append(f"{label} {format_number(member.latest[metric])}")
    if member.best is not None:
        parts.append(f"best {format_number(member.best[1])} @ {member.best[0]:,}")
    if status == "running" and member.seconds_left is not None:
        parts.append(f"{format_duration(member.seconds_left)} left")
    parts.append(f"step {member.step:,} of {member.steps:,}" if member.steps else "")
    return "  ".join(parts)[:width].rstrip()


def _percent(member: Member) -> int:
    return min(100 * member.step // member.steps, 100) if member.steps else 0
