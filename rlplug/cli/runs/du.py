"""`rlplug runs du`: how much disk each run takes."""

from __future__ import annotations

import json

import click

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option

__all__ = ["du"]


@click.command(cls=Command)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the N largest runs.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per run.")
@debug_option
def du(limit: int | None, as_json: bool) -> None:
    """Show how much disk the runs of the runs folder take, the largest first.

    Artifacts are copies that MLflow has on this disk; a file with several links counts once.
    """
    from rlplug.cli.table import Column, table_lines, terminal_width
    from rlplug.quantities import format_bytes
    from rlplug.tracking.disk import PARTS, usage_of
    from rlplug.tracking.location import runs_folder
    from rlplug.tracking.reading import recorded_runs

    root = runs_folder()
    found = sorted((usage_of(run, root) for run in recorded_runs(root)), key=lambda one: -one.total)
    if as_json:
        for one in found[:limit]:
            facts = {"run_id": one.run.run_id, "name": one.run.name, **one.parts}
            click.echo(json.dumps({**facts, "total": one.total}))
        return
    shown = found[:limit]
    columns = [
        Column(heading="run", cells=[one.run.short for one in shown]),
        Column(heading="name", cells=[one.run.name for one in shown], shortest=18),
        Column(heading="total", cells=[format_bytes(one.total) for one in shown], right=True),
    ]
    for rank, part in enumerate(PARTS, 1):
        sizes = [one.parts[part] for one in shown]
        cells = [format_bytes(size) if size else "" for size in sizes]
        columns.append(Column(heading=part, cells=cells, right=True, rank=rank))
    for line in table_lines(columns, terminal_width()) if shown else ():
        click.echo(line)
    total = format_bytes(sum(one.total for one in found))
    click.echo(f"{len(found):,} run{'' if len(found) == 1 else 's'} in {root}: {total}")
    if found:
        click.echo("to remove runs: rlplug runs rm RUN...")
