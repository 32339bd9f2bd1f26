"""`rlplug compare`: options that differ and results of runs and groups, with a plot."""

from __future__ import annotations

import csv
import io
import json
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.quantities import format_path

if TYPE_CHECKING:
    from rlplug.review.comparison import Compared, Interval, Which

__all__ = ["compare"]

PLOT = "compare.png"


@click.command(cls=Command)
@click.argument("runs", shell_complete=complete_runs, metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--by",
    type=click.Choice(["best", "last"]),
    default="best",
    show_default=True,
    help="Compare the best evaluations, or the last values.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"PNG file for the curves; default: {PLOT} in the runs folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a line of CSV per run or group.")
@debug_option
def compare(
    runs: tuple[str, ...], by: Which, plot: Path | None, as_json: bool, as_csv: bool
) -> None:
    """Compare runs, or groups of runs that differ in their seeds only.

    Prints the options that differ and the results: of a group the mean, and the interquartile mean
    with its 95% bootstrap interval. Writes a plot of the curves, of groups with bands; with --json
    or --csv only if --plot is given. Runs of several environments have a table for each, and no
    plot.

    \b
    rlplug compare ppo-CartPole-v1-89b0 a2c-CartPole-v1-03d1
    rlplug compare last best:CartPole-v1
    """
    from rlplug.review.comparison import measure_of

    if plot is not None:
        plot = absolute_path(plot, "--plot")
    compared = _resolved(runs)
    measure = measure_of([run for one in compared for run in one.runs], by)
    envs = sorted({one.env for one in compared})
    if plot is not None and len(envs) > 1:
        raise RequestError(
            f"--plot draws runs of one environment; these are of {', '.join(envs)}.",
            "try: without --plot, or with the runs of one of them",
        )
    if as_json:
        click.echo(json.dumps(_as_json(compared, measure)))
    elif as_csv:
        click.echo(_as_csv(compared, measure), nl=False)
    else:
        for line in _tables(compared, measure):
            click.echo(line)
    if len(envs) == 1 and (plot is not None or not (as_json or as_csv)):
        _plot(compared, plot)


def _resolved(texts: Sequence[str]) -> list[Compared]:
    """One for each text; of a single group, one for each of its runs, and the group.

    What two texts name, such as `last` and an id, is there once.
    """
    from rlplug.review.comparison import Compared
    from rlplug.tracking.resolve import resolve

    named: dict[tuple[str, ...], list[str]] = {}
    compared = []
    for text in dict.fromkeys(texts):
        runs = resolve(text)
        same = named.setdefault(tuple(sorted(run.run_id for run in runs)), [])
        same.append(text)
        if len(same) == 1:
            label = runs[0].name if len(runs) == 1 else text
            compared.append(Compared(label=label, runs=runs))
    if len(compared) == 1:
        (group,) = compared
        if len(group.runs) == 1:
            (same,) = named.values()
            raise RequestError(
                f"{_said(same)} one run: there is nothing to compare it with.",
                "try: rlplug compare RUN RUN, or rlplug show RUN",
            )
        compared = [*(Compared(label=run.name, runs=[run]) for run in group.runs), group]
    for same in named.values():
        if len(same) > 1:
            click.echo(f"rlplug: {_said(same)} the same, which is compared once.", err=True)
    return _with_labels(compared)


def _said(texts: Sequence[str]) -> str:
    return f"{' and '.join(map(repr, texts))} {'are' if len(texts) > 1 else 'is'}"


def _with_labels(compared: Sequence[Compared]) -> list[Compared]:
    """With ids where several have the same name."""
    import attrs

    labels = [one.label for one in compared]
    return [
        attrs.evolve(one, label=f"{one.label} {one.runs[0].short}")
        if labels.count(one.label) > 1
        else one
        for one in compared
    ]


def _tables(compared: Sequence[Compared], measure: str) -> Iterator[str]:
    """The results in each environment, and the options that differ."""
    from rlplug.cli.table import Column, table_lines, terminal_width
    from rlplug.review.comparison import differing

    lettered = {_letter(index): one for index, one in enumerate(compared)}
    envs = dict.fromkeys(one.env for one in compared)
    if measure:
        yield f"by {measure}"
    for env in envs:
        if len(envs) > 1:
            yield from ("", env)
        of_env = {letter: one for letter, one in lettered.items() if one.env == env}
        yield from _results(of_env, measure)
    table = differing(compared)
    if table:
        yield ""
        shown = [Column(heading="option", cells=list(table), shortest=12)]
        shown += [
            Column(heading=letter, cells=[row[index] for row in table.values()], shortest=8)
            for index, letter in enumerate(lettered)
        ]
        yield from table_lines(shown, terminal_width())


def _results(lettered: Mapping[str, Compared], measure: str) -> Iterator[str]:
    """The results in one environment, and how likely the others are better than the first."""
    from rlplug.cli.table import Column, table_lines, terminal_width

    letters, compared = list(lettered), list(lettered.values())
    several = any(len(one.runs) > 1 for one in compared)
    columns = [
        Column(heading="", cells=letters),
        Column(heading="run", cells=[one.label for one in compared], shortest=16),
        Column(
            heading="runs",
            cells=[_count(one, measure) if several else "" for one in compared],
            right=True,
            rank=2 if several else 1,
        ),
        Column(
            heading="mean" if several else "score",
            cells=[_mean(one, measure) for one in compared],
            right=True,
        ),
        Column(
            heading="IQM [95%]",
            cells=[_iqm(one, measure) for one in compared],
            rank=1,
        ),
        Column(heading="step", cells=[_steps(one) for one in compared], right=True, rank=4),
        Column(heading="status", cells=[one.status for one in compared], rank=3),
    ]
    yield from table_lines(columns, terminal_width())
    for one, letter in list(zip(compared, letters, strict=True))[1:]:
        found = one.improvement(compared[0], measure)
        if found is not None:
            yield f"probability that a run of {letter} is better than one of {letters[0]}: {found}"


def _letter(index: int) -> str:
    """A to Z, then A1 to Z1 and so on."""
    round_, place = divmod(index, len(string.ascii_uppercase))
    return f"{string.ascii_uppercase[place]}{round_ or ''}"


def _count(one: Compared, measure: str) -> str:
    """How many runs there are, and how many of them have no score."""
    scored = len(one.scores(measure))
    return str(scored) if scored == len(one.runs) else f"{scored} of {len(one.runs)}"


def _mean(one: Compared, measure: str) -> str:
    from rlplug.quantities import format_number

    mean = one.mean(measure)
    return "none" if mean is None else format_number(mean.estimate)


def _iqm(one: Compared, measure: str) -> str:
    """Empty for single runs, of which there is no interval."""
    return str(one.iqm(measure)) if len(one.scores(measure)) > 1 else ""


def _steps(one: Compared) -> str:
    steps = sorted({run.step for run in one.runs})
    return f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"


def _plot(compared: Sequence[Compared], file: Path | None) -> None:
    from rlplug.review.comparison import curves_of
    from rlplug.review.plots import band_panel, draw, save
    from rlplug.tracking.details import read_history
    from rlplug.tracking.location import runs_folder

    every = {run.run_id: run for one in compared for run in one.runs}
    name, curves = curves_of(compared, {key: read_history(run) for key, run in every.items()})
    if not name:
        print("rlplug: there is no metric that all of them have: no plot.", file=sys.stderr)
        return
    path = runs_folder() / PLOT if file is None else file
    band = ", bands: 95% intervals of the mean" if len(every) > len(compared) else ""
    try:
        save(draw([band_panel(curves, name)], compared[0].env, f"{name}{band}"), path)
    except OSError as error:
        raise RequestError(
            f"the plot {path} cannot be written: {error.strerror or error}.", "try: --plot FILE"
        ) from error
    # In JSON and CSV, standard output is for them alone.
    click.echo(f"curves: {format_path(path)}", err=file is not None)


def _as_json(compared: Sequence[Compared], measure: str) -> dict[str, Any]:
    from rlplug.review.comparison import differing

    first = {one.env: one for one in reversed(compared)}
    rows = [
        {
            "label": one.label,
            "run_ids": [run.run_id for run in one.runs],
            "env": one.env,
            "scores": one.scores(measure),
            "mean": _interval(one.mean(measure)),
            "iqm": _interval(one.iqm(measure)),
            # Of its environment.
            "better_than_first": None
            if one is first[one.env]
            else _interval(one.improvement(first[one.env], measure)),
            "status": one.status,
        }
        for one in compared
    ]
    return {"measure": measure, "compared": rows, "options": differing(compared)}


def _interval(found: Interval | None) -> dict[str, float] | None:
    import attrs

    return None if found is None else attrs.asdict(found)


def _as_csv(compared: Sequence[Compared], measure: str) -> str:
    from rlplug.review.comparison import differing

    options = differing(compared)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["label", "runs", "mean", "iqm", "iqm_low", "iqm_high", "status", *options])
    for index, one in enumerate(compared):
        mean, iqm = one.mean(measure), one.iqm(measure)
        numbers = [
            "" if mean is None else mean.estimate,
            *(["", "", ""] if iqm is None else [iqm.estimate, iqm.low, iqm.high]),
        ]
        values = [row[index] for row in options.values()]
        table.writerow([one.label, len(one.scores(measure)), *numbers, one.status, *values])
    return text.getvalue()
