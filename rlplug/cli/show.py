"""`rlplug show`: what is known of one run, and its best checkpoint, on one screen."""

from __future__ import annotations

import textwrap
import webbrowser
from collections.abc import Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.options import JSON, RUN, option
from rlplug.cli.output import (
    in_columns,
    print_json,
    print_next,
    print_rows,
    terminal_width,
)
from rlplug.cli.runs import facts_of
from rlplug.errors import RequestError, did_you_mean
from rlplug.quantities import format_age, format_duration, format_number, format_path, moment

if TYPE_CHECKING:
    from rlplug.review.history import History, RunDetails
    from rlplug.review.record import RunRecord

__all__ = ["show"]

_FILES = ("report.html", "plots/learning_curve.png")
"""What `--open` opens: the first that a run has."""
_CHECKPOINTS = 6


@click.command(cls=Command)
@RUN
@option("--open", "Open the run's report in a browser.", "opened")
@option("--metrics NAME", "Print all values of a metric as CSV; may have *; repeatable.", many=True)
@JSON
def show(run: str, opened: bool, metrics: tuple[str, ...], as_json: bool) -> None:
    """Show a run: results, options, plugins, checkpoints, files, and the best model.

    RUN is an id or its first characters, a name, a folder, last, best:ENV, or a group, of which
    the best run is shown.

    \b
    rlplug show last
    rlplug show last --metrics 'eval/*' > evaluations.csv
    """
    from rlplug.tracking.details import read_details, read_history
    from rlplug.tracking.model_registry import is_model_uri
    from rlplug.tracking.resolve import resolve_one

    if is_model_uri(run):
        raise RequestError(f"{run!r} is a model, not a run.", "try: rlplug show with its run")
    found = resolve_one(run)
    if opened:
        _open(found)
    elif metrics:
        from rlplug.review.history import frame_of

        click.echo(frame_of(_chosen(read_history(found), metrics)).to_csv(), nl=False)
    elif as_json:
        print_json(_facts(found, read_details(found)))
    else:
        _print(found, read_details(found))


def _open(run: RunRecord) -> None:
    """Open the report, or the picture where a run has none."""
    files = [] if run.folder is None else [run.folder.absolute() / path for path in _FILES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        message = f"run {run.run_id} has neither {' nor '.join(_FILES)} here."
        raise RequestError(message, "try: rlplug show RUN without --open")
    opened = webbrowser.open(file.as_uri())
    click.echo(f"opened {file}" if opened else f"no browser was found; open {file}")


def _chosen(history: History, patterns: Sequence[str]) -> History:
    chosen = {}
    for pattern in patterns:
        names = [name for name in history if fnmatchcase(name, pattern)]
        if not names:
            guess = did_you_mean(pattern, history, sentence=True)
            raise RequestError(
                f"the run has no metric {pattern!r}. {guess}".rstrip(),
                *textwrap.wrap(f"it has: {', '.join(sorted(history))}", 96),
            )
        chosen.update({name: history[name] for name in names})
    return chosen


def _print(run: RunRecord, details: RunDetails) -> None:
    width = min(terminal_width(), 100)
    click.echo(f"{run.name}  {run.run_id}")
    for line in textwrap.wrap(_sentence(run), width):
        click.echo(line)
    results, metrics = dict(_results(run, details.history, width)), _metrics(details.history)
    for warning in _warnings(run, details):
        for line in textwrap.wrap(f"! {warning}", width, subsequent_indent="  "):
            click.echo(click.style(line, fg="yellow"))
    for rows in (results | dict(_made_of(run, details)), metrics):
        if rows:
            click.echo()
        for line in in_columns(rows, width, wrapped=True):
            click.echo(line)
    click.echo()
    print_rows(dict(_places(run, details)))
    has_report = run.folder is not None and any((run.folder / one).is_file() for one in _FILES)
    if run.status not in ("FINISHED", "RUNNING"):
        print_next(f"resume {run.short}")
    else:
        print_next(f"show {run.short} --open" if has_report else f"eval {run.short}")


def _sentence(run: RunRecord) -> str:
    about = run.about
    steps = f" of {about.steps:,}" if about.steps > 0 else ""
    what = f"{about.algorithm} on {about.env}, seed {about.seed}: " if about.algorithm else ""
    started, ended = moment(run.started), moment(run.ended)
    took = ""
    if started and ended and run.status != "RUNNING":
        took = f", took {format_duration((ended - started).total_seconds())}"
    ago = format_age(run.started, datetime.now().astimezone())
    ago = f", started {ago}" if ago else ""
    return f"{what}{run.shown_status} at step {run.step:,}{steps}{took}{ago}"


def _results(run: RunRecord, history: History, width: int) -> Iterator[tuple[str, str]]:
    from rlplug.review.history import curve_metric, sparkline

    if run.best is not None:
        yield "best", f"{format_number(run.best[1])} at step {run.best[0]:,} (evaluation)"
    name = curve_metric(history)
    if name:
        steps, values = (column.tolist() for column in history[name])
        label = "evaluation" if name == "eval/return_mean" else name
        yield "last", f"{format_number(values[-1])} at step {steps[-1]:,.0f} ({label})"
        finite = [value for value in values if value == value]
        if finite[1:]:
            ends = f"{format_number(min(finite))} to {format_number(max(finite))}"
            room = min(max(width - 15 - len(ends), 8), 60)
            yield "curve", f"{sparkline(history[name], room)}  {ends}"


def _warnings(run: RunRecord, details: RunDetails) -> list[str]:
    """What looks wrong."""
    from rlplug.review.diagnosis import diagnose

    return diagnose(details.history, run.about.options, run.about.steps)


def _made_of(run: RunRecord, details: RunDetails) -> Iterator[tuple[str, str]]:
    yield "options", run.about.shown_options or "the defaults"
    if run.about.group:
        yield "group", run.about.group
    if details.plugins:
        yield "plugins", ", ".join(details.plugins)
    marked = [one for one in details.checkpoints if one.marks]
    others = [one for one in reversed(details.checkpoints) if not one.marks]
    others = others[: max(_CHECKPOINTS - len(marked), 0)]
    shown = []
    for one in sorted([*marked, *others], key=lambda one: -one.step):
        score = [] if one.score is None else [format_number(one.score)]
        notes = ", ".join([*score, *one.marks])
        shown.append(f"{one.step:,} ({notes})" if notes else f"{one.step:,}")
    left_out = len(details.checkpoints) - len(shown)
    if shown:
        yield "checkpoints", "; ".join([*shown, *([f"and {left_out:,} more"] if left_out else [])])


def _metrics(history: History) -> dict[str, str]:
    """A row per area, with the last values."""
    from rlplug.review.history import grouped, last_values

    return {
        area or "metrics": "  ".join(f"{name} {format_number(x)}" for name, x in values.items())
        for area, values in sorted(grouped(last_values(history)).items())
    }


def _places(run: RunRecord, details: RunDetails) -> Iterator[tuple[str, str]]:
    """Where its files and its model are, and the commands for it."""
    from rlplug.tracking.location import is_http
    from rlplug.tracking.server import run_link

    if run.folder is not None:
        yield "files", format_path(run.folder)
    if run.uri and is_http(run.uri):
        yield "MLflow", run_link(run.uri.replace("***@", ""), run.experiment_id, run.id_in_mlflow)
    elif run.uri:
        yield "MLflow", "rlplug ui"
    if details.command:
        yield "started by", details.command
    if run.status == "FINISHED":
        yield "train on", f"rlplug resume {run.short} --steps {2 * max(run.step, 1)}"
    if run.folder is not None and (run.folder / "config.toml").is_file():
        yield "run again", f"rlplug run --like {run.short}"
    if not details.checkpoints:
        return
    yield "evaluate", f"rlplug eval {run.short}"
    step, model = _best(run, details)
    yield "best model", model or f"not in MLflow; rlplug promote {run.short}@{step} NAME logs it"
    yield "load it", f'rlplug.load("{run.short}@{step}")'
    yield "serve it", f"rlplug serve {run.short}@{step}"


def _best(run: RunRecord, details: RunDetails) -> tuple[int, str]:
    """The step of the best checkpoint, and its model in MLflow, if it has one there."""
    from rlplug.checkpoint.manifest import step_name
    from rlplug.tracking.status import known_models

    steps = [one.step for one in details.checkpoints if "not finite" not in one.marks]
    steps = steps or [one.step for one in details.checkpoints]
    step = run.best[0] if run.best is not None and run.best[0] in steps else steps[-1]
    model = {} if run.folder is None else known_models(run.folder)
    name = model.get(step_name(step), "")
    return step, f"models:/{name}" if name else ""


def _facts(run: RunRecord, details: RunDetails) -> dict[str, Any]:
    from rlplug.review.history import last_values

    step, model = _best(run, details) if details.checkpoints else (None, "")
    return {
        **facts_of(run),
        "metrics": last_values(details.history),
        "warnings": _warnings(run, details),
        "plugins": details.plugins,
        "checkpoints": details.checkpoints,
        "best_checkpoint": {"step": step, "model_uri": model or None},
        "command": details.command,
    }
