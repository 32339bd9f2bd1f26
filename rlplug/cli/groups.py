"""What is printed while the runs of a group are carried out, and at their end."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.output import print_next, terminal_width
from rlplug.quantities import format_path

if TYPE_CHECKING:
    from rlplug.runs.groups.carry_out import MakeDisplay
    from rlplug.runs.groups.group import Group, Outcome

__all__ = ["finish_group"]


def finish_group(
    carry_out: Callable[[MakeDisplay], Outcome[Any]], *, quiet: bool, as_json: bool
) -> int:
    """Carry out the runs of a group and print how they ended; returns the exit code."""
    from rlplug.runs.groups.display import GroupDisplay, QuietDisplay

    outcome = carry_out(QuietDisplay if quiet else GroupDisplay)
    group, summary = outcome.group, outcome.summary
    if group is not None and summary is not None and as_json:
        facts = summary.as_json()
        rows = [] if group.is_study else facts.pop("runs")
        place = {"summary_run_id": outcome.run_id, "folder": str(group.folder)}
        print(*map(json.dumps, [*rows, {**facts, **place}]), sep="\n", flush=True)
    elif group is not None and summary is not None and not quiet:
        for line in summary.lines(min(terminal_width(), 200)):
            click.echo(line)
        click.echo(f"\n{'study' if group.is_study else 'group'} {group.name}")
        click.echo(f"in {format_path(group.folder)}")
        if outcome.run_id:
            click.echo(f"summary in MLflow: run {outcome.run_id}; rlplug ui")
        if not outcome.ended_by:
            print_next(_next(outcome, group))
    if outcome.ended_by:
        # After SIGHUP nobody reads.
        with contextlib.suppress(OSError):
            print("\n".join(_interrupted(outcome)), file=sys.stderr, flush=True)
    return outcome.code


def _next(outcome: Outcome[Any], group: Group) -> str:
    if outcome.code and not group.is_study:
        return _resume(group)
    if group.is_study and outcome.is_complete:
        file = shlex.quote(format_path(group.folder / "best.toml"))
        return f"run --config {file} --seeds 5"
    return f"show {group.name}"


def _interrupted(outcome: Outcome[Any]) -> list[str]:
    if outcome.group is None:
        return ["rlplug: interrupted before any run had begun."]
    saved = [member.name for member in outcome.members if member.has_checkpoint]
    return [
        f"rlplug: interrupted; runs with a checkpoint: {', '.join(saved) or 'none'}.",
        f"next: rlplug {_resume(outcome.group)}",
    ]


def _resume(group: Group) -> str:
    return f"resume {group.name}"
