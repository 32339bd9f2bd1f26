"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rlplug.hooks.info import RunInfo

__all__ = ["HEADLINES", "LiveConsole", "PlainConsole", "console_for"]

HEADLINES = {
    "rollout/return_mean": "return",
    "rollout/reward_mean": "reward",
    "rollout/regret_mean": "regret",
    "eval/return_mean": "eval",
}
"""The metrics worth a place on one line, and what they are called there."""

_PLAIN_LINES = 10


def console_for(stream: TextIO | None = None) -> LiveConsole | PlainConsole:
    """The console that fits where its output goes: by default the error stream."""
    stream = sys.stderr if stream is None else stream
    return LiveConsole(stream) if stream.isatty() else PlainConsole(stream)


class LiveConsole:
    """A progress bar with speed, time left and the running reward and regret."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._look: Any = None

    def run_started(self, run: RunInfo) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(file=self._stream, highlight=False)
        console.print(f"[bold]{_title(run)}[/bold]")
        look = run.progress

        class Following(Progress):
            """Looks up the step when it is drawn, so that the run need not tell it."""

            def get_renderables(self) -> Any:
                for task in self.tasks:
                    task.completed = min(look(), int(task.total or 0))
                return super().get_renderables()

        self._progress = Following(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=False),
            TextColumn("{task.fields[news]}", style="cyan"),
            console=console,
            refresh_per_second=4,
            transient=True,
        )
        self._task = self._progress.add_task(
            "", total=run.steps, completed=run.step, speed="", news=""
        )
        self._progress.start()

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        if self._progress is not None and self._task is not None:
            speed = f"{metrics.get('time/steps_per_second', 0.0):,.0f} steps/s"
            self._progress.update(self._task, speed=speed, news=headline(metrics))

    def run_finished(self) -> None:
        self._close()

    def run_failed(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class PlainConsole:
    """About ten lines a run, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._steps = 0
        self._next = 0

    def run_started(self, run: RunInfo) -> None:
        self._steps = run.steps
        self._next = 0
        self._say(_title(run))

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        tenth = _PLAIN_LINES * step // self._steps
        if tenth < self._next:
            return
        self._next = tenth + 1
        speed = metrics.get("time/steps_per_second", 0.0)
        width = len(f"{self._steps:,}")
        share = f"{100 * step // self._steps:>3}%"
        self._say(f"{share}  {step:>{width},} steps  {speed:>9,.0f} steps/s  {headline(metrics)}")

    def _say(self, line: str) -> None:
        try:
            print(line, file=self._stream, flush=True)
        except OSError:
            # Nobody reads any more: the run itself goes on.
            self._say = lambda line: None  # type: ignore[method-assign] # silent from here on


def headline(metrics: Mapping[str, float]) -> str:
    """`reward 0.91  regret 0.02`: what matters most."""
    said = [f"{word} {metrics[name]:.3g}" for name, word in HEADLINES.items() if name in metrics]
    return "  ".join(said)


def _title(run: RunInfo) -> str:
    names = " + ".join(one.name for one in run.participants)
    return f"{names} on {run.environment}, {run.steps:,} steps, seed {run.config.run.seed}"
