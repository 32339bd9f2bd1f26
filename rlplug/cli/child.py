"""The process of one run of a group: does what its parent orders, and reports to it.

`rlplug.runs.groups.child` is the other end.
"""

from __future__ import annotations

import _thread
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from io import BufferedReader, BufferedWriter
from typing import TYPE_CHECKING, Any

from rlplug.cli.main import leave
from rlplug.cli.process import starting
from rlplug.config.sources import Setting
from rlplug.runs.signals import Interrupts

if TYPE_CHECKING:
    from rlplug.hooks.events import RunInfo

__all__ = ["Link", "main"]

INTERVAL = 0.5
"""Seconds between reports of the step."""


def main() -> None:
    """Carry out the parent's order."""
    orders, reports = _take_pipes()
    order = json.loads(orders.readline())
    # What the parent finds, this process finds in the same place.
    sys.path[:] = order["path"]
    # As it was typed, for the record of the run.
    sys.argv[:] = order["argv"]
    link = Link(reports)
    threading.Thread(target=link.obey, args=(orders,), daemon=True).start()
    leave(lambda: _carry_out(order, link), debug="--debug" in order["argv"])


def _take_pipes() -> tuple[BufferedReader, BufferedWriter]:
    """Keep the pipes from what the run calls: it finds no input, and prints to stderr."""
    orders = os.fdopen(os.dup(0), "rb")
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return orders, reports


def _carry_out(order: Mapping[str, Any], link: Link) -> int:
    """Carry out a run, or the rest of one; returns the exit code."""
    with starting() as start:
        from rlplug.cli.outcome import finish
        from rlplug.review.record import Trial
        from rlplug.runs.groups.order import prepared_from
        from rlplug.runs.life import Run
        from rlplug.runs.resume import resumable

        trial = order.get("trial")
        attached: dict[str, Any] = {
            "listeners": (link, start),
            "interrupts": link.interrupts,
            "trial": None if trial is None else Trial(**trial),
            "judge": link.judge if order.get("asks") else None,
        }
        if order["kind"] == "run":
            prepared = prepared_from(order)
            if order.get("resume_existing"):
                from rlplug.cli.run import resume_or_start

                name = prepared.config.tracking.run_name
                return resume_or_start(
                    name, prepared, attached, trust=False, quiet=True, as_json=False
                )
            return finish(Run(prepared=prepared, **attached).carry_out, quiet=True, as_json=False)
        resumed = resumable(
            order["run"],
            steps=order["steps"],
            settings=tuple(Setting(key, value) for key, value in order["settings"]),
            allow_drift=order["allow_drift"],
            trust=order.get("trust", False),
        )
        run = Run(prepared=resumed.prepared, resumed=resumed, **attached)
        return finish(run.carry_out, quiet=True, as_json=False)


class Link:
    """Between a run and the parent of its process: reports, signals, questions and answers."""

    def __init__(self, reports: BufferedWriter) -> None:
        self.interrupts = Interrupts()
        self._reports = reports
        self._run: RunInfo | None = None
        self._latest: dict[str, float] = {}
        self._ended = threading.Event()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def run_started(self, run: RunInfo) -> None:
        self._run = run
        names = " + ".join(plugin.name for plugin in run.participants)
        title = f"{names} on {run.environment}, {run.steps:,} steps"
        self._send(folder=str(run.folder), title=title, steps=run.steps, step=run.step)
        threading.Thread(target=self._report_until_end, daemon=True).start()

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def evaluation_finished(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def run_finished(self) -> None:
        self._end()

    def run_failed(self) -> None:
        self._end()

    def judge(self, metrics: Mapping[str, float]) -> str:
        """Ask the parent whether an evaluation is a reason to end the run."""
        if self._run is None or self._ended.is_set():
            return ""
        self._send(step=self._run.progress(), evaluation=metrics)
        return self._answers.get()

    def answered(self, reason: str) -> None:
        """The parent has answered, or has gone."""
        self._answers.put(reason)

    def obey(self, orders: BufferedReader) -> None:
        """Act on the parent's messages, and end the run with a checkpoint when the parent ends."""
        for line in orders:
            message = json.loads(line)
            if "answer" in message:
                self.answered(message["answer"])
            else:
                self._interrupt(message["signal"], again=message["again"])
        self.answered("")
        # Nobody reads what this process prints.
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        self._interrupt(signal.SIGTERM, again=False)

    def _end(self) -> None:
        self._ended.set()
        self._report()

    def _report_until_end(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._report()

    def _report(self) -> None:
        if self._run is not None:
            latest, self._latest = self._latest, {}
            self._send(step=self._run.progress(), metrics=latest)

    def _send(self, **report: Any) -> None:
        try:
            with self._lock:
                self._reports.write(json.dumps(report).encode() + b"\n")
                self._reports.flush()
        except (OSError, ValueError):
            # The parent has gone: the thread that listens to it ends the run.
            self._ended.set()
            self.answered("")

    def _interrupt(self, number: int, *, again: bool) -> None:
        if signal.getsignal(number) == signal.SIG_DFL:
            if number == getattr(signal, "SIGUSR1", None):
                # There is nothing to save.
                return
            # Before the run has anything to lose, or after it has ended.
            os._exit(128 + number)
        # A scheduler may have sent the first one to all processes itself.
        if again or not self.interrupts.is_ending:
            _thread.interrupt_main(signal.Signals(number))


if __name__ == "__main__":
    main()
