"""`rlplug runs`: list runs, remove them, and bring them to MLflow."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from rlplug.cli.command import Group
from rlplug.cli.completion import complete_runs
from rlplug.cli.options import COUNT, JSON, RUNS, option, with_options
from rlplug.cli.output import print_json, print_next, print_table
from rlplug.errors import RequestError, RlplugError, did_you_mean
from rlplug.quantities import format_age, format_bytes, format_number

if TYPE_CHECKING:
    from rlplug.review.record import RunRecord

__all__ = ["facts_of", "runs", "table_of"]

_UNITS = {"min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_STATUSES = ("running", "finished", "failed", "killed", "stale", "unreadable")


class _Since(click.ParamType[datetime]):
    """A day, a time, or how long ago."""

    name = "age"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> datetime:
        age = re.fullmatch(r"(\d{1,5})(min|h|d|w)", value)
        if age is not None:
            return datetime.now().astimezone() - timedelta(**{_UNITS[age[2]]: int(age[1])})
        try:
            return datetime.fromisoformat(value).astimezone()
        except ValueError:
            hint = "try: 2d, 12h, 2026-11-01"
            self.fail(f"{value!r} is neither an age nor a day.\n  {hint}", param, ctx)


@click.group(cls=Group, invoke_without_command=True)
@with_options(
    option("--env ID", "Filter by environment; may have *."),
    option("--algo NAME", "Filter by algorithm; may have *."),
    option("--group NAME", "Filter by group or study."),
    option("--status", "Filter by status; repeatable.", type=_STATUSES, many=True),
    option("--since AGE|DAY", "Runs that started since then: 2d, 12h, 2026-11-01.", type=_Since()),
    option(
        "--sort",
        "Newest first; best first in each environment; by name; longest first.",
        "by",
        type=("started", "best", "name", "step"),
        default="started",
    ),
    option("--limit N", "List the first N runs.", type=COUNT),
    option("--sizes", "Show how much disk each run takes, the largest first."),
    JSON,
)
@click.pass_context
def runs(
    context: click.Context,
    /,
    by: str,
    limit: int | None,
    sizes: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """List runs, remove them, and bring them to MLflow.

    A FAILED run is listed with its reason: an error, or the death of its process. A stale run is
    on another host that has not been heard of for 15 minutes.

    \b
    rlplug runs --env CartPole-v1 --sort best
    rlplug runs --status failed --since 2d
    """
    if context.invoked_subcommand is not None:
        return
    from rlplug.review.record import select, sort
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.reading import known_runs

    root = runs_folder()
    known = known_runs(root, _warn)
    given = {name: value for name, value in filters.items() if value is not None}
    found = sort(select(known, **given), by)
    if not found and not as_json:
        env, algo = given.get("env", ""), given.get("algo", "")
        guess = did_you_mean(env, {run.about.env for run in known}) if env else ""
        guess = guess or (
            did_you_mean(algo, {one.about.algorithm for one in known}) if algo else ""
        )
        none = f"none of the {len(known):,} runs in {root} matches{guess and f'; {guess}'}"
        click.echo(none if known else f"there are no runs in {root} yet")
        print_next("runs" if known else "run --algo NAME")
    elif sizes:
        _print_sizes(found, root, limit, as_json=as_json)
    elif as_json:
        for run in found[:limit]:
            print_json(facts_of(run))
    else:
        _print(found, limit)


def _print(found: Sequence[RunRecord], limit: int | None) -> None:
    shown = found[:limit]
    spare = ("started", "options", "algorithm", "env", "step", "last", "best @ step")
    rows = table_of(shown, datetime.now().astimezone())
    numbers = ("step", "best @ step", "last")
    print_table(rows, numbers=numbers, shortened=("name", "options"), spare=spare)
    if found[len(shown) :]:
        click.echo(f"and {len(found) - len(shown):,} more")
    pending = [run for run in shown if run.pending and run.status != "RUNNING"]
    for run in pending:
        click.echo(f"{run.short} is not complete in MLflow")
    print_next("runs sync" if pending else f"show {shown[0].short}")


def table_of(found: Sequence[RunRecord], now: datetime) -> list[dict[str, str]]:
    """A row per run; algorithm and environment only where the names do not tell them."""
    named = all(run.about.algorithm in run.name and run.about.env in run.name for run in found)
    rows = []
    for run in found:
        step, about = f"{run.step:,}", run.about
        if run.status != "FINISHED" and about.steps > 0:
            step = f"{100 * run.step // about.steps}%  {step}"
        best = "" if run.best is None else f"{format_number(run.best[1])} @ {run.best[0]:,}"
        rows.append(
            {
                "run": run.short,
                "name": run.name,
                "algorithm": "" if named else about.algorithm,
                "env": "" if named else about.env,
                "status": run.shown_status,
                "step": step,
                "best @ step": best,
                "last": "" if run.headline is None else format_number(run.headline[1]),
                "started": format_age(run.started, now),
                "options": about.shown_options,
            }
        )
    return rows


def facts_of(run: RunRecord) -> dict[str, Any]:
    """What is known of the run, for JSON."""
    facts = attrs.asdict(run, recurse=False) | attrs.asdict(run.about, recurse=False)
    for name in ("about", "latest", "experiment_id", "tracked_id"):
        del facts[name]
    best = run.best and {"step": run.best[0], "return_mean": run.best[1]}
    return {**facts, "best": best, "return": run.score}


def _print_sizes(
    found: Sequence[RunRecord], root: Path, limit: int | None, *, as_json: bool
) -> None:
    """How much disk runs take; a file with several links counts once."""
    from rlplug.tracking.disk import usage_of

    used = sorted((usage_of(run, root) for run in found), key=lambda one: -one.total)
    rows = []
    for one in used[:limit]:
        facts = {"run_id": one.run.run_id, "name": one.run.name, "total": one.total, **one.parts}
        if as_json:
            print_json(facts)
        parts = {part: format_bytes(size) if size else "" for part, size in one.parts.items()}
        row = {"run": one.run.short, "name": one.run.name, "total": format_bytes(one.total)}
        rows.append(row | parts)
    if as_json:
        return
    spare = list(used[0].parts)[::-1]
    print_table(rows, numbers=("total", *spare), shortened=("name",), spare=spare)
    total = format_bytes(sum(one.total for one in used))
    click.echo(f"{len(used):,} run{'s' if used[1:] else ''} in {root}: {total}")
    print_next("runs rm RUN...")


def _warn(message: str) -> None:
    print(f"rlplug: {message}", file=sys.stderr)


@runs.command()
@RUNS
@option("--yes", "Do not ask.")
def rm(runs: tuple[str, ...], yes: bool) -> int:
    """Remove runs: their folders, their artifacts, and the runs in MLflow.

    RUN is an id or its first characters, a name, last, best:ENV, or a group, of which all runs
    are removed. MLflow keeps the metrics of a deleted run until mlflow gc.

    \b
    rlplug runs rm last
    rlplug runs rm ppo-CartPole-v1-89b0 --yes
    """
    from rlplug.tracking.disk import remove_run, usage_of
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.resolve import resolve

    root, total = runs_folder(), 0
    found = {run.run_id: run for text in runs for run in resolve(text, root)}
    for run in found.values():
        if run.status == "RUNNING":
            message = f"run {run.run_id} ({run.name}) is in progress: nothing was removed."
            raise RequestError(message, "try: end it first, with Ctrl-C or kill")
    for run in found.values():
        size = usage_of(run, root).total
        total += size
        click.echo(f"{run.run_id}  {run.name}  {run.shown_status}  {format_bytes(size)}")
    many = f"{len(found):,} run{'s' if len(found) > 1 else ''}, {format_bytes(total)}"
    places = sorted({run.uri for run in found.values() if run.uri and run.experiment_id})
    also = f", also from MLflow at {' and '.join(places)}" if places else ""
    if not yes and not click.confirm(f"remove {many}{also}?"):
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
    print_next("runs")
    return max(codes)


@runs.command()
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_runs)
@option("--stale", "Also end stale runs, which are on other hosts.")
@JSON
def sync(run: str | None, stale: bool, as_json: bool) -> int:
    """Bring runs to MLflow after an outage or a kill, and end those that have died.

    RUN is named as for rm; without it, all runs that lack something are synced. Check that the
    processes of stale runs have ended before you use --stale.

    \b
    rlplug runs sync
    rlplug runs sync last
    """
    from rlplug.tracking.location import RunFolder, runs_folder
    from rlplug.tracking.resolve import resolve
    from rlplug.tracking.sync import counted, remove_leftovers, sync_all, sync_run

    root, codes, folders = runs_folder(), [], []
    for one in resolve(run) if run is not None else ():
        folder = None if one.folder is None else RunFolder.read(one.folder.absolute())
        if folder is None:
            message = f"run {one.run_id} ({one.name}) was not made in this runs folder."
            raise RequestError(message, "try: RLPLUG_HOME=/folder/of/runs rlplug runs sync RUN")
        folders.append(folder)
    synced = (sync_run(folder, _warn) for folder in folders)
    for done in synced if folders else sync_all(root, _warn, force=stale):
        missing = f"not in MLflow yet: {done.missing}." if done.missing else ""
        problem = "\n  ".join(filter(None, [str(done.problem or ""), missing]))
        name = f"run {done.run_id} ({done.run_name})"
        if as_json:
            print_json(done)
        else:
            if done.died:
                click.echo(f"{name} died at step {done.step:,}: it is {done.status}.")
            new = f"; it was created in MLflow as run {done.created}" if done.created else ""
            click.echo(f"{name}: {counted(done.points, done.files) or 'nothing'} uploaded{new}.")
        if problem:
            print(f"rlplug: error: {problem}", file=sys.stderr)
        codes.append(int(bool(problem)))
    if run is None:
        remove_leftovers(root)
    if not as_json:
        if not codes:
            click.echo(f"everything in {root} is in MLflow.")
        print_next("runs sync" if any(codes) else "ui")
    return max(codes, default=0)
