"""What is printed while the runs of a group are carried out, and at their end."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from rlplug.cli.output import print_json, print_next, terminal_width
from rlplug.quantities import format_path

if TYPE_CHECKING:
    from rlplug.runs.groups.display import MakeDisplay
    from rlplug.runs.groups.life import Outcome
    from rlplug.runs.groups.result import GroupResult

__all__ = ["finish_group", "print_interrupted"]


def finish_group(carry_out: Callable[[MakeDisplay], Outcome], *, quiet: bool, as_json: bool) -> int:
    """Carry out the runs of a group and print how they ended; returns the exit code."""
    from rlplug.runs.groups.display import GroupDisplay, QuietDisplay

    outcome = carry_out(QuietDisplay if quiet else GroupDisplay)
    result = outcome.result
    if result is not None and as_json:
        facts = result.as_json()
        for line in (*facts.pop("rows"), facts):
            print_json(line)
    elif result is not None and result.folder is not None and not (quiet or as_json):
        for line in result.lines(min(terminal_width(), 200)):
            click.echo(line)
        click.echo(f"\n{'study' if result.kind == 'trial' else 'group'} {result.group}")
        click.echo(f"in {format_path(result.folder)}")
        if result.run_id:
            click.echo(f"summary in MLflow: run {result.run_id}; rlplug ui")
        if not outcome.ended_by:
            print_next(_next(outcome, result))
    print_interrupted(outcome)
    return outcome.code


def _next(outcome: Outcome, result: GroupResult) -> str:
    if outcome.code and result.kind == "seed":
        return f"resume {result.group}"
    if result.kind == "trial" and result.best is not None and result.folder is not None:
        file = shlex.quote(format_path(result.folder / "best.toml"))
        return f"run --config {file} --seeds 5"
    return f"show {result.group}"


def print_interrupted(outcome: Outcome) -> None:
    """Print which runs have a checkpoint and how to go on, if a signal ended them."""
    if not outcome.ended_by:
        return
    lines = ["rlplug: interrupted before any run had begun."]
    if outcome.result is not None:
        saved = [member.name for member in outcome.members if member.has_checkpoint]
        lines = [f"rlplug: interrupted; runs with a checkpoint: {', '.join(saved) or 'none'}."]
        lines.append(f"next: rlplug resume {outcome.result.group}")
    # After SIGHUP nobody reads.
    with contextlib.suppress(OSError):
        print(*lines, sep="\n", file=sys.stderr, flush=True)
