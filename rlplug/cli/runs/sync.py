"""`rlplug runs sync`: bring runs to MLflow, and end those whose process died."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.errors import RequestError

if TYPE_CHECKING:
    from rlplug.tracking.location import RunFolder
    from rlplug.tracking.sync import Synced

__all__ = ["sync"]


@click.command(cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="[RUN]", required=False)
@click.option(
    "--force",
    is_flag=True,
    help="Also end stale runs: of other hosts, not heard of for 15 minutes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per run.")
@debug_option
def sync(run: str | None, force: bool, as_json: bool) -> int:
    """Bring ended runs to MLflow: what an outage or a kill kept from it.

    RUN is the id of a run or its first characters, its name, its folder, last, best:ENV, or a
    group, of which all runs are synced; without it, all runs that lack something or have died are.

    A run whose process died is FAILED, here and in MLflow. It has died if its lock is free. Runs
    of other hosts are left alone, as their locks may not be seen here; with --force, stale ones are
    ended, too. Check first that their processes have ended: one that goes on writes into a run that
    may be resumed elsewhere.
    """
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.sync import remove_leftovers, sync_all, sync_run

    root = runs_folder()
    if run is None:
        found = sync_all(root, _warn, force=force)
    else:
        found = (sync_run(one, _warn) for one in _meant(run))
    codes = []
    for one in found:
        click.echo(json.dumps(_as_json(one)) if as_json else "\n".join(_told(one)))
        problem = _problem(one)
        if problem:
            print(f"rlplug: error: {problem}", file=sys.stderr)
        codes.append(1 if problem else 0)
    if run is None:
        remove_leftovers(root)
    if not (codes or as_json):
        click.echo(f"everything in {root} is in MLflow.")
    return max(codes, default=0)


def _told(one: Synced) -> Iterator[str]:
    from rlplug.tracking.sync import counted

    name = f"run {one.run_id} ({one.run_name})"
    if one.died:
        yield f"{name} died at step {one.step:,}: it is {one.status}."
    yield f"{name}: {counted(one.points, one.files) or 'nothing'} uploaded."
    if one.created:
        yield f"  it was created in MLflow as run {one.created}."


def _problem(one: Synced) -> str:
    missing = f"not in MLflow yet: {one.missing}." if one.missing else ""
    return "\n  ".join(filter(None, [str(one.problem or ""), missing]))


def _as_json(one: Synced) -> dict[str, Any]:
    return {
        "run_id": one.run_id,
        "run_name": one.run_name,
        "status": one.status,
        "step": one.step,
        "died": one.died,
        "points": one.points,
        "files": one.files,
        "missing": one.missing,
        "problem": str(one.problem or ""),
    }


def _warn(message: str) -> None:
    print(f"rlplug: {message}", file=sys.stderr)


def _meant(text: str) -> Iterator[RunFolder]:
    """The folders of the runs that are meant."""
    from rlplug.tracking.location import RunFolder
    from rlplug.tracking.resolve import resolve

    for run in resolve(text):
        folder = None if run.folder is None else RunFolder.read(Path(run.folder).absolute())
        if folder is None:
            raise RequestError(
                f"run {run.run_id} ({run.name}) was not made in this runs folder.",
                "try: RLPLUG_HOME=/folder/of/runs rlplug runs sync RUN",
            )
        yield folder
