"""`rlplug runs rm`: remove runs from the disk and from MLflow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.errors import RequestError, RlplugError

if TYPE_CHECKING:
    from rlplug.review.record import RunRecord

__all__ = ["rm"]


@click.command(cls=Command)
@click.argument("runs", shell_complete=complete_runs, metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@debug_option
def rm(runs: tuple[str, ...], yes: bool) -> int:
    """Remove runs: their folders, their artifacts, and the runs in MLflow.

    RUN is the id of a run or its first characters, its name, last, best:ENV, or a group, of which
    all runs are removed. Runs in progress are refused. MLflow keeps the metrics of a deleted run
    until mlflow gc.
    """
    from rlplug.quantities import format_bytes
    from rlplug.tracking.disk import remove_run, usage_of
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.resolve import resolve

    root = runs_folder()
    found = {run.run_id: run for text in runs for run in resolve(text, root)}
    _refuse_running(list(found.values()))
    total = 0
    for run in found.values():
        size = usage_of(run, root).total
        total += size
        click.echo(f"{run.run_id}  {run.name}  {run.shown_status}  {format_bytes(size)}")
    many = "this run" if len(found) == 1 else f"these {len(found):,} runs"
    places = sorted({run.uri for run in found.values() if run.uri and run.experiment_id})
    also = f", also from MLflow at {' and '.join(places)}" if places else ""
    if not yes and not click.confirm(f"remove {many}, {format_bytes(total)}{also}?"):
        return 1
    freed, codes = 0, [0]
    for run in found.values():
        try:
            freed += remove_run(run, root)
        except RlplugError as error:
            print(f"rlplug: error: {error}", file=sys.stderr)
            codes.append(error.exit_code)
    removed = len(found) - len(codes) + 1
    click.echo(f"removed {removed:,} run{'' if removed == 1 else 's'}: {format_bytes(freed)} freed")
    return max(codes)


def _refuse_running(runs: Sequence[RunRecord]) -> None:
    for run in runs:
        if run.status == "RUNNING":
            raise RequestError(
                f"run {run.run_id} ({run.name}) is in progress: nothing was removed.",
                "try: end it first, with Ctrl-C or kill",
            )
