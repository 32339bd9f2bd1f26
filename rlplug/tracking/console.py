"""Progress of a run: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TextIO

from rlplug.tracking.summary import RETURN, REWARD, labeled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

    from rlplug.hooks.events import RunInfo

__all__ = ["HEADLINES", "LiveConsole", "NotebookConsole", "PlainConsole", "console_for"]

HEADLINES = {
    RETURN: "return",
    REWARD: "reward",
    "rollout/regret_mean": "regret",
    "eval/return_mean": "eval",
}
"""The metrics on the progress line, with their labels."""

_PLAIN_LINES = 10
_NOTEBOOK_SECONDS = 0.2
"""The least time between two lines in a notebook."""


def console_for(stream: TextIO | None = None) -> LiveConsole | PlainConsole:
    """A live console for a terminal, a plain one elsewhere; by default on stderr."""
    stream = sys.stderr if stream is None else stream
    if type(stream).__module__.startswith("ipykernel"):
        return NotebookConsole(stream)
    return LiveConsole(stream) if stream.isatty() else PlainConsole(stream)


class LiveConsole:
    """A progress bar with speed, time left and headline metrics."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress: Progress | None = None
        self._started = 0.0
        self._latest: dict[str, float] = {}

    def run_started(self, run: RunInfo) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(file=self._stream, highlight=False)
        console.print(_title(run), style="bold", markup=False)
        if run.feed:
            console.print(run.feed, style="dim", markup=False)
        self._started = time.perf_counter()
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}"))
        progress = Progress(*columns, console=console, refresh_per_second=4, transient=True)
        task = progress.add_task("", total=run.steps)
        get_renderables = progress.get_renderables

        def refresh() -> Iterable[RenderableType]:
            # Read when the bar is drawn, so that the run need not report every step.
            step = min(run.progress(), run.steps)
            progress.update(task, completed=step, description=self._line(run, step))
            return get_renderables()

        progress.get_renderables = refresh  # type: ignore[method-assign] # called for each frame
        progress.start()
        self._progress = progress

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def evaluation_finished(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def run_finished(self) -> None:
        self.close()

    def run_failed(self) -> None:
        self.close()

    def _line(self, run: RunInfo, step: int) -> str:
        seconds = time.perf_counter() - self._started
        speed = (step - run.step) / seconds if seconds else 0.0
        left = f"{_clock((run.steps - step) / speed)} left" if speed else ""
        share = f"{100 * step // run.steps:>3}%"
        numbers = f"{share}  {step:,}/{run.steps:,} steps  {speed:,.0f}/s  {left}"
        return f"{numbers}  [cyan]{headline(self._latest)}[/cyan]"

    def close(self) -> None:
        """Take the bar away; it must not hide the cursor of a terminal for ever."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class PlainConsole:
    """About ten lines per run, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._steps = 0
        self._next = 0
        self._latest: dict[str, float] = {}

    def run_started(self, run: RunInfo) -> None:
        self._steps = run.steps
        self._next = 0
        self._latest = {}
        self._print(_title(run))
        if run.feed:
            self._print(run.feed)

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)
        tenth = _PLAIN_LINES * step // self._steps
        if tenth < self._next:
            return
        self._next = tenth + 1
        self._print(self._line(step, metrics))

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        speed = metrics.get("time/steps_per_second", 0.0)
        width = len(f"{self._steps:,}")
        share = f"{min(100 * step // self._steps, 100):>3}%"
        numbers = headline(self._latest)
        return f"{share}  {step:>{width},} steps  {speed:>9,.0f} steps/s  {numbers}"

    def evaluation_finished(self, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)

    def close(self) -> None:
        """Nothing stays open."""

    def _print(self, line: str) -> None:
        try:
            print(line, file=self._stream, flush=True)
        except OSError:
            # The reader is gone; the run continues.
            self._print = lambda line: None  # type: ignore[method-assign] # print no more


class NotebookConsole(PlainConsole):
    """One line that is written over: a notebook is no terminal, but knows carriage returns."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._shown = ""
        self._next_time = 0.0

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)
        now = time.perf_counter()
        if now >= self._next_time or step >= self._steps:
            self._next_time = now + _NOTEBOOK_SECONDS
            line = self._line(step, metrics)
            # A shorter line must cover the one before.
            self._write(f"\r{line:<{len(self._shown)}}")
            self._shown = line

    def close(self) -> None:
        if self._shown:
            self._shown = ""
            self._write("\n")

    def _write(self, text: str) -> None:
        # The front end may be gone; the run continues.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def _clock(seconds: float) -> str:
    """`0:42`, `3:07:10`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def headline(metrics: Mapping[str, float]) -> str:
    """`reward 0.91  regret 0.02`: the headline metrics."""
    return "  ".join(f"{word} {value:.3g}" for word, value in labeled(metrics, HEADLINES))


def _title(run: RunInfo) -> str:
    names = " + ".join(one.name for one in run.participants)
    title = f"{names} on {run.environment}, {run.steps:,} steps, seed {run.config.run.seed}"
    resumed = f", resumed at step {run.step:,}" if run.resumed else ""
    # Enough of the id for `rlplug resume`, should the process be killed.
    return f"{title}, run {run.run_id[:8]}{resumed}"
