"""`rlplug show`: all that is known of one run, on one screen."""

from __future__ import annotations

import json
import textwrap
import webbrowser
from collections.abc import Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.errors import RequestError, did_you_mean

if TYPE_CHECKING:
    from rlplug.review.history import History, RunDetails
    from rlplug.review.record import RunRecord

__all__ = ["show"]

REPORT = "report.html"
CURVE = "plots/learning_curve.png"
_LABEL = 13
_TOGETHER = "\N{NO-BREAK SPACE}"
"""Where a line must not be broken."""
_CHECKPOINTS = 6
_SHOWN = {"eval/return_mean": "evaluation"}


@click.command(cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="RUN")
@click.option("--open", "opened", is_flag=True, help="Open the run's report in a browser.")
@click.option(
    "--metrics",
    multiple=True,
    metavar="NAME",
    help="Print all values of these metrics as CSV; may have *, and be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@debug_option
def show(run: str, opened: bool, metrics: tuple[str, ...], as_json: bool) -> None:
    """Show a run: its status, best evaluation, metrics, options, plugins, checkpoints and files.

    RUN is the id of a run or its first characters, its name, its folder, last, best:ENV, or a
    group, of which the best run is shown.

    \b
    rlplug show last
    rlplug show best:CartPole-v1 --open
    rlplug show last --metrics 'eval/*' > evaluations.csv
    """
    from rlplug.tracking.details import read_details, read_history
    from rlplug.tracking.resolve import resolve_one

    found = resolve_one(run)
    if opened:
        _open(found)
    elif metrics:
        from rlplug.review.history import frame_of

        click.echo(frame_of(_chosen(read_history(found), metrics)).to_csv(), nl=False)
    elif as_json:
        click.echo(json.dumps(_as_json(found, read_details(found))))
    else:
        for line in _screen(found, read_details(found)):
            click.echo(line)


def _open(run: RunRecord) -> None:
    """Open the report, or the picture where a run has none."""
    file = _local(run, REPORT) or _local(run, CURVE)
    if file is None:
        raise RequestError(
            f"run {run.run_id} has neither {REPORT} nor {CURVE} yet.",
            "try: rlplug show RUN without --open",
        )
    if webbrowser.open(file.as_uri()):
        click.echo(f"opened {file}")
    else:
        click.echo(f"no browser was found here; open {file}")


def _local(run: RunRecord, path: str) -> Path | None:
    """A file of the run: in its folder, else downloaded."""
    if run.folder is not None:
        file = run.folder.absolute() / path
        return file if file.is_file() else None
    from rlplug.tracking.location import runs_folder, tracking_uri
    from rlplug.tracking.store import fetch_file

    root = runs_folder()
    return fetch_file(run.run_id, tracking_uri("", root), path, root)


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


def _screen(run: RunRecord, details: RunDetails) -> Iterator[str]:
    from rlplug.cli.table import terminal_width

    terminal = terminal_width()
    width = terminal or 100
    yield from _wrapped(f"{run.name}  {run.run_id}", width)
    yield from _wrapped(_sentence(run), width)
    yield ""
    for label, text in (*_results(run, details.history, width), *_made_of(run, details)):
        yield from _row(label, text, width)
    metrics = list(_metrics(details.history))
    if metrics:
        yield ""
        for label, text in metrics:
            yield from _row(label, text, width)
    yield ""
    for label, text in _next(run, details):
        # Commands and paths are to be copied: they are not wrapped.
        line = f"{label:<{_LABEL}}{text}"
        fits = terminal is None or len(line) <= terminal
        yield from [line] if fits else (label, f"  {text}")


def _sentence(run: RunRecord) -> str:
    from rlplug.quantities import format_age, format_duration, moment

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
    from rlplug.quantities import format_number
    from rlplug.review.history import curve_metric, sparkline

    if run.best is not None:
        yield "best", f"{format_number(run.best[1])} at step {run.best[0]:,} (evaluation)"
    name = curve_metric(history)
    if name:
        steps, values = (column.tolist() for column in history[name])
        yield (
            "last",
            f"{format_number(values[-1])} at step {steps[-1]:,.0f} ({_SHOWN.get(name, name)})",
        )
        finite = [value for value in values if value == value]
        if len(finite) > 1:
            ends = f"{format_number(min(finite))} to {format_number(max(finite))}"
            room = max(width - _LABEL - len(ends) - 2, 8)
            yield "curve", f"{sparkline(history[name], min(room, 60))}  {ends}"


def _made_of(run: RunRecord, details: RunDetails) -> Iterator[tuple[str, str]]:
    options = [f"{name}={value}" for name, value in run.about.options.items()]
    yield "options", "  ".join(options) or "the defaults"
    if run.about.group:
        yield "group", run.about.group
    if details.plugins:
        yield "plugins", ", ".join(one.replace(" ", _TOGETHER) for one in details.plugins)
    checkpoints = list(_checkpoints(details))
    if checkpoints:
        yield "checkpoints", "; ".join(checkpoints)


def _checkpoints(details: RunDetails) -> Iterator[str]:
    """The steps of the checkpoints, best and last marked; the newest first."""
    from rlplug.quantities import format_number

    found = details.checkpoints
    marked = [one for one in found if one.marks]
    others = [one for one in reversed(found) if not one.marks]
    shown = [*marked, *others[: max(_CHECKPOINTS - len(marked), 0)]]
    for one in sorted(shown, key=lambda one: -one.step):
        score = [] if one.score is None else [format_number(one.score)]
        notes = ", ".join([*score, *one.marks])
        text = f"{one.step:,} ({notes})" if notes else f"{one.step:,}"
        yield text.replace(" ", _TOGETHER)
    if len(found) > len(shown):
        yield f"and {len(found) - len(shown):,} more"


def _metrics(history: History) -> Iterator[tuple[str, str]]:
    """A row per area, with the last values."""
    from rlplug.quantities import format_number
    from rlplug.review.history import grouped, last_values

    for area, values in sorted(grouped(last_values(history)).items()):
        yield (
            area or "metrics",
            "  ".join(f"{name}{_TOGETHER}{format_number(value)}" for name, value in values.items()),
        )


def _next(run: RunRecord, details: RunDetails) -> Iterator[tuple[str, str]]:
    """Where its files are, and the commands for it."""
    from rlplug.quantities import format_path
    from rlplug.tracking.location import is_http
    from rlplug.tracking.server import run_link

    if run.folder is not None:
        yield "files", format_path(run.folder)
        for label, path in (("report", REPORT), ("picture", CURVE)):
            if (run.folder / path).is_file():
                yield label, f"rlplug show {run.short} --open"
                break
    if run.uri and is_http(run.uri):
        yield "MLflow", run_link(run.uri.replace("***@", ""), run.experiment_id, run.id_in_mlflow)
    elif run.uri:
        yield "MLflow", "rlplug ui"
    if details.command:
        yield "started by", details.command
    if run.status == "FINISHED":
        yield "train on", f"rlplug resume {run.short} --steps {2 * max(run.step, 1)}"
    elif run.status != "RUNNING":
        yield "resume", f"rlplug resume {run.short}"
    yield "evaluate", f"rlplug eval {run.short}"
    if run.folder is not None and (run.folder / "config.toml").is_file():
        yield "run again", f"rlplug run --like {run.short}"


def _row(label: str, text: str, width: int) -> Iterator[str]:
    first, *more = list(_wrapped(text, width - _LABEL)) or [""]
    yield f"{label:<{_LABEL}}{first}".rstrip()
    for line in more:
        yield " " * _LABEL + line


def _wrapped(text: str, width: int) -> Iterator[str]:
    lines = textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)
    yield from (line.replace(_TOGETHER, " ") for line in lines)


def _as_json(run: RunRecord, details: RunDetails) -> dict[str, Any]:
    from rlplug.cli.runs.listing import as_json
    from rlplug.review.history import last_values

    checkpoints = [
        {"step": one.step, "marks": list(one.marks), "return_mean": one.score}
        for one in details.checkpoints
    ]
    metrics = {
        name: value if value == value else None
        for name, value in last_values(details.history).items()
    }
    return {
        **as_json(run),
        "metrics": metrics,
        "plugins": list(details.plugins),
        "checkpoints": checkpoints,
        "command": details.command,
    }
