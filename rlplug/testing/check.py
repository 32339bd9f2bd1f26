"""What a check is: a property of a plugin that is looked for within a limit of time."""

from __future__ import annotations

import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import attrs

from rlplug.registry import ALGORITHM
from rlplug.seeding import forked
from rlplug.testing.report import CheckFailed, DoesNotApply, Outcome, as_failure, own_line
from rlplug.testing.subject import Subject

For = Literal["both", "algorithm", "addon"]
TIERS = {
    "bronze": "keeps the contract, and learns",
    "silver": "is reproducible and resumable, in all spaces that it claims",
    "gold": "has options with effects, several learners and a fast engine",
}
"""What a plugin may call itself whose checks of this tier, and of those before it, all pass."""
SECONDS = 120.0
"""CPU time of one check; a check that waits, and computes nothing, may take three times as long."""


class TookTooLong(Exception):  # noqa: N818 # no error of the plugin's code, but of its speed
    """Raised in a check that took longer than its limit."""

    def __init__(self, frame: FrameType | None) -> None:
        super().__init__()
        self.frames = traceback.extract_stack(frame)


@attrs.frozen(kw_only=True)
class Check:
    """A check of one property of a plugin."""

    function: Callable[[Subject], None]
    whom: For = "both"
    quick: bool = True
    tier: str = "bronze"

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    @property
    def description(self) -> str:
        """The first line of its docstring: what it looks for."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def applies_to(self, kind: str) -> bool:
        """Whether it is for this kind of plugin."""
        return self.whom in ("both", "algorithm" if kind == ALGORITHM else "addon")

    def __call__(self, subject: Subject) -> None:
        """Raises `CheckFailed`, or `DoesNotApply` if the check has nothing to look at."""
        limit = SECONDS if self.quick else 3 * SECONDS
        with forked(0), warnings.catch_warnings(), _time_limit(limit):
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self.function(subject)
            except (CheckFailed, DoesNotApply):
                raise
            except TookTooLong as error:
                hint = "if it is slow for large observations, refuse them in `supports`"
                raise CheckFailed(
                    f"an answer within {limit:.0f} seconds of CPU time: {self.description}",
                    "none",
                    f"{own_line(error.frames, subject.kind, 'build')}: {hint}",
                ) from None
            except Exception as error:
                raise as_failure(error, self.description, subject.kind) from error

    def outcome(self, subject: Subject) -> Outcome:
        """Run it; returns the result and the time it took."""
        started = time.perf_counter()
        status: Literal["passed", "failed", "does not apply"] = "passed"
        text = ""
        try:
            self(subject)
        except CheckFailed as failure:
            status, text = "failed", str(failure)
        except DoesNotApply as reason:
            status, text = "does not apply", str(reason)
        return Outcome(
            check=self.name,
            tier=self.tier,
            description=self.description,
            status=status,
            text=text,
            seconds=time.perf_counter() - started,
        )


def check(
    whom: For = "both", *, quick: bool = True, tier: str = "bronze"
) -> Callable[[Callable[[Subject], None]], Check]:
    """Make a check of a function that raises `CheckFailed`."""
    return lambda function: Check(function=function, whom=whom, quick=quick, tier=tier)


def tier_of(outcomes: Sequence[Outcome]) -> str:
    """The highest tier all of whose checks passed, and what the next one lacks, in one line."""
    reached = ""
    for tier, what in TIERS.items():
        failed = [one.check for one in outcomes if one.tier == tier and one.status == "failed"]
        if failed:
            return f"{reached or 'no tier'}; {tier} lacks {', '.join(failed)}"
        reached = f"tier {tier}: {what}"
    return reached


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` after so many seconds; only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGPROF"):
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(frame)

    limits = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    before = {number: signal.signal(number, interrupt) for number in limits}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 3 * seconds)
    try:
        yield
    finally:
        for number, timer in limits.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
