"""What is printed when a run has ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlplug.cli.terminal import console, in_columns
from rlplug.tracking.summary import RETURN, REWARD, labeled

if TYPE_CHECKING:
    from rlplug.runs.result import RunInterrupted, RunResult

__all__ = ["print_interrupted", "print_json", "print_result"]

_SHOWN = {
    RETURN: "return",
    REWARD: "reward",
    "eval/return_mean": "return, greedy",
    "rollout/regret_mean": "regret per step",
    "rollout/regret_total": "regret in all",
}


def print_result(result: RunResult) -> None:
    """A short table, where the run is, and the next command."""
    shown = console()
    for line in (*in_columns(dict(_rows(result))), *result.where):
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
    for word, value in labeled(metrics, _SHOWN):
        yield word, f"{value:,.4g}"
    if result.best is not None and result.best[0] != result.step:
        step, value = result.best
        yield "best, greedy", f"{value:,.4g} at step {step:,}: what eval and load take"
    seconds = metrics.get("time/seconds", 0.0)
    speed = f", {result.step / seconds:,.0f} a second" if seconds else ""
    yield "steps", f"{result.step:,} in {seconds:,.1f} s{speed}"
    if result.stopped:
        yield "ended early", result.stopped
