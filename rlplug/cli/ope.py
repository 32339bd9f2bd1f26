"""`rlplug ope`: estimate what a tracked policy would have earned on a log."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.options import DATA, JSON, NO_SAVE, OWN_SEED, RUN, SET, TRUST, option, with_options
from rlplug.cli.output import print_json, print_next, print_rows, print_table
from rlplug.cli.process import started
from rlplug.errors import RequestError
from rlplug.quantities import format_number

if TYPE_CHECKING:
    from pathlib import Path

    from rlplug.logs import Log
    from rlplug.ope import Interval
    from rlplug.runs.off_policy import Judged, Judging

_UNIFORM = "The actions of a log without propensities were chosen uniformly at random."
_LOGGED_BY = "The run whose exploring policy chose the actions of a log without propensities."
_SWITCH = "Importance weight above which Switch-DR uses the reward model alone."
_MAX_WEIGHT = "Largest importance weight, to which larger ones are clipped; 0: no clipping."
_POSITIVE = click.FloatRange(min=0)
_GAMMA = click.FloatRange(0, 1, min_open=True)
_CONFIDENCE = click.FloatRange(0.5, 1, max_open=True)


@click.command("ope", cls=Command)
@with_options(RUN, DATA)
@option("--against RUN", "Another run to judge on the same rows.", complete=complete_runs)
@option("--explore", "Judge the policy as it explores, not greedily.", "explores")
@option("--assume-uniform", _UNIFORM)
@option("--logged-by RUN", _LOGGED_BY, complete=complete_runs)
@SET
@option("--gamma X", "Discount of returns.", type=_GAMMA, default=1.0, rare=True)
@option("--samples N", "Bootstrap samples.", type=click.IntRange(2), default=200, rare=True)
@option("--confidence X", "Of the intervals.", type=_CONFIDENCE, default=0.95, rare=True)
@option("--switch X", _SWITCH, type=_POSITIVE, default=10.0, rare=True)
@option("--max-weight X", _MAX_WEIGHT, type=_POSITIVE, default=0.0, rare=True)
@with_options(OWN_SEED, NO_SAVE, TRUST, JSON)
def ope(
    run: str,
    data__files: tuple[str, ...],
    against: str | None,
    settings: tuple[str, ...],
    logged_by: str | None,
    trust: bool,
    no_save: bool,
    as_json: bool,
    **judging: Any,
) -> None:
    """Estimate what the policy of a run would have earned on logged data.

    Single choices are judged by replay, the direct method, IPS, SNIPS, DR, Switch-DR and MRDR,
    episodes by importance sampling and DR with a fitted Q, all with bootstrap intervals. --set
    takes options of [data], such as reward=clicked.

    \b
    rlplug ope last --data clicks.parquet
    rlplug ope last --data clicks.parquet --against RUN
    """
    from rlplug.config.sources import parse_setting
    from rlplug.tracking.console import console_for

    if not data__files:
        raise RequestError("ope needs a log.", "try: --data FILE")
    options = {one.key.removeprefix("data."): one.value for one in map(parse_setting, settings)}
    console = console_for()
    console.say(f"preparing {run} and {', '.join(data__files)} …")
    from rlplug.runs import off_policy

    started()
    given = off_policy.Judging(**judging)
    try:
        judged, log = off_policy.judge_runs(
            [run, against] if against else [run],
            data__files,
            options=options,
            judging=given,
            logged_by=logged_by or "",
            trust=trust,
            console=console,
        )
    finally:
        console.close()
    saved = None if no_save else _save(judged, log, given)
    letters = dict(zip("AB" if against else [""], judged, strict=True))
    estimates = {letter: one.judgement.estimates for letter, one in letters.items()}
    if against:
        estimates["A − B"] = _differences(judged, given)
    if as_json:
        print_json(_facts(judged, given, estimates.get("A − B")))
        return
    _print(letters, estimates, log, given)
    if saved is not None:
        click.echo(f"saved: {saved}")
    best = judged[0].run_id[:8]
    print_next(f"promote {best} NAME" if against else f"ope {best} --data FILE --against RUN")


def _print(
    letters: Mapping[str, Judged],
    estimates: Mapping[str, Mapping[str, Interval]],
    log: Log,
    given: Judging,
) -> None:
    from rlplug.ope.judge import ESTIMATORS

    for letter, one in letters.items():
        name, acting = f"{letter}: " if letter else "", "exploring" if one.explores else "greedy"
        click.echo(f"{name}run {one.run_id[:8]}, {acting}, step {one.step:,}")
    first = next(iter(letters.values())).judgement
    unit = "episode" if first.steps else "row"
    logged = f"{_number(first.logged.value)} {_range(first.logged)} per {unit}"
    click.echo(f"log {log.name}: {_amount(first)}, whose own policy earned {logged}\n")
    rows = []
    for name in first.estimates:
        row = {"estimator": ESTIMATORS[name]}
        for letter, of_policy in estimates.items():
            row[letter or "value"] = _number(of_policy[name].value)
            row[f"{100 * given.confidence:.4g} % interval {letter}"] = _range(of_policy[name])
        rows.append(row)
    print_table(rows, numbers=("value", *estimates), shortened=("estimator",))
    click.echo()
    for letter, one in letters.items():
        told, name = one.judgement, f" {letter}" if letter else ""
        agreeing = f"{unit}s that it may choose" if one.explores else f"{unit}s that agree"
        print_rows(
            {
                f"{agreeing}{name}": f"{told.matches:,} of {told.rows:,}",
                f"effective {unit}s{name}": f"{told.effective:,.0f}",
                f"largest weight{name}": format_number(told.max_weight),
            }
        )
        for warning in told.warnings:
            click.echo(f"rlplug: warning:{name}{':' if name else ''} {warning}", err=True)


def _amount(judgement: Any) -> str:
    steps = f" episodes of {judgement.steps:,} steps" if judgement.steps else " rows"
    return f"{judgement.rows:,}{steps}"


def _differences(judged: Sequence[Judged], given: Judging) -> dict[str, Interval]:
    """A − B, from the same bootstrap samples."""
    from rlplug.ope.bootstrap import interval

    first, second = (each.judgement.samples for each in judged)
    return {name: interval(first[name] - second[name], given.confidence) for name in first}


def _number(value: float) -> str:
    return "–" if math.isnan(value) else format_number(value)


def _range(one: Interval) -> str:
    return "–" if math.isnan(one.low) else f"[{_number(one.low)}, {_number(one.high)}]"


def _save(judged: Sequence[Judged], log: Log, given: Judging) -> Path | None:
    """Keep metrics, table and plot with the run and in MLflow."""
    from rlplug.durable import write_durably
    from rlplug.tracking.evaluations import ESTIMATES, keep_result

    lines = ["run,step,estimator,value,low,high,standard_error,confidence"]
    for run in judged:
        for name, one in run.judgement.estimates.items():
            numbers = (one.value, one.low, one.high, one.standard_error, given.confidence)
            lines.append(",".join([run.run_id, str(run.step), name, *map(repr, numbers)]))
    first = judged[0].judgement
    metrics = {"ope/logged": first.logged.value, "ope/effective_rows": first.effective}
    for name, one in first.estimates.items():
        values = {
            f"ope/{name}": one.value,
            f"ope/{name}_low": one.low,
            f"ope/{name}_high": one.high,
        }
        metrics |= {name: value for name, value in values.items() if math.isfinite(value)}
    table = ("\n".join(lines) + "\n").encode()
    file, problem = keep_result(
        judged[0].checkpoint.absolute().parent.parent,
        ESTIMATES,
        f"{log.name}-{judged[0].checkpoint.name}",
        {"run_id": judged[0].run_id, "step": judged[0].step, "metrics": metrics},
        {
            ".csv": lambda path: write_durably(path, table),
            ".png": lambda path: _draw(judged, log, given, path),
        },
    )
    if problem:
        print(f"rlplug: not in MLflow: {problem}.", file=sys.stderr)
    return None if file is None else file.with_suffix(".csv")


def _draw(judged: Sequence[Judged], log: Log, given: Judging, path: Path) -> None:
    from rlplug.ope.judge import ESTIMATORS
    from rlplug.review.plots import estimates_figure, save

    first, acting = judged[0].judgement, "exploring" if judged[0].explores else "greedy"
    figure = estimates_figure(
        [ESTIMATORS[name] for name in first.estimates],
        {f"run {one.run_id[:8]}": list(one.judgement.estimates.values()) for one in judged},
        first.logged,
        f"Off-policy estimates on {log.name}",
        f"{_amount(first)}, {100 * given.confidence:.4g} % intervals, {acting} policies",
        "expected return per episode" if first.steps else "expected reward per row",
    )
    save(figure, path)


def _facts(
    judged: Sequence[Judged], given: Judging, differences: Mapping[str, Interval] | None
) -> dict[str, Any]:
    runs = []
    for one in judged:
        facts = attrs.asdict(one, recurse=False) | attrs.asdict(one.judgement, recurse=False)
        del facts["judgement"], facts["samples"]
        runs.append(facts)
    return {"confidence": given.confidence, "runs": runs, "differences": differences or {}}
