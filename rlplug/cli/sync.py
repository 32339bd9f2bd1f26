"""`rlplug sync`: upload what an outage of MLflow left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option
from rlplug.errors import RequestError, RlplugError, RunFailedError

if TYPE_CHECKING:
    from rlplug.tracking.location import RunFolder

__all__ = ["sync"]


@click.command(cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@debug_option
def sync(run: str | None) -> int:
    """Upload metrics and files of ended runs that are not in MLflow yet.

    RUN is the id of a run or its first characters, its name, or last; without it, all ended runs
    that lack something are uploaded.
    """
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.reap import reap_quietly

    root = runs_folder()
    if run is not None:
        return _sync(_found(run))
    reap_quietly(root)
    waiting = _waiting(root)
    if not waiting:
        click.echo(f"everything in {root} is in MLflow.")
    codes = []
    for one in waiting:
        try:
            codes.append(_sync(one))
        except RlplugError as error:
            print(f"rlplug: error: {error}", file=sys.stderr)
            codes.append(1)
    return max(codes, default=0)


def _sync(run: RunFolder) -> int:
    from rlplug.tracking.lock import RunLock
    from rlplug.tracking.reap import mark_dead
    from rlplug.tracking.upload import upload_run

    with RunLock.take(run.path):
        mark_dead(run.path)
        try:
            done = upload_run(run.path, _warn)
        except RequestError as error:
            raise RunFailedError(error.message, *error.hints) from error
    click.echo(
        f"run {run.run_id} ({run.run_name}): "
        f"{done.points:,} metric values and {done.files:,} files uploaded."
    )
    if done.left:
        print(f"rlplug: error: not in MLflow yet: {done.left.shown}.", file=sys.stderr)
        return 1
    return 0


def _warn(message: str) -> None:
    print(f"rlplug: {message}", file=sys.stderr)


def _found(run: str) -> RunFolder:
    from rlplug.checkpoint.lookup import find_run
    from rlplug.tracking.location import RunFolder

    folder = find_run(run)
    found = RunFolder.read(folder.absolute())
    if found is None:
        raise RequestError(
            f"run {run!r} was not made in this runs folder: {folder} only has its checkpoints.",
            "try: RLPLUG_HOME=/folder/of/runs rlplug sync RUN",
        )
    return found


def _waiting(root: Path) -> list[RunFolder]:
    """The ended runs that lack something in MLflow."""
    from rlplug.tracking.location import runs_in
    from rlplug.tracking.status import RUNNING, RunStatus

    waiting = []
    for run in runs_in(root):
        status = RunStatus.read(run.path)
        if status is not None and status.status != RUNNING and status.pending:
            waiting.append(run)
    return waiting
