"""`rlplug diff`: what differs between two runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.errors import RequestError

if TYPE_CHECKING:
    from rlplug.review.provenance import Difference, Provenance
    from rlplug.review.record import RunRecord

__all__ = ["diff"]


@click.command(cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="RUN")
@click.argument("other", shell_complete=complete_runs, metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per difference.")
@debug_option
def diff(run: str, other: str, as_json: bool) -> None:
    """Show what differs between two runs: options, plugins, versions, code and machine.

    RUN is the id of a run or its first characters, its name, its folder, last, best:ENV, or a
    group, of which the best run is taken. Where a run is recorded is not a difference.

    \b
    rlplug diff last best:CartPole-v1
    """
    from rlplug.review.provenance import differences
    from rlplug.tracking.resolve import resolve_one

    runs = resolve_one(run), resolve_one(other)
    first, second = (_provenance(one) for one in runs)
    found = differences(first, second)
    if as_json:
        for one in found:
            click.echo(json.dumps(one._asdict()))
        return
    for letter, record in zip("AB", runs, strict=True):
        click.echo(f"{letter}  {record.short}  {record.name}")
    _print(first, second, found)


def _provenance(run: RunRecord) -> Provenance:
    from rlplug.tracking.details import read_provenance_of

    found = read_provenance_of(run)
    if found is None:
        raise RequestError(
            f"run {run.run_id} ({run.name}) has no record of what it was made from.",
            "try: rlplug compare RUN RUN, which compares options that are not the defaults",
        )
    return found


def _print(first: Provenance, second: Provenance, found: Sequence[Difference]) -> None:
    from rlplug.cli.table import Column, table_lines, terminal_width

    if not found:
        click.echo("nothing that is recorded differs, but their results may.")
        return
    columns = [
        Column(heading="part", cells=[one.part for one in found], rank=1),
        Column(heading="name", cells=[one.name for one in found], shortest=16),
        Column(
            heading="A",
            cells=[one.value_a + _origin(first, one) for one in found],
            shortest=12,
            cut_end=True,
        ),
        Column(
            heading="B",
            cells=[one.value_b + _origin(second, one) for one in found],
            shortest=12,
            cut_end=True,
        ),
    ]
    click.echo("")
    for line in table_lines(columns, terminal_width()):
        click.echo(line)


def _origin(run: Provenance, one: Difference) -> str:
    """Where an option that is not the default comes from: ` (--set)`."""
    option = run.options.get(one.name) if one.part == "options" else None
    return "" if option is None or option.origin in ("", "default") else f" ({option.origin})"
