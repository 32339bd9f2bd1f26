"""Carry out runs in processes of their own, some at a time, until all have ended."""

from __future__ import annotations

import contextlib
import math
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Self, TypeAlias

from rlplug.runs.groups.child import Child, Event, Put
from rlplug.runs.groups.display import QuietDisplay
from rlplug.runs.groups.member import ERROR, REFUSED, Member, all_refused
from rlplug.runs.groups.plan import Plan

__all__ = ["Launch", "carry_out"]

TICK_SECONDS = 0.25
KILL_SECONDS = 10.0
"""How long processes have to end after a second signal."""

Launch: TypeAlias = Callable[[Member, Put], Child]
"""Starts the process of a run."""


def carry_out(plan: Plan, jobs: int, launch: Launch, display: QuietDisplay) -> int:
    """Carry out all runs; the number of the signal that ended them, or 0.

    A failed run does not stop the others.
    """
    running = _Running(plan, jobs, launch, display)
    with _Signals() as signals, contextlib.closing(display):
        try:
            while running.start(ending=bool(signals.first)):
                running.listen()
                for number, again in signals.take():
                    running.send({"signal": number, "again": again})
                if signals.overdue:
                    running.kill()
                display.update(plan.members)
        finally:
            # Nothing runs any more, unless an exception has ended the loop.
            running.send({"signal": int(signal.SIGTERM), "again": False})
    return signals.first


class _Running:
    """The processes in progress."""

    def __init__(self, plan: Plan, jobs: int, launch: Launch, display: QuietDisplay) -> None:
        self._plan = plan
        self._jobs = jobs
        self._launch = launch
        self._display = display
        self._members: dict[str, Member] = {}
        self._children: dict[str, Child] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._said: set[str] = set()
        self._ending = False

    def start(self, *, ending: bool) -> bool:
        """Start what may start; whether anything is in progress."""
        self._ending = ending
        while len(self._children) < self._jobs and not (ending or self._is_refused):
            member = self._plan.take()
            if member is None:
                break
            member.status = "running"
            self._members[member.name] = member
            if member.refusal:
                self._take(Event(member.name, "line", f"{ERROR}{member.refusal}"))
                self._take(Event(member.name, "ended", REFUSED))
            else:
                self._children[member.name] = self._launch(member, self._events.put)
        return bool(self._children)

    @property
    def _is_refused(self) -> bool:
        """Whether further runs would be refused as the first ones were."""
        return self._plan.alike and all_refused(self._members.values())

    def listen(self) -> None:
        """Take all events there are; wait a moment for the first."""
        with contextlib.suppress(queue.Empty):
            self._take(self._events.get(timeout=TICK_SECONDS))
            while True:
                self._take(self._events.get_nowait())

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to all processes."""
        for child in self._children.values():
            child.send(message)

    def kill(self) -> None:
        """Kill the processes that have not ended."""
        for child in self._children.values():
            child.kill()

    def _take(self, event: Event) -> None:
        member = self._members[event.name]
        if event.kind == "report":
            self._reported(member, event.value)
        elif event.kind == "line":
            # After a signal, the table has how each run ended.
            if not member.line(event.value) and not self._ending:
                self._say(event.value, member, self._display.say)
        else:
            self._children.pop(event.name, None)
            member.end(event.value, ending=self._ending)
            if member.status == "failed":
                self._say(ERROR + "\n".join(member.error), member, self._display.failed)
            self._plan.ended(member)
            self._display.ended(member)

    def _reported(self, member: Member, report: Mapping[str, Any]) -> None:
        member.report(report)
        if "folder" in report:
            self._plan.started(member)
        if "evaluation" in report:
            reason = self._plan.evaluated(member, report["step"], report["evaluation"])
            self._children[member.name].send({"answer": reason})

    def _say(self, text: str, member: Member, say: Callable[[str], None]) -> None:
        """Print what a run said, unless another run has said the same."""
        if text not in self._said:
            say(text if self._is_refused else f"{member.name}: {text}")
        if text.startswith("rlplug: "):
            self._said.add(text)


class _Signals:
    """Collects signals: the first ends all runs with checkpoints, a second one at once."""

    def __init__(self) -> None:
        self.first = 0
        """The first signal that ends the runs; 0: none."""
        self._second_at = math.inf
        self._new: list[tuple[int, bool]] = []
        self._previous: dict[int, Any] = {}

    @property
    def overdue(self) -> bool:
        """Whether the runs have had their time since a second signal."""
        return time.monotonic() - self._second_at > KILL_SECONDS

    def take(self) -> list[tuple[int, bool]]:
        """The signals since the last call, and whether each is not the first one."""
        taken, self._new = self._new, []
        return taken

    def __enter__(self) -> Self:
        # Signal handlers can only be set in the main thread.
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
                number = getattr(signal, name, None)
                before = None if number is None else signal.getsignal(number)
                # `nohup` ignores SIGHUP; the command itself ignores SIGUSR1 until here.
                ignored = before == signal.SIG_IGN and name != "SIGUSR1"
                if number is not None and before is not None and not ignored:
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # SIGUSR1 asks for a checkpoint.
        ends = number != getattr(signal, "SIGUSR1", None)
        again = ends and bool(self.first)
        self.first = self.first or (int(number) if ends else 0)
        if again:
            self._second_at = min(self._second_at, time.monotonic())
        self._new.append((number, again))
