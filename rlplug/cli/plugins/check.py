"""`rlplug plugins check NAME`: run the conformance checks without pytest."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_plugins
from rlplug.cli.parameters import debug_option
from rlplug.registry import ADDON, ALGORITHM, Registry

if TYPE_CHECKING:
    from rlplug.testing.report import Outcome
    from rlplug.testing.subject import Subject

__all__ = ["check"]

_SIGNS = {"passed": ("ok", "green"), "failed": ("FAILED", "red"), "does not apply": ("-", "")}


@click.command(cls=Command)
@click.argument("names", nargs=-1, required=True, shell_complete=complete_plugins(ALGORITHM, ADDON))
@click.option("--slow", is_flag=True, help="Also run the slow checks.")
@click.option("--only", metavar="CHECK", multiple=True, help="Run only this check; repeatable.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Checks that run at once.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Other seeds in all checks.")
@debug_option
def check(names: tuple[str, ...], slow: bool, only: tuple[str, ...], jobs: int, seed: int) -> int:
    """Run the conformance checks on plugins; exits with 1 if one fails."""
    registry = Registry.installed()
    for name in names:
        # Before the import of torch, so that a wrong name is answered at once.
        registry.named(name)
    from rlplug.testing.check import tier_of
    from rlplug.testing.checks import checks_for
    from rlplug.testing.subject import Subject

    failed = 0
    for name in names:
        subject = Subject.of(name, seed=seed)
        click.echo(click.style(subject.label, bold=True))
        chosen = only or [one.name for one in checks_for(subject, slow=slow)]
        outcomes = []
        found_by: dict[str, str] = {}
        for outcome in _outcomes(subject, chosen, jobs):
            outcomes.append(outcome)
            found = _found(outcome)
            _show(outcome, found_by.get(found, "") if found else "")
            found_by.setdefault(found, outcome.check)
        _print_summary(outcomes)
        if not only:
            click.echo(f"  {tier_of(outcomes)}\n")
        failed += sum(one.status == "failed" for one in outcomes)
    return 1 if failed else 0


def _outcomes(subject: Subject, checks: Sequence[str], jobs: int) -> Iterator[Outcome]:
    """The results in the order of the checks, which run in so many processes."""
    from rlplug.testing.checks import check_named

    if jobs == 1:
        yield from (check_named(one).outcome(subject) for one in checks)
        return
    run = partial(_outcome, subject.found.name, subject.seed)
    # Spawned: a fork would copy the threads of torch in whatever state they are.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(run, checks)


def _outcome(name: str, seed: int, check: str) -> Outcome:
    """The result of one check, in a process of its own."""
    from rlplug.testing.checks import check_named
    from rlplug.testing.subject import Subject

    return check_named(check).outcome(Subject.of(name, seed=seed))


def _found(outcome: Outcome) -> str:
    """What a failed check found, in whichever spaces; empty for all others."""
    if outcome.status != "failed":
        return ""
    return re.sub(r" \(in '[^']*'\)", "", outcome.text.partition("\nfound ")[2])


def _show(outcome: Outcome, first: str) -> None:
    """Print an outcome; what the check `first` has found before is not repeated."""
    sign, colour = _SIGNS[outcome.status]
    mark = click.style(f"{sign:<6}", fg=colour or None)
    words = outcome.check.replace("_", " ")
    if outcome.status == "does not apply":
        click.echo(f"  {mark}  {words}: {outcome.text}")
        return
    click.echo(f"  {mark}  {words}  ({outcome.seconds:.1f} s)")
    text = f"found       the same as: {first.replace('_', ' ')}" if first else outcome.text
    for line in text.splitlines():
        click.echo(f"            {line}")


def _print_summary(outcomes: list[Outcome]) -> None:
    seconds = sum(one.seconds for one in outcomes)
    statuses = [one.status for one in outcomes]
    parts = [f"{statuses.count(one)} {one}" for one in _SIGNS if one in statuses]
    text = re.sub(r"(\d\d+) does not", r"\1 do not", ", ".join(parts))
    click.echo(f"  {text} in {seconds:.1f} s")
