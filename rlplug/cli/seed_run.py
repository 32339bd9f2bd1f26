"""What the run of one seed reports to the process that started it, and the signals it gets from it.

`rlplug.runs.seeds.process` is the other end.
"""

from __future__ import annotations

import _thread
import json
import os
import queue
import signal
import threading
from collections.abc import Mapping
from io import BufferedReader, BufferedWriter
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.config.scale_section import ScaleSection
from rlplug.review.record import Trial
from rlplug.runs.signals import Interrupts

if TYPE_CHECKING:
    from rlplug.hooks.events import RunInfo
    from rlplug.runs.prepare import Prepared

__all__ = ["SeedReporter", "SeedRun"]

INTERVAL = 0.5
"""Seconds between reports of the step."""


class SeedReporter:
    """Tells the parent how far the run is, as a listener to its events."""

    def __init__(self, stream: BufferedWriter) -> None:
        self._stream = stream
        self._run: RunInfo | None = None
        self._latest: dict[str, float] = {}
        self._ended = threading.Event()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def run_started(self, run: RunInfo) -> None:
        self._run = run
        names = " + ".join(one.name for one in run.participants)
        title = f"{names} on {run.environment}, {run.steps:,} steps"
        self._send(folder=str(run.folder), title=title, steps=run.steps, step=run.step)
        threading.Thread(target=self._report, daemon=True).start()

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

    def _end(self) -> None:
        self._ended.set()
        self._report_once()

    def _report(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._report_once()

    def _report_once(self) -> None:
        if self._run is not None:
            latest, self._latest = self._latest, {}
            self._send(step=self._run.progress(), metrics=latest)

    def _send(self, **report: Any) -> None:
        try:
            with self._lock:
                self._stream.write(json.dumps(report).encode() + b"\n")
                self._stream.flush()
        except (OSError, ValueError):
            # The parent has gone: the thread that listens to it ends the run.
            self._ended.set()
            self.answered("")


class SeedRun:
    """What a command gets in such a process: a listener for the run, and signals that end it.

    `part` may hold the `trial` of a study that the run is, whether it `asks` the parent after each
    evaluation if it is to go on, and whether it was `placed` on a cluster, whole.
    """

    def __init__(self, reports: BufferedWriter, part: Mapping[str, Any]) -> None:
        self._reporter = SeedReporter(reports)
        self._interrupts = Interrupts()
        self._part = part

    def placed(self, prepared: Prepared) -> Prepared:
        """The run as it is in this process: one that was placed on a cluster is not spread."""
        if not self._part.get("placed"):
            return prepared
        return attrs.evolve(prepared, config=attrs.evolve(prepared.config, scale=ScaleSection()))

    def attached(self, *listeners: object) -> dict[str, Any]:
        """What a `Run` is made with."""
        trial = self._part.get("trial")
        return {
            "listeners": (self._reporter, *listeners),
            "interrupts": self._interrupts,
            "trial": None if trial is None else Trial(**trial),
            "judge": self._reporter.judge if self._part.get("asks") else None,
        }

    def obey(self, orders: BufferedReader) -> None:
        """Act on the parent's signals, and end the run with a checkpoint when the parent ends."""
        for line in orders:
            order = json.loads(line)
            if "answer" in order:
                self._reporter.answered(order["answer"])
            else:
                self._interrupt(order["signal"], again=order["again"])
        self._reporter.answered("")
        # Nobody reads what this process prints.
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        self._interrupt(signal.SIGTERM, again=False)

    def _interrupt(self, number: int, *, again: bool) -> None:
        if signal.getsignal(number) == signal.SIG_DFL:
            if number == getattr(signal, "SIGUSR1", None):
                # There is nothing to save.
                return
            # Before the run has anything to lose, or after it has ended.
            os._exit(128 + number)
        # A scheduler may have sent the first one to all processes itself.
        if again or not self._interrupts.is_ending:
            _thread.interrupt_main(signal.Signals(number))
