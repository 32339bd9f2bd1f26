"""The report of a run, or of several: one static HTML page that needs no other file."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import attrs

from rlplug.quantities import format_duration, format_number, moment
from rlplug.review.history import NO_VALUES, History
from rlplug.review.record import HEADLINES, REGRET, CheckpointRecord, RunRecord

__all__ = ["REPORT", "ReportedRun", "checkpoints_text", "render"]

REPORT = "report.html"
LARGEST_VIDEO = 5_000_000
_MOST_EVALUATIONS = 20
"""The newest of them are listed; the curve has all."""
_LABELS = ("last evaluation", "training return", "reward")
_KINDS = {".png": "image/png", ".gif": "image/gif", ".mp4": "video/mp4"}


@attrs.frozen(kw_only=True)
class ReportedRun:
    """A run with all that its report shows."""

    run: RunRecord
    history: History
    plugins: Sequence[str] = ()
    """Each plugin with its distribution and version."""
    checkpoints: Sequence[CheckpointRecord] = ()
    machine: Mapping[str, str] = attrs.field(factory=dict)
    """What it ran on, with versions: name → value."""
    command: str = ""
    texts: Mapping[str, str] = attrs.field(factory=dict)
    """Title → text, such as all options as TOML."""
    pictures: Mapping[str, Path] = attrs.field(factory=dict)
    """Title → file; those that do not exist are left out."""


def render(
    runs: Sequence[ReportedRun],
    *,
    title: str = "",
    table: str = "",
    pictures: Mapping[str, Path] | None = None,
) -> str:
    """The page; `table` and `pictures` come first, such as the summary of several seeds."""
    first, is_single = runs[0], len(runs) == 1
    name, about = title or first.run.name, first.run.about
    which = f"seed {about.seed}" if is_single else f"{len(runs)} seeds"
    options = f"; {about.shown_options}" if about.options else ""
    body = _run(first) if is_single else _members(runs, name)
    style = files("rlplug.review").joinpath("report.css").read_text("utf-8")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f"<title>{escape(name)}</title><style>\n{style}</style></head><body>",
            f"<h1>{escape(name)}</h1>",
            f"<p>{escape(f'{about.algorithm} on {about.env}, {which}{options}')}</p>",
            table,
            *_pictures(pictures or {}),
            *body,
            "</body></html>\n",
        ]
    )


def checkpoints_text(one: ReportedRun) -> str:
    """The checkpoints as Markdown, the best first."""
    rows = "".join(f"| {' | '.join(row)} |\n" for row in _ranked(one))
    return (
        f"Checkpoints of {one.run.name}, the best first.\n\n| step | return | |\n|---:|---:|---|\n"
        f"{rows}\n`rlplug eval {one.run.short}@STEP`, and `rlplug.load` in Python, take each of "
        "them.\n"
    )


def _run(one: ReportedRun) -> Iterator[str]:
    run = one.run
    yield _table([("run", run.run_id), *_results(run)])
    yield from _pictures(one.pictures)
    yield from _made_of(one)
    yield _section("Evaluations", _evaluations(one.history), ("step", "mean", "least", "best"))
    yield _section("Checkpoints", _ranked(one), ("step", "return", ""))
    yield _section("Machine", one.machine.items())
    is_finished = run.status == "FINISHED"
    steps = f" --steps {2 * max(run.step, 1)}" if is_finished else ""
    commands = {
        "started by": one.command,
        "train on" if is_finished else "resume": f"rlplug resume {run.short}{steps}",
        "evaluate": f"rlplug eval {run.short} --episodes 100",
        "run again": f"rlplug run --like {run.short}",
        "in Python": f'rlplug.load("{run.short}").predict(observation)',
    }
    yield _section("Go on", [(name, command) for name, command in commands.items() if command])


def _members(runs: Sequence[ReportedRun], group: str) -> Iterator[str]:
    rows = [
        (
            str(run.about.seed),
            run.name,
            run.short,
            run.shown_status,
            f"{run.step:,}",
            *(("", "") if run.best is None else (format_number(run.best[1]), f"{run.best[0]:,}")),
        )
        for run in (one.run for one in runs)
    ]
    heading = ("seed", "run", "id", "status", "steps", "best return", "at step")
    yield _section("Runs", rows, heading)
    yield from _made_of(runs[0])
    steps = 2 * max(max(one.run.step for one in runs), 1)
    commands = {
        "train on": f"rlplug resume {group} --steps {steps}",
        "compare": f"rlplug compare {group} OTHER",
        "the best": f"rlplug show {group}",
    }
    yield _section("Go on", commands.items())


def _results(run: RunRecord) -> Iterator[tuple[str, str]]:
    started, ended = moment(run.started), moment(run.ended)
    took = (
        f", took {format_duration((ended - started).total_seconds())}" if started and ended else ""
    )
    yield "status", f"{run.shown_status.lower()}{took}"
    of = f" of {run.about.steps:,}" if run.about.steps else ""
    yield "environment steps", f"{run.step:,}{of}"
    if run.best is not None:
        yield "best evaluation", f"{format_number(run.best[1])} at step {run.best[0]:,}"
    latest = run.latest
    for name, label in zip(HEADLINES, _LABELS, strict=True):
        # The reward of a step says little where there are returns.
        if name in latest and not (label == "reward" and HEADLINES[1] in latest):
            yield label, format_number(latest[name])
    if REGRET in latest:
        yield "total regret", format_number(latest[REGRET])
    if seconds := latest.get("time/seconds"):
        speed = f"{run.step / seconds:,.0f} steps per second"
        yield "training took", f"{format_duration(seconds)}, {speed}"


def _made_of(one: ReportedRun) -> Iterator[str]:
    """The options and plugins, which all seeds of a group have in common."""
    yield "<h2>Options that differ from the defaults</h2>"
    yield _table(one.run.about.options.items()) or "<p>none</p>"
    for title, text in one.texts.items():
        yield f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
    yield _section("Plugins", [(plugin,) for plugin in one.plugins])


def _evaluations(history: History) -> list[tuple[str, ...]]:
    """Step, mean, least and largest return, the newest first."""
    names = ("eval/return_mean", "eval/return_min", "eval/return_max")
    series = [dict(zip(*history.get(name, NO_VALUES), strict=True)) for name in names]
    return [
        (f"{step:,.0f}", *(format_number(values.get(step)) for values in series))
        for step in sorted(series[0], reverse=True)[:_MOST_EVALUATIONS]
    ]


def _ranked(one: ReportedRun) -> list[tuple[str, str, str]]:
    """Step, return and marks of each checkpoint, the best first."""

    def rank(kept: CheckpointRecord) -> tuple[bool, float, int]:
        score = math.nan if kept.score is None else kept.score
        return "best" not in kept.marks, math.inf if math.isnan(score) else -score, -kept.step

    return [
        (f"{kept.step:,}", format_number(kept.score), ", ".join(kept.marks))
        for kept in sorted(one.checkpoints, key=rank)
    ]


def _pictures(pictures: Mapping[str, Path]) -> Iterator[str]:
    """Pictures and videos in the page; of a large video, a link."""
    for title, file in pictures.items():
        try:
            content = file.read_bytes() if file.stat().st_size <= LARGEST_VIDEO else b""
        except FileNotFoundError:
            # A run in progress deletes a video when there is a better one.
            continue
        kind, place = _KINDS[file.suffix], escape(f"{file.parent.name}/{file.name}")
        source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        shown = f'<img alt="{escape(title)}" src="{source}">'
        if file.suffix == ".mp4":
            shown = f'<video controls muted src="{source}"></video>'
        yield f"<h2>{escape(title)}</h2>"
        yield shown if content else f'<p><a href="{place}">{place}</a></p>'


def _section(title: str, rows: Iterable[Sequence[str]], heading: Sequence[str] = ()) -> str:
    """A table under its title; nothing without rows."""
    table = _table(rows, heading)
    return f"<h2>{title}</h2>{table}" if table else ""


def _table(rows: Iterable[Sequence[str]], heading: Sequence[str] = ()) -> str:
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    if lines and heading:
        lines.insert(0, "".join(f"<th>{cell}</th>" for cell in heading))
    shown = "".join(f"<tr>{line}</tr>" for line in lines)
    kind = ' class="numbers"' if heading else ""
    return f"<table{kind}>{shown}</table>" if lines else ""
