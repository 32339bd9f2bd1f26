"""`rlplug ope`: estimate what a tracked policy would have earned on a log."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import (
    checkpoint_option,
    debug_option,
    seed_option,
    trust_option,
)
from rlplug.cli.process import starting
from rlplug.cli.table import Column, table_lines, terminal_width
from rlplug.cli.terminal import in_columns
from rlplug.quantities import format_number

if TYPE_CHECKING:
    from pathlib import Path

    from rlplug.logs import Log
    from rlplug.ope import Interval, Judgement
    from rlplug.runs.off_policy import Judged

__all__ = ["ope"]


@click.command("ope", cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="RUN")
@click.option(
    "--data",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Logged rows with propensities: Parquet, CSV, npz, or a recording; repeatable.",
)
@click.option(
    "--against",
    shell_complete=complete_runs,
    metavar="RUN",
    help="Another run, judged by the same rows; the differences are estimated, too.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of [data]: reward=clicked, context=user_*; default: as the run was trained.",
)
@click.option(
    "--assume-uniform",
    is_flag=True,
    help="A log without propensities: its actions were chosen uniformly at random.",
)
@click.option(
    "--logged-by",
    shell_complete=complete_runs,
    metavar="RUN",
    help="A log without propensities: the run whose policy chose its actions, exploring, or a run "
    "of bc that imitates who did.",
)
@click.option(
    "--explore",
    is_flag=True,
    help="Judge the policy as it explores in training; default: greedily, as rlplug eval.",
)
@click.option(
    "--gamma",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    metavar="X",
    help="Discount of returns, for logs of episodes.",
)
@checkpoint_option
@click.option(
    "--samples",
    type=click.IntRange(min=2),
    default=200,
    show_default=True,
    metavar="N",
    help="Bootstrap samples of the intervals.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.95,
    show_default=True,
    metavar="X",
    help="Confidence of the intervals.",
)
@click.option(
    "--switch",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="X",
    help="Importance weight above which Switch-DR trusts the reward model alone.",
)
@click.option(
    "--max-weight",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="X",
    help="Clip importance weights to this; 0: do not.",
)
@seed_option("Random seed of the bootstrap.")
@trust_option
@click.option("--no-record", is_flag=True, help="Do not keep it with the run, nor in MLflow.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@debug_option
def ope(
    run: str,
    files: tuple[str, ...],
    against: str | None,
    settings: tuple[str, ...],
    assume_uniform: bool,
    logged_by: str | None,
    explore: bool,
    gamma: float,
    checkpoint: str,
    samples: int,
    confidence: float,
    switch: float,
    max_weight: float,
    seed: int,
    trust: bool,
    no_record: bool,
    as_json: bool,
) -> None:
    """Estimate what a run's policy would have earned on the rows of a log.

    The policy of the best checkpoint, greedy or as it explores, is judged by what another policy
    did. Single choices: replay, the direct method, IPS, SNIPS, DR, Switch-DR and MRDR. Episodes:
    trajectory and per-decision importance sampling, ordinary and weighted, and DR with a fitted Q.
    All have bootstrap intervals. Table and plot are kept with the run, in its folder and in MLflow,
    with metrics as ope/….

    \b
    rlplug ope last --data clicks.parquet
    rlplug ope last --data clicks.parquet --against RUN
    rlplug ope last --data recording/ --explore
    """
    from rlplug.config.sources import parse_setting
    from rlplug.tracking.console import console_for

    options = {one.key.removeprefix("data."): one.value for one in map(parse_setting, settings)}
    console = console_for()
    console.say(f"preparing {run} and {', '.join(files)} …")
    with starting():
        from rlplug.runs import off_policy
    judging = off_policy.Judging(
        samples=samples,
        confidence=confidence,
        seed=seed,
        switch=switch,
        max_weight=max_weight,
        explores=explore,
        gamma=gamma,
        assume_uniform=assume_uniform,
    )
    try:
        judged, log = off_policy.judge_runs(
            [run, against] if against else [run],
            files,
            options=options,
            checkpoint=checkpoint,
            judging=judging,
            logged_by=logged_by or "",
            trust=trust,
            console=console,
        )
    finally:
        console.close()
    recorded = None if no_record else _record(judged, log, confidence)
    if as_json:
        click.echo(json.dumps(_as_json(judged, confidence)))
        return
    _print(judged, log, confidence)
    if recorded is not None:
        click.echo(f"recorded: {recorded}")


def _print(judged: Sequence[Judged], log: Log, confidence: float) -> None:
    first = judged[0].judgement
    for letter, one in zip("AB", judged, strict=False):
        name = f"{letter}: " if len(judged) > 1 else ""
        acting = "exploring" if one.explores else "greedy"
        click.echo(f"{name}run {one.run_id[:8]}, {acting}, step {one.step:,}")
    unit = "episode" if first.steps else "row"
    click.echo(
        f"log {log.name}: {_amount(first)}, whose own policy earned {_words(first.logged)} per "
        f"{unit}\n"
    )
    for line in table_lines(list(_columns(judged, confidence)), terminal_width()):
        click.echo(line)
    click.echo()
    for letter, one in zip("AB", judged, strict=False):
        told = one.judgement
        name = f" {letter}" if len(judged) > 1 else ""
        agreeing = f"{unit}s that it may choose" if one.explores else f"{unit}s that agree"
        rows = {
            f"{agreeing}{name}": f"{told.matches:,} of {told.rows:,}",
            f"effective {unit}s{name}": f"{told.effective:,.0f}",
            f"largest weight{name}": format_number(told.max_weight),
        }
        for line in in_columns(rows):
            click.echo(line)
        for warning in told.warnings:
            click.echo(f"rlplug: warning:{f'{name}:' if name else ''} {warning}", err=True)


def _amount(judgement: Judgement) -> str:
    if judgement.steps:
        return f"{judgement.rows:,} episodes of {judgement.steps:,} steps"
    return f"{judgement.rows:,} rows"


def _columns(judged: Sequence[Judged], confidence: float) -> Iterator[Column]:
    from rlplug.ope.judge import ESTIMATORS

    first = judged[0].judgement
    yield Column(heading="estimator", cells=[ESTIMATORS[name] for name in first.estimates])
    several = len(judged) > 1
    for letter, one in zip("AB", judged, strict=False):
        found = one.judgement.estimates.values()
        values = [_number(each.value) for each in found]
        yield Column(heading=letter if several else "value", cells=values, right=True)
        yield Column(
            heading=f"{100 * confidence:.4g} % interval", cells=[_range(each) for each in found]
        )
    if several:
        differences = list(_differences(judged, confidence).values())
        yield Column(heading="A − B", cells=[_number(one.value) for one in differences], right=True)
        yield Column(heading="interval", cells=[_range(one) for one in differences])


def _differences(judged: Sequence[Judged], confidence: float) -> dict[str, Interval]:
    """A − B, from the same bootstrap samples."""
    from rlplug.ope.bootstrap import interval

    one, other = (each.judgement for each in judged)
    return {
        name: interval(one.samples[name] - other.samples[name], confidence)
        for name in one.estimates
    }


def _number(value: float) -> str:
    return "–" if math.isnan(value) else format_number(value)


def _range(one: Interval) -> str:
    if math.isnan(one.low):
        return "–"
    return f"[{format_number(one.low)}, {format_number(one.high)}]"


def _words(one: Interval) -> str:
    return f"{format_number(one.value)} {_range(one)}"


def _record(judged: Sequence[Judged], log: Log, confidence: float) -> Path | None:
    from rlplug.durable import write_durably
    from rlplug.tracking.evaluations import ESTIMATES, keep_result

    one = judged[0]
    found = one.judgement.estimates
    metrics = {
        name: value
        for key, each in found.items()
        for name, value in (
            (f"ope/{key}", each.value),
            (f"ope/{key}_low", each.low),
            (f"ope/{key}_high", each.high),
        )
        if math.isfinite(value)
    }
    metrics["ope/logged"] = one.judgement.logged.value
    metrics["ope/effective_rows"] = one.judgement.effective
    facts = {"run_id": one.run_id, "step": one.step, "metrics": metrics}
    table = _table(judged, confidence).encode()
    file, problem = keep_result(
        one.checkpoint.absolute().parent.parent,
        ESTIMATES,
        f"{log.name}-{one.checkpoint.name}",
        facts,
        {
            ".csv": lambda path: write_durably(path, table),
            ".png": lambda path: _draw(judged, log, confidence, path),
        },
    )
    if problem:
        print(f"rlplug: not in MLflow: {problem}.", file=sys.stderr)
    return None if file is None else file.with_suffix(".csv")


def _table(judged: Sequence[Judged], confidence: float) -> str:
    lines = ["run,step,estimator,value,low,high,standard_error,confidence"]
    for one in judged:
        for name, each in one.judgement.estimates.items():
            numbers = (each.value, each.low, each.high, each.standard_error, confidence)
            lines.append(",".join([one.run_id, str(one.step), name, *map(repr, numbers)]))
    return "\n".join(lines) + "\n"


def _draw(judged: Sequence[Judged], log: Log, confidence: float, path: Path) -> None:
    from rlplug.ope.judge import ESTIMATORS
    from rlplug.review.plots import estimates_figure, save

    first = judged[0].judgement
    figure = estimates_figure(
        [ESTIMATORS[name] for name in first.estimates],
        {f"run {one.run_id[:8]}": list(one.judgement.estimates.values()) for one in judged},
        first.logged,
        f"Off-policy estimates on {log.name}",
        f"{_amount(first)}, {100 * confidence:.4g} % bootstrap intervals, "
        f"{'exploring' if judged[0].explores else 'greedy'} policies",
        "expected return per episode" if first.steps else "expected reward per row",
    )
    save(figure, path)


def _as_json(judged: Sequence[Judged], confidence: float) -> dict[str, Any]:
    def numbers(found: Mapping[str, Interval]) -> dict[str, Any]:
        return {
            name: {
                key: None if math.isnan(value) else value
                for key, value in (("value", one.value), ("low", one.low), ("high", one.high))
            }
            for name, one in found.items()
        }

    told: dict[str, Any] = {"confidence": confidence, "runs": []}
    for one in judged:
        judgement = one.judgement
        told["runs"].append(
            {
                "run_id": one.run_id,
                "step": one.step,
                "explores": one.explores,
                "rows": judgement.rows,
                "steps": judgement.steps,
                "logged": judgement.logged.value,
                "matches": judgement.matches,
                "effective_rows": judgement.effective,
                "max_weight": judgement.max_weight,
                "warnings": list(judgement.warnings),
                "estimates": numbers(judgement.estimates),
            }
        )
    if len(judged) > 1:
        told["differences"] = numbers(_differences(judged, confidence))
    return told
