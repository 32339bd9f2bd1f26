"""What is printed at the end of a run."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rlplug.cli.output import print_next, print_rows
from rlplug.cli.process import leave_at_once
from rlplug.quantities import format_number
from rlplug.review.record import REGRET, RETURN, REWARD
from rlplug.tracking.console import labeled

if TYPE_CHECKING:
    from rlplug.runs.result import RunInterrupted, RunResult

__all__ = ["finish", "print_result"]

_SHOWN = {
    RETURN: "return",
    REWARD: "reward",
    "eval/return_mean": "eval return",
    "rollout/regret_mean": "regret per step",
    REGRET: "total regret",
}


def finish(carry_out: Callable[[], RunResult], *, quiet: bool, as_json: bool) -> int:
    """Carry out a run and print how it ended; returns the exit code."""
    from rlplug.runs.result import RunInterrupted

    try:
        result = carry_out()
    except RunInterrupted as interrupted:
        if as_json:
            print(json.dumps(interrupted.result.as_json()), flush=True)
        _print_interrupted(interrupted)
        if interrupted.at_once:
            leave_at_once(interrupted.exit_code)
        return interrupted.exit_code
    if as_json:
        print(json.dumps(result.as_json()), flush=True)
    elif not quiet:
        print_result(result)
    missing = _missing(result)
    if missing:
        print(f"rlplug: error: the run is not complete on disk: {missing}", file=sys.stderr)
    return 1 if missing else 0


def _missing(result: RunResult) -> str:
    """What of a run is not on the disk, and what to do about it; empty if all of it is."""
    ended = f"and it ended at step {result.step:,}"
    if not result.can_be_resumed:
        return f"its folder was deleted, {ended}."
    if result.step not in result.checkpoints:
        how = f"free disk space, then rlplug resume {result.run_id}"
        return f"{result.saved}, {ended}.\n  try: {how}"
    return f"{result.lost:,} metric values are lost." if result.lost else ""


def print_result(result: RunResult) -> None:
    """Print the headline metrics, where the run is, and the next command."""
    print_rows(dict(_rows(result)), wrapped=True)
    for file in result.profile[-2:]:
        print(f"profile      {file}")
    print(*result.where, sep="\n")
    print_next(f"show {result.run_id[:8]}")


def _print_interrupted(interrupted: RunInterrupted) -> None:
    """Print how far the run came, what of it is on disk, and how to go on."""
    result = interrupted.result
    ended = f"interrupted at step {result.step:,}"
    if result.status == "FINISHED":
        ended = f"interrupted after the last of {result.step:,} steps"
    lines = [f"rlplug: {ended}; {result.saved}.", *result.where]
    if interrupted.__cause__ is not None:
        error = interrupted.__cause__
        lines.insert(0, f"rlplug: error: {type(error).__name__}: {error}")
    if result.can_be_resumed and result.status != "FINISHED":
        lines.append(f"next: rlplug resume {result.run_id}")
    # After SIGHUP nobody reads.
    with contextlib.suppress(OSError):
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def _rows(result: RunResult) -> Iterator[tuple[str, str]]:
    metrics = result.metrics
    for word, value in labeled(metrics, _SHOWN):
        yield word, format_number(value)
    if result.best is not None and result.best[0] != result.step:
        step, value = result.best
        there = "used by eval and load" if step in result.checkpoints else "no checkpoint of it"
        yield "best eval", f"{format_number(value)} at step {step:,} ({there})"
    if "league/elo" in metrics:
        rate = metrics.get("league/win_rate")
        won = "" if rate is None else f", win rate {rate:.0%} against the pool"
        yield "league", f"Elo {format_number(metrics['league/elo'])}{won}"
    if result.nonfinite_step is not None:
        yield "not finite", f"weights, since step {result.nonfinite_step:,}"
    if result.nonfinite_updates:
        updates = metrics.get("time/updates", 0.0)
        yield "not finite", f"gradients in {result.nonfinite_updates:,} of {updates:,.0f} updates"
    seconds = metrics.get("time/seconds", 0.0)
    speed = f" ({result.step / seconds:,.0f} per second)" if seconds else ""
    yield "steps", f"{result.step:,} in {seconds:,.1f} s{speed}"
    whole = sum(result.time_split.values())
    if whole:
        shares = sorted(result.time_split.items(), key=lambda one: -one[1])
        yield "time", ", ".join(f"{part} {seconds / whole:.0%}" for part, seconds in shares)
    if result.engine:
        yield "gradients", result.engine
    if result.stopped:
        yield "stopped early", result.stopped
