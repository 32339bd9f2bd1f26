"""The report of a run, or of several: one HTML page that needs no other file and no server."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import attrs

from rlplug.durable import write_durably
from rlplug.quantities import format_duration, format_number, moment
from rlplug.review.band import on_common_steps
from rlplug.review.history import History
from rlplug.review.record import HEADLINES, REGRET, CheckpointRecord, RunRecord
from rlplug.review.statistics import bootstrap_rows

__all__ = ["REPORT", "ReportedRun", "checkpoints_text", "render", "write_report"]

REPORT = "report.html"
LARGEST_VIDEO = 5_000_000
MOST_POINTS = 1_000
"""Values per curve; of longer ones every second, third, … is drawn."""

_PARTS = ("step", "act", "prepare", "learn", "track", "evaluate")
"""What the time of a run is split into."""


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
    config: str = ""
    """All options as TOML."""
    video: Path | None = None
    league: Path | None = None
    """The picture of its league."""


def write_report(
    file: Path, runs: Sequence[ReportedRun], *, title: str = "", table: str = ""
) -> None:
    """Write the page; `table` is HTML that comes first, such as the summary of several seeds."""
    write_durably(file, render(runs, title=title, table=table).encode())


def render(runs: Sequence[ReportedRun], *, title: str = "", table: str = "") -> str:
    """The page as text."""
    name = title or runs[0].run.name
    parts = [
        f"<h1>{escape(name)}</h1>",
        *(_head(runs[0]) if len(runs) == 1 else (_headline(runs[0], seeds=len(runs)),)),
        table,
        *_chart(),
        *(_body(runs[0]) if len(runs) == 1 else _members(runs, name)),
    ]
    here = files("rlplug.review")
    style, script = ((here / f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    # A text such as </script> in the data must not end the element.
    data = json.dumps(_data(runs), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(name)}</title>",
            f"<style>\n{style}</style></head><body>",
            *parts,
            f'<script type="application/json" id="data">{data}</script>',
            f"<script>\n{script}</script>",
            "</body></html>\n",
        ]
    )


def _data(runs: Sequence[ReportedRun]) -> dict[str, object]:
    """What the script draws."""
    names = {name for one in runs for name in one.history}
    # Beside the training of a single run, its evaluations are drawn as well.
    first = HEADLINES[1:] if len(runs) == 1 else HEADLINES
    training = next((name for name in first if name in names), "")
    return {
        "runs": [
            {
                "label": f"seed {one.run.about.seed}",
                "metrics": {name: _thinned(*series) for name, series in one.history.items()},
            }
            for one in runs
        ],
        "training": training or next((name for name in HEADLINES if name in names), ""),
        "best": runs[0].run.best if len(runs) == 1 else None,
        "bands": dict(_bands(runs)) if len(runs) > 1 else {},
    }


def _bands(runs: Sequence[ReportedRun]) -> Iterator[tuple[str, dict[str, Sequence[float | None]]]]:
    """Of each metric that all runs have: steps, mean, and the ends of its 95% interval."""
    for name in runs[0].history:
        if all(name in one.history for one in runs):
            steps, rows = on_common_steps([one.history[name] for one in runs])
            if len(steps):
                low, high = bootstrap_rows(rows)
                drawn = {"mean": rows.mean(axis=0), "low": low, "high": high}
                yield (
                    name,
                    {
                        "steps": _thinned(steps, steps)[0],
                        **{kind: _thinned(steps, values)[1] for kind, values in drawn.items()},
                    },
                )


def _thinned(
    steps: Iterable[float], values: Iterable[float]
) -> tuple[list[int], list[float | None]]:
    pairs = list(zip(steps, values, strict=True))
    every = -(-len(pairs) // MOST_POINTS)
    kept = pairs[::every] if every > 1 else pairs
    return (
        [int(step) for step, _ in kept],
        [float(f"{value:.6g}") if math.isfinite(value) else None for _, value in kept],
    )


def _head(one: ReportedRun) -> Iterator[str]:
    run, about = one.run, one.run.about
    yield _headline(one)
    yield f'<p class="quiet">run {escape(run.run_id)}</p>'
    tiles = []
    if run.best is not None:
        step, best = run.best
        tiles.append(("best", "best evaluation", format_number(best), f"at step {step:,}"))
    for name, label in zip(
        HEADLINES, ("last evaluation", "training return", "reward"), strict=True
    ):
        if name in run.latest and not (name == HEADLINES[2] and HEADLINES[1] in run.latest):
            tiles.append(("", label, format_number(run.latest[name]), ""))
    if REGRET in run.latest:
        tiles.append(("", "total regret", format_number(run.latest[REGRET]), ""))
    of = f"of {about.steps:,}" if about.steps else ""
    tiles.append(("", "environment steps", f"{run.step:,}", of))
    started, ended = moment(run.started), moment(run.ended)
    took = format_duration((ended - started).total_seconds()) if started and ended else ""
    tiles.append((run.status, "status", run.status.lower(), took and f"took {took}"))
    yield '<div class="tiles">'
    for kind, label, value, note in tiles:
        shown = f'<span class="quiet">{escape(note)}</span>' if note else ""
        yield (
            f'<div class="tile {escape(kind)}"><span class="quiet">{label}</span>'
            f"<b>{escape(value)}</b>{shown}</div>"
        )
    yield "</div>"


def _headline(one: ReportedRun, *, seeds: int = 0) -> str:
    about = one.run.about
    options = f"; {escape(about.shown_options)}" if about.options else ""
    which = f"{seeds} seeds" if seeds else f"seed {about.seed}"
    return f"<p>{escape(about.algorithm)} on {escape(about.env)}, {which}{options}</p>"


def _chart() -> Iterator[str]:
    yield '<h2>Metrics <select id="metric" aria-label="metric"></select></h2>'
    yield '<p class="quiet">Hover for values; drag to zoom, double click to zoom out.</p>'
    yield '<div id="chart"><div id="tip"></div></div><div id="legend"></div>'
    yield "<noscript><p>The curve is in plots/learning_curve.png.</p></noscript>"


def _made_of(one: ReportedRun) -> Iterator[str]:
    """The options and plugins, which all seeds of a group have in common."""
    options = one.run.about.options
    yield "<h2>Options that differ from the defaults</h2>"
    yield _table(("option", "value"), options.items()) if options else "<p>none</p>"
    if one.config:
        yield f"<details><summary>all options</summary><pre>{escape(one.config)}</pre></details>"
    if one.plugins:
        yield "<h2>Plugins</h2>"
        yield "".join(f"<p>{escape(plugin)}</p>" for plugin in one.plugins)


def _body(one: ReportedRun) -> Iterator[str]:
    yield from _made_of(one)
    if one.checkpoints:
        yield "<h2>Checkpoints</h2>"
        yield _table(("step", "return", ""), _ranked(one), numbers=2)
    yield from _league(one.league)
    yield from _video(one.video)
    times = list(_times(one))
    if times or one.machine:
        yield "<h2>Time and machine</h2>"
        yield _table(("", ""), [*times, *one.machine.items()])
    yield "<h2>Go on</h2>"
    run = one.run.short
    finished = one.run.status == "FINISHED"
    steps = f" --steps {2 * max(one.run.step, 1)}" if finished else ""
    lines = [
        ("train on" if finished else "resume", f"rlplug resume {run}{steps}"),
        ("evaluate", f"rlplug eval {run} --episodes 100"),
        ("run again", f"rlplug run --like {run}"),
        ("in Python", f'rlplug.load("{run}").predict(observation)'),
    ]
    if one.command:
        lines.insert(0, ("started by", one.command))
    yield _table(("", ""), lines, code=True)


def _times(one: ReportedRun) -> Iterator[tuple[str, str]]:
    """How long training took, and what share each part of it had."""
    whole = one.run.latest.get("time/seconds", 0.0)
    if whole:
        speed = f"{one.run.step / whole:,.0f} steps per second"
        yield "training took", f"{format_duration(whole)}, {speed}"
    # Each report has the seconds since the one before.
    names = {part: f"time/{part}_seconds" for part in _PARTS}
    spent = {
        part: float(one.history[name].values.sum())
        for part, name in names.items()
        if name in one.history
    }
    total = sum(spent.values())
    if total > 0:
        parts = sorted(spent.items(), key=lambda part: -part[1])
        yield "of it", ", ".join(f"{part} {seconds / total:.0%}" for part, seconds in parts)


def checkpoints_text(one: ReportedRun) -> str:
    """The checkpoints as Markdown, the best first."""
    rows = [f"| {' | '.join(row)} |" for row in _ranked(one)]
    return "\n".join(
        [
            f"Checkpoints of {one.run.name}, the best first.",
            "",
            "| step | return | |",
            "|---:|---:|---|",
            *rows,
            "",
            f"`rlplug eval {one.run.short}@STEP`, and `rlplug.load` in Python, take each of them.",
            "",
        ]
    )


def _ranked(one: ReportedRun) -> list[tuple[str, str, str]]:
    """Step, return and marks of each checkpoint, the best first."""
    return [
        (f"{kept.step:,}", format_number(kept.score), ", ".join(kept.marks))
        for kept in sorted(one.checkpoints, key=_rank)
    ]


def _rank(kept: CheckpointRecord) -> tuple[bool, float, int]:
    """The best first; those without an evaluation last, newest first."""
    score = math.nan if kept.score is None else kept.score
    return "best" not in kept.marks, math.inf if math.isnan(score) else -score, -kept.step


def _league(picture: Path | None) -> Iterator[str]:
    if picture is not None:
        encoded = base64.b64encode(picture.read_bytes()).decode()
        shows = "win rates of all copies against each other, and Elo ratings"
        yield f'<h2>League</h2><img alt="{shows}" src="data:image/png;base64,{encoded}">'


def _video(video: Path | None) -> Iterator[str]:
    if video is None:
        return
    try:
        content = video.read_bytes() if video.stat().st_size <= LARGEST_VIDEO else b""
    except FileNotFoundError:
        # A run in progress deletes it when there is a better one.
        return
    yield f'<h2>Video</h2><p class="quiet">one greedy episode, {escape(video.name)}</p>'
    if content:
        kind = "gif" if video.suffix == ".gif" else "mp4"
        encoded = base64.b64encode(content).decode()
        if kind == "gif":
            yield f'<img alt="one episode" src="data:image/gif;base64,{encoded}">'
        else:
            yield f'<video controls muted src="data:video/mp4;base64,{encoded}"></video>'
    else:
        yield f'<p><a href="videos/{escape(video.name)}">videos/{escape(video.name)}</a></p>'


def _members(runs: Sequence[ReportedRun], group: str) -> Iterator[str]:
    rows = [
        (
            one.run.about.seed,
            one.run.name,
            one.run.short,
            one.run.shown_status,
            f"{one.run.step:,}",
            "" if one.run.best is None else format_number(one.run.best[1]),
            "" if one.run.best is None else f"{one.run.best[0]:,}",
        )
        for one in runs
    ]
    yield "<h2>Runs</h2>"
    yield _table(("seed", "run", "id", "status", "steps", "best return", "at step"), rows)
    yield from _made_of(runs[0])
    yield "<h2>Go on</h2>"
    steps = 2 * max(max(one.run.step for one in runs), 1)
    lines = [
        ("train on", f"rlplug resume {group} --steps {steps}"),
        ("compare", f"rlplug compare {group} OTHER"),
        ("the best", f"rlplug best {group}"),
    ]
    yield _table(("", ""), lines, code=True)


def _table(
    heading: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: int = 0,
    code: bool = False,
) -> str:
    """A table whose first columns are `numbers`; with `code`, the last column is code."""

    def cell(at: int, value: object, tag: str) -> str:
        kind = ' class="number"' if at < numbers else ""
        text = escape(str(value))
        shown = f"<code>{text}</code>" if code and at else text
        return f"<{tag}{kind}>{shown}</{tag}>"

    lines = [
        "<tr>" + "".join(cell(at, value, "td") for at, value in enumerate(row)) + "</tr>"
        for row in rows
    ]
    if any(heading):
        lines.insert(
            0, "<tr>" + "".join(cell(at, one, "th") for at, one in enumerate(heading)) + "</tr>"
        )
    return f"<table>{''.join(lines)}</table>"
