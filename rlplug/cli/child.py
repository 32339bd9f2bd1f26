"""The process of a run of a group, or of a learner: does what its parent orders, and reports to it.

`rlplug.runs.groups.child` and `rlplug.scale.launcher` are the other ends.
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

from rlplug.runs.signals import Interrupts

if TYPE_CHECKING:
    from rlplug.hooks.events import RunInfo

__all__ = ["Link", "main"]

INTERVAL = 0.5
"""Seconds between reports of the step."""


def main() -> None:
    """Carry out the parent's order, the first line of standard input.

    The pipes are kept from what the run calls: it finds no input, and prints to stderr.
    """
    orders, reports = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    order = json.loads(orders.readline() or "{}")
    if not order:
        return
    # What the parent finds, this process finds in the same place; the record of a run has the
    # command as it was typed.
    sys.path[:], sys.argv[:] = order["path"], order.get("argv", sys.argv)
    if order["kind"] == "learner":
        threading.Thread(target=_end_with_parent, args=(orders,), daemon=True).start()
        from rlplug.runs.learners import follow
        from rlplug.scale.launcher import Place

        code = follow(Place(**order["place"]))
        sys.stderr.flush()
        # Threads of torch.distributed are not waited for.
        os._exit(code)
    from rlplug.cli.main import leave

    link = Link(reports)
    threading.Thread(target=link.obey, args=(orders,), daemon=True).start()
    leave(lambda: _carry_out(order, link), debug="--debug" in order["argv"])


def _end_with_parent(orders: BufferedReader) -> None:
    orders.read()
    os._exit(1)


def _carry_out(order: Mapping[str, Any], link: Link) -> int:
    """Carry out a run, or the rest of one; returns the exit code."""
    from rlplug.cli.outcome import finish
    from rlplug.cli.process import Start
    from rlplug.config.sources import Setting
    from rlplug.review.record import Trial
    from rlplug.runs.groups.child import prepared_from
    from rlplug.runs.life import Run
    from rlplug.runs.resume import resumable

    trial = order.get("trial")
    attached: dict[str, Any] = {
        "listeners": (link, Start()),
        "interrupts": link.interrupts,
        "trial": None if trial is None else Trial(**trial),
        "judge": link.judge if order.get("asks") else None,
    }
    if order["kind"] == "resume":
        settings = tuple(Setting(key, value) for key, value in order["settings"])
        resumed = resumable(
            order["run"],
            steps=order["steps"],
            settings=settings,
            allow_drift=order["allow_drift"],
            trust=order.get("trust", False),
        )
        run = Run(prepared=resumed.prepared, resumed=resumed, **attached)
        return finish(run.carry_out, quiet=True, as_json=False)
    prepared = prepared_from(order)
    if order.get("resume_existing"):
        from rlplug.cli.run import resume_or_start

        name = prepared.config.tracking.run_name
        return resume_or_start(name, prepared, attached, trust=False, quiet=True, as_json=False)
    return finish(Run(prepared=prepared, **attached).carry_out, quiet=True, as_json=False)


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
        self._ended.set()
        self._report()

    def run_failed(self) -> None:
        self.run_finished()

    def judge(self, metrics: Mapping[str, float]) -> str:
        """Ask the parent whether an evaluation is a reason to end the run."""
        if self._run is None or self._ended.is_set():
            return ""
        self._send(step=self._run.progress(), evaluation=metrics)
        return self._answers.get()

    def obey(self, orders: BufferedReader) -> None:
        """Act on the parent's messages, and end the run with a checkpoint when the parent ends."""
        for line in orders:
            message = json.loads(line)
            if "answer" in message:
                self._answers.put(message["answer"])
            else:
                self._interrupt(message["signal"], again=message["again"])
        self._answers.put("")
        # Nobody reads what this process prints.
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        self._interrupt(signal.SIGTERM, again=False)

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
            self._answers.put("")

    def _interrupt(self, number: int, *, again: bool) -> None:
        if signal.getsignal(number) == signal.SIG_DFL:
            # Before the run has anything to lose, or after it has ended.
            os._exit(128 + number)
        # A scheduler may have sent the first one to all processes itself.
        if again or not self.interrupts.is_ending:
            _thread.interrupt_main(signal.Signals(number))


if __name__ == "__main__":
    main()
