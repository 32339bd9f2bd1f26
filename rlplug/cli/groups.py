"""What is printed while the runs of a group are carried out, and at their end."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rlplug.cli.terminal import console
from rlplug.quantities import format_number, format_path

if TYPE_CHECKING:
    from rlplug.runs.groups.carry_out import MakeDisplay
    from rlplug.runs.groups.group import Group, Outcome
    from rlplug.runs.groups.seeds_summary import SeedsSummary
    from rlplug.runs.groups.study_summary import StudySummary

__all__ = ["finish_group"]


def finish_group(
    carry_out: Callable[[MakeDisplay], Outcome[Any]], *, quiet: bool, as_json: bool
) -> int:
    """Carry out the runs of a group and print how they ended; returns the exit code."""
    from rlplug.runs.groups.display import GroupDisplay, QuietDisplay

    outcome = carry_out(QuietDisplay if quiet else GroupDisplay)
    group, summary = outcome.group, outcome.summary
    if group is not None and summary is not None:
        if as_json:
            _print_json(outcome, group)
        elif not quiet:
            shown = console()
            for line in (*summary.lines(shown.width), "", *_where(outcome, group)):
                shown.print(line, markup=False, soft_wrap=True)
    if outcome.ended_by:
        # After SIGHUP nobody reads.
        with contextlib.suppress(OSError):
            print("\n  ".join(_interrupted(outcome)), file=sys.stderr, flush=True)
    return outcome.code


def _print_json(outcome: Outcome[Any], group: Group) -> None:
    """One line; of seeds, one for each before it."""
    assert outcome.summary is not None
    of_all = outcome.summary.as_json()
    if not group.is_study:
        for run in of_all.pop("runs"):
            print(json.dumps(run))
    place = {"summary_run_id": outcome.run_id, "folder": str(group.folder)}
    print(json.dumps({**of_all, **place}), flush=True)


def _where(outcome: Outcome[Any], group: Group) -> Iterator[str]:
    """What is best, where to look, and how to go on."""
    if group.is_study and outcome.summary is not None:
        yield from _best(outcome.summary, group, ended=not outcome.ended_by)
    yield f"{'study' if group.is_study else 'group'} {group.name}"
    yield f"in {format_path(group.folder)}"
    if outcome.run_id:
        yield f"summary in MLflow: run {outcome.run_id}"
        yield "look at it: rlplug ui"
    if outcome.code and not (outcome.ended_by or group.is_study):
        yield f"go on with those that have not finished: {_resume(group)}"


def _best(summary: StudySummary, group: Group, *, ended: bool) -> Iterator[str]:
    """The best trial, and how to train with its options."""
    from rlplug.config.toml import toml_value

    best, run = summary.best, summary.best_run
    if best is None:
        return
    score = format_number(best.proposal.score)
    yield f"best: trial {best.proposal.number}, {summary.label} {score}"
    for name, value in best.proposal.values.items():
        yield f"  {name} = {toml_value(value)}"
    if run is not None and ended:
        file = shlex.quote(format_path(group.folder / "best.toml"))
        yield f"train with its options: rlplug run --config {file} --seeds 5"
        yield f"the same run again: rlplug run --like {run.short}"


def _interrupted(outcome: Outcome[SeedsSummary]) -> Iterator[str]:
    if outcome.group is None:
        yield "rlplug: interrupted before any run had begun."
        return
    saved = [member.name for member in outcome.members if member.has_checkpoint]
    yield f"rlplug: interrupted; of {', '.join(saved) or 'no run'} there is a checkpoint."
    yield f"go on with all of them: {_resume(outcome.group)}"


def _resume(group: Group) -> str:
    from rlplug.tracking.location import runs_folder

    home = f"RLPLUG_HOME={shlex.quote(str(group.root))} "
    return f"{'' if group.root == runs_folder() else home}rlplug resume {group.name}"
