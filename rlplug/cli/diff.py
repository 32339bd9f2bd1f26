"""`rlplug diff`: what differs between two runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option

if TYPE_CHECKING:
    from rlplug.review.record import RunRecord
    from rlplug.tracking.facts import Difference

__all__ = ["diff"]


@click.command(cls=Command)
@click.argument("run", metavar="RUN")
@click.argument("other", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per difference.")
@debug_option
def diff(run: str, other: str, as_json: bool) -> None:
    """Show what differs between two runs: options, plugins, code and machine.

    RUN is the id of a run or its first characters, its name, its folder, last, best:ENV, or a
    group, of which the best run is taken. Where a run is recorded is not a difference.

    \b
    rlplug diff last best:CartPole-v1
    """
    from rlplug.tracking.facts import differences
    from rlplug.tracking.resolve import resolve_one

    first, second = resolve_one(run), resolve_one(other)
    found = differences(first, second)
    if as_json:
        for one in found:
            click.echo(json.dumps(one._asdict()))
        return
    _print(first, second, found)


def _print(first: RunRecord, second: RunRecord, found: list[Difference]) -> None:
    from rlplug.cli.table import Column, table_lines, terminal_width

    for letter, run in (("A", first), ("B", second)):
        click.echo(f"{letter}  {run.short}  {run.name}")
    if not found:
        click.echo("nothing that is recorded differs, but their results may.")
        return
    columns = [
        Column(heading="part", cells=[one.part for one in found], rank=1),
        Column(heading="name", cells=[one.name for one in found], shortest=16),
        Column(heading="A", cells=[one.value_a for one in found], shortest=12, cut_end=True),
        Column(heading="B", cells=[one.value_b for one in found], shortest=12, cut_end=True),
    ]
    click.echo("")
    for line in table_lines(columns, terminal_width()):
        click.echo(line)
