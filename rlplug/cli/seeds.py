"""`rlplug run --seeds` and `rlplug resume GROUP`: progress, and what is printed at the end."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rlplug.cli.terminal import console
from rlplug.quantities import format_path

if TYPE_CHECKING:
    from rlplug.runs.seeds.several import MakeDisplay, SeedsOutcome, ShownSeeds

__all__ = ["finish_seeds"]


def finish_seeds(
    carry_out: Callable[[MakeDisplay], SeedsOutcome], *, quiet: bool, as_json: bool
) -> int:
    """Carry out several seeds and print how they ended; returns the exit code."""

    def display(title: str) -> ShownSeeds:
        from rlplug.runs.seeds.display import QuietSeeds, display_for

        return QuietSeeds(title) if quiet else display_for(title)

    outcome = carry_out(display)
    if as_json:
        _print_json(outcome)
    elif not quiet and outcome.summary is not None:
        shown = console()
        width = shown.width
        for line in (*outcome.summary.lines(width), "", *_where(outcome)):
            shown.print(line, markup=False, soft_wrap=True)
    if outcome.ended_by:
        # After SIGHUP nobody reads.
        with contextlib.suppress(OSError):
            print("\n  ".join(_interrupted(outcome)), file=sys.stderr, flush=True)
    return outcome.code


def _print_json(outcome: SeedsOutcome) -> None:
    if outcome.summary is None:
        return
    summary = outcome.summary
    for run in summary.runs:
        print(json.dumps(summary.run_json(run)))
    of_all = {name: value for name, value in summary.as_json().items() if name != "runs"}
    folder = "" if outcome.group is None else str(outcome.group.folder)
    print(json.dumps({**of_all, "summary_run_id": outcome.run_id, "folder": folder}), flush=True)


def _where(outcome: SeedsOutcome) -> Iterator[str]:
    """Where to look, and how to go on."""
    assert outcome.group is not None
    yield f"group {outcome.group.name}"
    yield f"in {format_path(outcome.group.folder)}"
    if outcome.run_id:
        yield f"summary in MLflow: run {outcome.run_id}"
        yield "look at it: rlplug ui"
    if outcome.code and not outcome.ended_by:
        yield f"go on with those that have not finished: {_resume(outcome)}"


def _interrupted(outcome: SeedsOutcome) -> Iterator[str]:
    if outcome.group is None:
        yield "rlplug: interrupted before any seed had begun."
        return
    saved = [str(one.seed) for one in outcome.states if one.has_checkpoint]
    seeds = f"seed{'s' if saved[1:] else ''} {', '.join(saved)}" if saved else "no seed"
    yield f"rlplug: interrupted; of {seeds} there is a checkpoint."
    yield f"go on with all of them: {_resume(outcome)}"


def _resume(outcome: SeedsOutcome) -> str:
    from rlplug.tracking.location import default_folder

    assert outcome.group is not None
    root = outcome.group.root
    home = "" if root == default_folder() else f"RLPLUG_HOME={shlex.quote(str(root))} "
    return f"{home}rlplug resume {outcome.group.name}"
