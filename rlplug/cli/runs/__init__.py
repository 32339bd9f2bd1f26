"""`rlplug runs`: list runs, remove them, and bring them to MLflow."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Group
from rlplug.cli.parameters import debug_option
from rlplug.cli.runs.du import du
from rlplug.cli.runs.rm import rm
from rlplug.cli.runs.sync import sync
from rlplug.errors import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from rlplug.review.record import RunRecord

__all__ = ["runs"]

_AGE = re.compile(r"(\d+)(min|h|d|w)")
_UNITS = {"min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_STATUSES = ("running", "finished", "failed", "killed", "stale", "unreadable")


def _since(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> datetime | None:
    """A day, a time, or how long ago."""
    if value is None:
        return None
    age = _AGE.fullmatch(value)
    try:
        if age is not None:
            return datetime.now().astimezone() - timedelta(**{_UNITS[age[2]]: int(age[1])})
        return datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{value!r} is neither an age nor a day.\n  try: 2d, 12h, 2026-11-01"
        ) from error


@click.group(cls=Group, invoke_without_command=True)
@click.option("--env", default="", metavar="ID", help="Only runs in this environment; may have *.")
@click.option("--algo", default="", metavar="NAME", help="Only runs of this algorithm.")
@click.option("--group", default="", metavar="NAME", help="Only runs that differ in their seeds.")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(_STATUSES, case_sensitive=False),
    help="Only runs that stand so; may be given several times.",
)
@click.option(
    "--since",
    callback=_since,
    metavar="AGE|DAY",
    help="Only runs started since then: 2d, 12h, 2026-11-01.",
)
@click.option(
    "--sort",
    "by",
    type=click.Choice(["started", "best", "name", "step"]),
    default="started",
    show_default=True,
    help="Newest first; the best first in each environment; by name; longest first.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N runs.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per run.")
@debug_option
@click.pass_context
def runs(
    context: click.Context,
    env: str,
    algo: str,
    group: str,
    status: tuple[str, ...],
    since: datetime | None,
    by: str,
    limit: int | None,
    as_json: bool,
) -> None:
    """List runs, newest first: those in the runs folder, and those of a tracking server.

    A FAILED run is listed with what ended it: (error) an exception, (process died) a kill or a
    power cut. A run is stale if it is of another host and has not been heard of for 15 minutes: its
    process has died, or its host cannot write the folder. rlplug runs sync --force ends it.

    \b
    rlplug runs                    runs in RLPLUG_HOME, else in ./rlplug_runs
    rlplug runs --env CartPole-v1 --sort best
    rlplug runs --status failed --since 2d
    rlplug runs du                 show how much disk each takes
    rlplug runs rm RUN             remove one, also from MLflow
    rlplug runs sync               bring to MLflow what an outage or a kill kept from it
    """
    if context.invoked_subcommand is not None:
        return
    from rlplug.review.record import select, sort
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.reading import known_runs

    root = runs_folder()
    known = known_runs(root, _warn)
    found = select(known, env=env, algo=algo, group=group, status=status, since=since)
    shown = sort(found, by)[:limit]
    if as_json:
        from rlplug.cli.runs.listing import as_json as facts

        for run in shown:
            click.echo(json.dumps(facts(run)))
    elif shown:
        _print(shown, left_out=len(found) - len(shown))
    else:
        click.echo(_none(root, known, env, algo))


def _print(shown: Sequence[RunRecord], left_out: int) -> None:
    from rlplug.cli.runs.listing import columns_of
    from rlplug.cli.table import table_lines, terminal_width

    columns = columns_of(shown, now=datetime.now().astimezone())
    for line in table_lines(columns, terminal_width()):
        click.echo(line)
    if left_out:
        click.echo(f"and {left_out:,} more")
    for run in shown:
        if run.pending and run.status != "RUNNING":
            click.echo(f"{run.short} is not complete in MLflow: rlplug runs sync {run.short}")


def _none(root: Path, known: Sequence[RunRecord], env: str, algo: str) -> str:
    if not known:
        return f"there are no runs in {root} yet."
    guesses = (
        did_you_mean(env, {run.about.env for run in known}) if env else "",
        did_you_mean(algo, {run.about.algorithm for run in known}) if algo else "",
    )
    guess = next((f"; {one}" for one in guesses if one), "")
    return f"none of the {len(known):,} runs in {root} is like that{guess}"


def _warn(message: str) -> None:
    print(f"rlplug: {message}", file=sys.stderr)


runs.add_command(rm)
runs.add_command(du)
runs.add_command(sync)
