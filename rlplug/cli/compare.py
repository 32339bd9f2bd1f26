"""`rlplug compare`: options that differ and results of runs and groups, with a plot."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from rlplug.cli.command import Command
from rlplug.cli.options import FILE, JSON, RUNS, option, with_options
from rlplug.cli.output import print_json, print_next, print_table
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.quantities import format_number, format_path

if TYPE_CHECKING:
    from rlplug.review.comparison import Compared, Which
    from rlplug.review.provenance import Difference, Provenance

__all__ = ["compare", "show_compared"]


_WHICH = ("best", "last")


@click.command(cls=Command)
@RUNS
@with_options(
    option(
        "--by", "Compare the best evaluations, or the last values.", type=_WHICH, default="best"
    ),
    option("--full", "Show all that differs between two runs, also code and versions."),
    option("--plot FILE", "Default: compare.png in the runs folder.", type=FILE),
    JSON,
)
def compare(runs: tuple[str, ...], by: Which, full: bool, plot: Path | None, as_json: bool) -> None:
    """Compare runs, or groups of runs that differ only in their seeds.

    Prints the results, of groups the mean and the interquartile mean with its 95% bootstrap
    interval, and the options that differ. Plots the curves; with --json only where --plot is given.

    \b
    rlplug compare ppo-CartPole-v1-89b0 a2c-CartPole-v1-03d1
    rlplug compare last best:CartPole-v1 --full
    """
    if full:
        _compare_fully(runs, as_json=as_json)
        return
    if plot is not None:
        plot = absolute_path(plot, "--plot")
    compared = _resolved(runs)
    envs = sorted({one.env for one in compared})
    if plot is not None and envs[1:]:
        raise RequestError(
            f"--plot draws runs of one environment; these are of {', '.join(envs)}.",
            "try: without --plot, or with the runs of one of them",
        )
    show_compared(compared, by=by, plot=plot, as_json=as_json)


def show_compared(
    compared: Sequence[Compared], *, as_json: bool, by: Which = "best", plot: Path | None = None
) -> None:
    """Print runs and groups side by side, and plot their curves."""
    from rlplug.review.comparison import measure_of

    measure = measure_of([run for one in compared for run in one.runs], by)
    several = len({one.env for one in compared}) > 1
    if as_json:
        print_json(_facts(compared, measure))
    else:
        _print(compared, measure)
    if not several and (plot is not None or not as_json):
        _plot(compared, plot)
    if not as_json:
        best = max(compared, key=lambda one: max(one.scores(measure), default=float("-inf")))
        print_next(f"show {best.runs[0].short if not best.runs[1:] else best.label}")


def _resolved(texts: Sequence[str]) -> list[Compared]:
    """What each text names; of a single group, each of its runs and the group."""
    from rlplug.review.comparison import Compared
    from rlplug.tracking.resolve import resolve

    found: dict[tuple[str, ...], Compared] = {}
    for text in texts:
        runs = resolve(text)
        label = text if runs[1:] else runs[0].name
        key = tuple(sorted(run.run_id for run in runs))
        found.setdefault(key, Compared(label=label, runs=runs))
    compared = list(found.values())
    if not compared[1:]:
        group = compared[0]
        if not group.runs[1:]:
            message = f"{texts[0]!r} is one run: there is nothing to compare it with."
            raise RequestError(message, "try: rlplug compare RUN RUN, or rlplug show RUN")
        compared = [*(Compared(label=run.name, runs=[run]) for run in group.runs), group]
    labels = [one.label for one in compared]
    for index, one in enumerate(compared):
        if labels.count(one.label) > 1:
            compared[index] = attrs.evolve(one, label=f"{one.label} {one.runs[0].short}")
    return compared


def _print(compared: Sequence[Compared], measure: str) -> None:
    """The results in each environment, and the options that differ."""
    from rlplug.review.comparison import differing

    # A to Z, then A1 to Z1 and so on.
    letters = [f"{chr(ord('A') + n % 26)}{n // 26 or ''}" for n in range(len(compared))]
    envs = list(dict.fromkeys(one.env for one in compared))
    if measure:
        click.echo(f"by {measure}")
    for env in envs:
        pairs = [pair for pair in zip(letters, compared, strict=True) if pair[1].env == env]
        if envs[1:]:
            click.echo(f"\n{env}")
        _print_results(dict(pairs), measure)
    rows = [
        {"option": name, **dict(zip(letters, values, strict=True))}
        for name, values in differing(compared).items()
    ]
    if rows:
        click.echo()
        print_table(rows, shortened=("option", *letters))


def _print_results(lettered: Mapping[str, Compared], measure: str) -> None:
    """The results in one environment, and how likely the others are better than the first."""
    from rlplug.review.comparison import paired

    several = any(one.runs[1:] for one in lettered.values())
    rows = []
    for letter, one in lettered.items():
        mean, scored = one.mean(measure), len(one.scores(measure))
        count = str(scored) if scored == len(one.runs) else f"{scored} of {len(one.runs)}"
        steps = sorted({run.step for run in one.runs})
        row = {" ": letter, "run": one.label, "runs": count if several else ""}
        row["mean" if several else "score"] = format_number(mean.estimate) if mean else "none"
        row["IQM [95%]"] = str(one.iqm(measure)) if scored > 1 else ""
        row["step"] = " to ".join(f"{step:,}" for step in dict.fromkeys((steps[0], steps[-1])))
        rows.append({**row, "status": one.status})
    spare = ("step", "status", "runs", "IQM [95%]")
    print_table(rows, numbers=("runs", "mean", "score", "step"), shortened=("run",), spare=spare)
    (first, base), *others = lettered.items()
    for letter, one in others:
        found = one.improvement(base, measure)
        if found is not None:
            click.echo(f"probability that a run of {letter} is better than one of {first}: {found}")
    pairs = {letter: paired(one, base) for letter, one in others if base.runs[1:]}
    names = dict.fromkeys(name for by_name in pairs.values() for name in by_name)
    rows = []
    for name in names:
        cells = {letter: str(of[name].mean) if name in of else "" for letter, of in pairs.items()}
        rows.append({f"difference to {first} by seed [95%]": name, **cells})
    print_table(rows)


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
    path = runs_folder() / "compare.png" if file is None else file
    band = ", bands: 95% intervals of the mean" if len(every) > len(compared) else ""
    try:
        save(draw([band_panel(curves, name)], compared[0].env, f"{name}{band}"), path)
    except OSError as error:
        message = f"the plot {path} cannot be written: {error.strerror or error}."
        raise RequestError(message, "try: --plot FILE") from error
    # In JSON and CSV, standard output is for them alone.
    click.echo(f"curves: {format_path(path)}", err=file is not None)


def _facts(compared: Sequence[Compared], measure: str) -> dict[str, Any]:
    from rlplug.review.comparison import differing, paired

    first = {one.env: one for one in reversed(compared)}
    rows = [
        {
            "label": one.label,
            "run_ids": [run.run_id for run in one.runs],
            "env": one.env,
            "scores": one.scores(measure),
            "mean": one.mean(measure),
            "iqm": one.iqm(measure),
            "better_than_first": None
            if one is first[one.env]
            else one.improvement(first[one.env], measure),
            "differences": paired(one, first[one.env]) if one is not first[one.env] else {},
            "status": one.status,
        }
        for one in compared
    ]
    return {"measure": measure, "compared": rows, "options": differing(compared)}


def _compare_fully(texts: Sequence[str], *, as_json: bool) -> None:
    """What differs between two runs: options, plugins, versions, code and machine."""
    from rlplug.review.provenance import differences
    from rlplug.tracking.details import read_provenance_of
    from rlplug.tracking.resolve import resolve_one

    if len(texts) != 2:
        raise RequestError("--full compares two runs.", "try: rlplug compare RUN RUN --full")
    runs = [resolve_one(text) for text in texts]
    records = [read_provenance_of(run) for run in runs]
    first, second = records
    if first is None or second is None:
        run = runs[0 if first is None else 1]
        message = f"run {run.run_id} ({run.name}) has no record of what it was made from."
        raise RequestError(message, "try: without --full")
    found = differences(first, second)
    if as_json:
        print_json([one._asdict() for one in found])
        return
    for letter, run in zip("AB", runs, strict=True):
        click.echo(f"{letter}  {run.short}  {run.name}")
    rows = []
    for one in found:
        values = {"A": one.value_a + _origin(first, one), "B": one.value_b + _origin(second, one)}
        rows.append({"part": one.part, "name": one.name, **values})
    click.echo("" if found else "nothing that is recorded differs.")
    print_table(rows, shortened=("A", "B", "name"), spare=("part",))
    print_next(f"compare {runs[0].short} {runs[1].short}")


def _origin(run: Provenance, one: Difference) -> str:
    """Where an option that is not the default comes from: ` (--set)`."""
    option = run.options.get(one.name) if one.part == "options" else None
    return "" if option is None or option.origin in ("", "default") else f" ({option.origin})"
