"""`rlplug runs reap`: mark runs whose process died."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option

if TYPE_CHECKING:
    from rlplug.tracking.reap import Reaped

__all__ = ["reap"]


@click.command(cls=Command)
@click.option(
    "--force",
    is_flag=True,
    help="Also mark stale runs: of other hosts, not heard of for 15 minutes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per run.")
@debug_option
def reap(force: bool, as_json: bool) -> int:
    """Mark runs whose process died as FAILED, and upload what they have.

    A run is dead if its lock is free. Runs of other hosts are left alone, as their locks may not
    be seen here; with --force, stale ones are marked, too. Check first that their processes have
    ended: one that goes on writes into a run that may be resumed elsewhere.
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
