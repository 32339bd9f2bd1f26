"""What is printed when a run has ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlplug.cli.terminal import console

if TYPE_CHECKING:
    from rlplug.runs.interrupts import RunInterrupted
    from rlplug.runs.result import RunResult

__all__ = ["print_interrupted", "print_json", "print_result"]

_SHOWN = {
    "rollout/return_mean": "return",
    "rollout/reward_mean": "reward",
    "eval/return_mean": "return, greedy",
    "rollout/regret_mean": "regret per step",
    "rollout/regret_total": "regret in all",
}


def print_result(result: RunResult) -> None:
    """A short table, where the run is, and the next command."""
    from rich.table import Table

    shown = console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in _rows(result):
        table.add_row(name, value)
    shown.print(table)
    for line in result.where:
        shown.print(line, markup=False)


def print_interrupted(interrupted: RunInterrupted) -> None:
    """How far it came, and how to go on."""
    result = interrupted.result
    print(
        f"rlplug: interrupted at step {result.step:,}; everything up to there is recorded.",
        *result.where,
        f"run it again from the start: rlplug run --config {result.folder / 'config.toml'}",
        sep="\n",
        file=sys.stderr,
    )


def print_json(result: RunResult) -> None:
    """The result as the last line of the output."""
    print(json.dumps(result.as_json()), flush=True)


def _rows(result: RunResult) -> Iterator[tuple[str, str]]:
    metrics = result.metrics
    for name, word in _SHOWN.items():
        if name in metrics:
            yield word, f"{metrics[name]:,.4g}"
    seconds = metrics.get("time/seconds", 0.0)
    speed = f", {result.step / seconds:,.0f} a second" if seconds else ""
    yield "steps", f"{result.step:,} in {seconds:,.1f} s{speed}"
    if result.stopped:
        yield "ended early", result.stopped
