"""What `rlplug run` prints at the end of a run."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rlplug.cli.process import leave_at_once
from rlplug.cli.terminal import in_columns
from rlplug.quantities import format_number
from rlplug.review.record import REGRET, RETURN, REWARD
from rlplug.tracking.console import labeled

if TYPE_CHECKING:
    from rlplug.runs.result import RunInterrupted, RunResult

__all__ = ["finish", "print_interrupted", "print_json", "print_result"]

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
            print_json(interrupted.result)
        print_interrupted(interrupted)
        if interrupted.at_once:
            leave_at_once(interrupted.exit_code)
        return interrupted.exit_code
    if as_json:
        print_json(result)
    elif not quiet:
        print_result(result)
    missing = _missing(result)
    if not missing:
        return 0
    what, how = missing
    print(f"rlplug: error: the run is not complete on disk: {what}.\n  try: {how}", file=sys.stderr)
    return 1


def _missing(result: RunResult) -> tuple[str, str] | None:
    """What of a run is not on the disk, and what to do about it; None if all of it is."""
    ended = f"and it ended at step {result.step:,}"
    if not result.can_be_resumed:
        return f"its folder was deleted, {ended}", "a new run, and to leave its folder in place"
    if result.step not in result.checkpoints:
        how = f"free disk space, then rlplug resume {result.run_id}"
        return f"{result.saved}, {ended}", how
    if result.lost:
        return f"{result.lost:,} metric values are lost", "a new run, with more disk space"
    return None


def print_result(result: RunResult) -> None:
    """Print the headline metrics, where the run is, and the next command."""
    # Not wrapped: ids and paths stay whole where a person copies them.
    print(
        *in_columns(dict(_rows(result)), wrapped=True), *_profiled(result), *result.where, sep="\n"
    )


def _profiled(result: RunResult) -> Iterator[str]:
    """The latest trace and its table."""
    for file in result.profile[-2:]:
        yield f"profile      {file}"


def print_interrupted(interrupted: RunInterrupted) -> None:
    """Print how far the run came, what of it is on disk, and how to go on."""
    result = interrupted.result
    lines = [f"interrupted at step {result.step:,}; {result.saved}.", *result.where]
    if result.status == "FINISHED":
        lines[0] = f"training was complete at step {result.step:,}, its end was interrupted; " + (
            f"{result.saved}."
        )
    elif result.can_be_resumed:
        start = "" if result.checkpoints else "     (from its start)"
        lines.append(f"resume it: rlplug resume {result.run_id}{start}")
    if interrupted.__cause__ is not None:
        error = interrupted.__cause__
        lines.insert(0, f"error: {type(error).__name__}: {error}")
    # After SIGHUP nobody reads.
    with contextlib.suppress(OSError):
        print(f"rlplug: {lines[0]}", *lines[1:], sep="\n", file=sys.stderr, flush=True)


def print_json(result: RunResult) -> None:
    """Print the result as one line of JSON."""
    print(json.dumps(result.as_json()), flush=True)


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
        yield "not finite", f"weights, seen at step {result.nonfinite_step:,}"
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
