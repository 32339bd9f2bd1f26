"""Carry out several runs at a time: start their processes, listen, and end them together."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol, Self, TypeAlias

from rlplug.runs.seeds.process import Event
from rlplug.runs.seeds.state import SeedState

__all__ = ["Launch", "Plan", "Process", "SeedDisplay", "carry_out_runs", "exit_code"]

TICK_SECONDS = 0.25
KILL_SECONDS = 10.0
"""How long processes have to end after a second signal."""

REFUSED = 2
"""The exit code of a run that was wrong before anything was run."""


class SeedDisplay(Protocol):
    """Shows how far the seeds are."""

    def update(self, states: Sequence[SeedState]) -> None:
        """Show them as they are; called a few times a second."""

    def ended(self, state: SeedState) -> None:
        """A seed has ended."""

    def say(self, line: str) -> None:
        """Print a line beside the progress."""

    def failed(self, text: str) -> None:
        """Say why a seed failed."""


class Plan(Protocol):
    """Which runs there are to carry out, and what comes of them."""

    @property
    def states(self) -> Sequence[SeedState]:
        """The runs so far, in the order in which they are shown."""

    @property
    def alike(self) -> bool:
        """Whether what is refused for the first run would be refused for the others."""

    def take(self) -> SeedState | None:
        """The next run to start; None if there is none now."""

    def started(self, state: SeedState) -> None:
        """A run has begun, or goes on, in its folder."""

    def evaluated(self, state: SeedState, step: int, metrics: Mapping[str, float]) -> str:
        """A run that asks has been evaluated: why it is to end now, or an empty string."""

    def ended(self, state: SeedState) -> None:
        """A run has ended."""


class Process(Protocol):
    """The process of a run, here or on another host."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell it something."""

    def kill(self) -> None:
        """End it without a checkpoint."""


Launch: TypeAlias = Callable[[SeedState, Callable[[Event], None]], Process]
"""Starts the process of a run, which puts what it does as events."""


def carry_out_runs(plan: Plan, jobs: int, launch: Launch, display: SeedDisplay) -> int:
    """Carry out each run in a process of its own; the number of the signal that ended them, or 0.

    A run that fails takes no other with it; but where all are `alike`, what is refused for the
    first ones is not tried with the others.
    """
    running = _Running(plan, jobs, launch, display)
    with _Signals() as signals:
        try:
            while running.goes_on(ending=bool(signals.ends)):
                running.listen()
                for number, again in signals.take():
                    running.signal(number, again=again)
                if signals.overdue:
                    running.kill()
                display.update(plan.states)
        finally:
            # Nothing, unless an exception has ended the loop.
            running.signal(signal.SIGTERM, again=False)
    return signals.ends


def exit_code(states: Sequence[SeedState], ended_by: int) -> int:
    """The exit code of all seeds together: 0 if every one has finished."""
    if ended_by:
        return 128 + ended_by
    if all(one.status == "finished" for one in states):
        return 0
    refused = any(one.code == REFUSED for one in states)
    return REFUSED if refused and not any(one.has_begun for one in states) else 1


class _Running:
    """The processes in progress."""

    def __init__(self, plan: Plan, jobs: int, launch: Launch, display: SeedDisplay) -> None:
        self._plan = plan
        self._jobs = jobs
        self._launch = launch
        self._display = display
        self._states: dict[str, SeedState] = {}
        self._processes: dict[str, Process] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._told: set[str] = set()
        self._ending = False

    def goes_on(self, *, ending: bool) -> bool:
        """Start what may start; whether anything is left to wait for."""
        self._ending = ending
        while not ending and len(self._processes) < self._jobs:
            if self._plan.alike and self._all_refused():
                break
            state = self._plan.take()
            if state is None:
                break
            state.status = "running"
            self._states[state.name] = state
            self._processes[state.name] = self._launch(state, self._events.put)
        return bool(self._processes)

    def _all_refused(self) -> bool:
        """Whether what was asked for is wrong, so that further seeds would be refused as well."""
        states = self._states.values()
        refused = any(one.code == REFUSED for one in states)
        return refused and not any(one.has_begun for one in states)

    def listen(self) -> None:
        """Take all events there are; wait a moment for the first."""
        with contextlib.suppress(queue.Empty):
            self._take(self._events.get(timeout=TICK_SECONDS))
            while True:
                self._take(self._events.get_nowait())

    def signal(self, number: int, *, again: bool) -> None:
        """Pass a signal on."""
        for process in self._processes.values():
            process.send({"signal": int(number), "again": again})

    def kill(self) -> None:
        """End what does not end."""
        for process in self._processes.values():
            process.kill()

    def _take(self, event: Event) -> None:
        state = self._states[event.name]
        if event.kind == "report":
            state.report(event.value)
            if "folder" in event.value:
                self._plan.started(state)
            if "evaluation" in event.value:
                step, metrics = event.value["step"], event.value["evaluation"]
                reason = self._plan.evaluated(state, step, metrics)
                self._processes[event.name].send({"answer": reason})
        elif event.kind == "line":
            # Once it was told to end, how each seed ended is in the table.
            if not state.line(event.value) and not self._ending:
                self._tell(event.value, state.name, self._display.say)
        else:
            del self._processes[event.name]
            state.end(event.value, ending=self._ending)
            if state.status == "failed":
                error = "\n".join(state.error)
                self._tell(f"rlplug: error: {error}", state.name, self._display.failed)
            self._plan.ended(state)
            self._display.ended(state)

    def _tell(self, text: str, name: str, say: Callable[[str], None]) -> None:
        """Print what a run said, unless another run has said the same."""
        if text.startswith("rlplug: "):
            if text in self._told:
                return
            self._told.add(text)
        say(text if self._all_refused() else f"{name}: {text}")


class _Signals:
    """Collects signals: the first ends all seeds with checkpoints, a second one at once."""

    def __init__(self) -> None:
        self.ends = 0
        """The first signal that ends the seeds; 0: none."""
        self._again = 0.0
        """When a second one came."""
        self._new: list[tuple[int, bool]] = []
        self._previous: dict[int, Any] = {}

    @property
    def overdue(self) -> bool:
        """Whether the seeds have had their time since a second signal."""
        return bool(self._again) and time.monotonic() - self._again > KILL_SECONDS

    def take(self) -> list[tuple[int, bool]]:
        """The signals since the last call, and whether each is not the first one."""
        taken, self._new = self._new, []
        return taken

    def __enter__(self) -> Self:
        # Signal handlers can only be set in the main thread.
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
                number = getattr(signal, name, None)
                # `nohup` ignores SIGHUP.
                if number is not None and signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == getattr(signal, "SIGUSR1", None):
            # It asks for a checkpoint.
            self._new.append((number, False))
            return
        again = bool(self.ends)
        self.ends = self.ends or number
        if again and not self._again:
            self._again = time.monotonic()
        self._new.append((number, again))
