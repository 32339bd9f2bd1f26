"""`rlplug sync`: upload what an outage of MLflow left behind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.errors import RequestError, RlplugError, RunFailedError

if TYPE_CHECKING:
    from rlplug.tracking.location import RunFolder

__all__ = ["sync"]


@click.command(cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="[RUN]", required=False)
@debug_option
def sync(run: str | None) -> int:
    """Upload metrics and files of ended runs that are not in MLflow yet.

    RUN is the id of a run or its first characters, its name, its folder, last, best:ENV, or a
    group, of which all runs are uploaded; without it, all ended runs that lack something are.
    """
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.reap import reap_quietly

    root = runs_folder()
    if run is not None:
        return max(_sync_all(_found(run)))
    reap_quietly(root)
    waiting = _waiting(root)
    if not waiting:
        click.echo(f"everything in {root} is in MLflow.")
    return max(_sync_all(waiting), default=0)


def _sync_all(runs: Sequence[RunFolder]) -> list[int]:
    """The exit code of each run; the failure of one is printed, and the others go on."""
    if len(runs) == 1:
        return [_sync(runs[0])]
    codes = []
    for one in runs:
        try:
            codes.append(_sync(one))
        except RlplugError as error:
            print(f"rlplug: error: {error}", file=sys.stderr)
            codes.append(1)
    return codes


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
    if done.created:
        click.echo(f"  it was created in MLflow as run {done.created}.")
    if done.left:
        print(f"rlplug: error: not in MLflow yet: {done.left.shown}.", file=sys.stderr)
        return 1
    return 0


def _warn(message: str) -> None:
    print(f"rlplug: {message}", file=sys.stderr)


def _found(text: str) -> list[RunFolder]:
    """The folders of the runs that are meant."""
    from rlplug.tracking.location import RunFolder
    from rlplug.tracking.resolve import resolve

    found = []
    for run in resolve(text):
        folder = None if run.folder is None else RunFolder.read(run.folder.absolute())
        if folder is None:
            raise RequestError(
                f"run {run.run_id} ({run.name}) was not made in this runs folder.",
                "try: RLPLUG_HOME=/folder/of/runs rlplug sync RUN",
            )
        found.append(folder)
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
