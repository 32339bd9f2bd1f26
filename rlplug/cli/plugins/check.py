"""`rlplug plugins check NAME`: the conformance kit without pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlplug.cli.complete import names_of
from rlplug.cli.debug import debug_option
from rlplug.registry import ADDON, ALGORITHM

if TYPE_CHECKING:
    from rlplug.testing.report import Outcome

__all__ = ["check"]

_SIGNS = {"passed": ("ok", "green"), "failed": ("FAILED", "red"), "does not apply": ("-", "")}


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=names_of(ALGORITHM, ADDON))
@click.option("--slow", is_flag=True, help="Run the slow checks as well.")
@click.option("--only", metavar="CHECK", multiple=True, help="Run this check (repeatable).")
@debug_option
def check(names: tuple[str, ...], slow: bool, only: tuple[str, ...]) -> int:
    """Check that plugins do what the contract says; exit code 1 if one does not."""
    from rlplug.testing.checks import check_named, checks_for
    from rlplug.testing.subject import Subject

    failed = 0
    for name in names:
        subject = Subject.of(name)
        click.echo(click.style(subject.label, bold=True))
        chosen = [check_named(one) for one in only] or checks_for(subject.found.kind, slow=slow)
        outcomes = []
        for one in chosen:
            outcomes.append(one.outcome(subject))
            _show(outcomes[-1])
        _sum_up(outcomes)
        failed += sum(one.status == "failed" for one in outcomes)
    return 1 if failed else 0


def _show(outcome: Outcome) -> None:
    sign, colour = _SIGNS[outcome.status]
    mark = click.style(f"{sign:<6}", fg=colour or None)
    words = outcome.check.replace("_", " ")
    if outcome.status == "does not apply":
        click.echo(f"  {mark}  {words}: {outcome.text}")
        return
    click.echo(f"  {mark}  {words}  ({outcome.seconds:.1f} s)")
    for line in outcome.text.splitlines():
        click.echo(f"            {line}")


def _sum_up(outcomes: list[Outcome]) -> None:
    counts = {status: sum(one.status == status for one in outcomes) for status in _SIGNS}
    seconds = sum(one.seconds for one in outcomes)
    parts = [f"{count} {status}" for status, count in counts.items() if count]
    click.echo(f"  {', '.join(parts)} in {seconds:.1f} s\n")
