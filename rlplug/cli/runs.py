"""`rlplug runs`: list runs, and mark those whose process died."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Group
from rlplug.cli.parameters import debug_option

if TYPE_CHECKING:
    from rlplug.review.record import RunRecord
    from rlplug.tracking.reap import Reaped

__all__ = ["runs"]


@click.group(cls=Group, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per run.")
@debug_option
@click.pass_context
def runs(context: click.Context, as_json: bool) -> None:
    """List the runs in the runs folder, newest first.

    \b
    rlplug runs                    runs in RLPLUG_HOME, else in ./rlplug_runs
    rlplug runs reap               mark runs whose process died, and upload what they have
    """
    if context.invoked_subcommand is not None:
        return
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.reap import reap_quietly
    from rlplug.tracking.recorded import recorded_runs

    root = runs_folder()
    reap_quietly(root)
    rows = recorded_runs(root)
    if as_json:
        for row in rows:
            click.echo(json.dumps(_record_json(row)))
        return
    if not rows:
        click.echo(f"there are no runs in {root} yet.")
        return
    heading = ("run", "name", "status", "step", "started", "return")
    for line in _columns([heading, *map(_record_text, rows)]):
        click.echo(line)
    for row in rows:
        if row.pending:
            click.echo(f"{row.short} is not complete in MLflow: rlplug sync {row.short}")


@runs.command()
@click.option(
    "--force", is_flag=True, help="Also runs of other hosts without a heartbeat for 15 minutes."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per run.")
@debug_option
def reap(force: bool, as_json: bool) -> int:
    """Mark runs whose process died as FAILED, and upload what they have.

    A run is dead if its lock is free. Runs of other hosts are left alone, as their locks may not
    be seen here.
    """
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.reap import reap as dead_runs
    from rlplug.tracking.reap import reap_recorded, remove_leftovers

    root = runs_folder()
    codes = []
    for one in itertools.chain(dead_runs(root, force=force), reap_recorded(root)):
        click.echo(json.dumps(_as_json(one)) if as_json else "\n".join(_told(one)))
        codes.append(1 if one.problem else 0)
    remove_leftovers(root)
    if not (codes or as_json):
        click.echo(f"no run in {root} has died.")
    return max(codes, default=0)


def _told(one: Reaped) -> Iterator[str]:
    yield f"run {one.run_id} ({one.run_name}) died at step {one.step:,}: marked as {one.status}."
    done = one.uploaded
    if one.problem:
        yield f"  not uploaded: {one.problem}"
        yield f"  to upload it later: rlplug sync {one.run_id}"
    elif done is not None:
        yield f"  uploaded: {done.points:,} metric values, {done.files:,} files."
        if done.left:
            yield f"  not uploaded: {done.left.shown}: rlplug sync {one.run_id}"


def _as_json(one: Reaped) -> dict[str, Any]:
    done = one.uploaded
    return {
        "run_id": one.run_id,
        "run_name": one.run_name,
        "status": one.status,
        "step": one.step,
        "points": 0 if done is None else done.points,
        "files": 0 if done is None else done.files,
        "problem": one.problem,
    }


def _record_text(run: RunRecord) -> tuple[str, ...]:
    score = "" if run.score is None else f"{run.score:,.4g}"
    started = run.started[:19].replace("T", " ")
    return (run.short, run.name, run.status, f"{run.step:,}", started, score)


def _record_json(run: RunRecord) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "name": run.name,
        "status": run.status,
        "step": run.step,
        "started": run.started,
        "return": run.score,
        "pending": run.pending,
        "folder": str(run.folder),
    }


def _columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
