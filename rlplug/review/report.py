"""The report of a run: one static HTML page that needs no other file."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from rlplug.quantities import format_duration, format_number, moment
from rlplug.review.history import NO_VALUES, History, RunDetails
from rlplug.review.record import HEADLINES, REGRET, CheckpointRecord, RunRecord

REPORT = "report.html"
LARGEST_VIDEO = 5_000_000
_EVALUATIONS = 20
"""The newest that are listed; the curve has all."""
_LABELS = {
    HEADLINES[0]: "last evaluation",
    HEADLINES[1]: "training return",
    HEADLINES[2]: "reward per step",
    REGRET: "total regret",
}
_STYLE = """
body { margin: 0 auto; max-width: 1000px; padding: 20px 24px 60px; color: #1f2933;
  font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0; }
h2 { font-size: 16px; margin: 28px 0 8px; }
table { border-collapse: collapse; font-size: 14px; }
td, th { text-align: left; padding: 3px 18px 3px 0; border-bottom: 1px solid #e4e7eb;
  vertical-align: top; overflow-wrap: anywhere; }
th, summary { color: #64707d; font-weight: normal; }
pre { background: #f7f9fa; padding: 10px 12px; overflow-x: auto; font-size: 13px; }
img, video { max-width: 100%; }
"""


def render(
    run: RunRecord,
    details: RunDetails,
    *,
    machine: Mapping[str, str],
    texts: Mapping[str, str],
    pictures: Mapping[str, Path],
) -> str:
    """The page; `machine`, `texts` and `pictures` (files) have titles as keys."""
    about = run.about
    is_finished = run.status == "FINISHED"
    steps = f" --steps {2 * max(run.step, 1)}" if is_finished else ""
    commands = {
        "started by": details.command,
        "train on" if is_finished else "resume": f"rlplug resume {run.short}{steps}",
        "evaluate": f"rlplug eval {run.short} --episodes 100",
        "run again": f"rlplug run --like {run.short}",
        "in Python": f'rlplug.load("{run.short}").predict(observation)',
    }
    parts = [
        _table(_results(run)),
        *(_picture(title, file) for title, file in pictures.items()),
        _section("Options that differ from the defaults", about.options.items()),
        *(
            f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
            for title, text in texts.items()
        ),
        _section("Plugins", [(plugin,) for plugin in details.plugins]),
        _section("Evaluations", _evaluations(details.history), ("step", "mean", "least", "best")),
        _section("Checkpoints", _ranked(details), ("step", "return", "")),
        _section("Machine", [row for row in machine.items() if row[1]]),
        _section("Go on", [row for row in commands.items() if row[1]]),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(run.name)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(run.name)}</h1>\n"
        f"<p>{escape(f'{about.algorithm} on {about.env}, seed {about.seed}')}</p>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )


def notebook_html(title: str, rows: Mapping[str, str], png: bytes) -> str:
    """A run in a notebook: what it is, how it went, and its curve."""
    shown = _table([row for row in rows.items() if row[1]])
    picture = _image(base64.b64encode(png).decode(), "learning curve")
    return f"<div><b>{escape(title)}</b>{shown}{picture}</div>"


def checkpoints_text(run: RunRecord, details: RunDetails) -> str:
    """The checkpoints as Markdown, the best first."""
    rows = "".join(f"| {' | '.join(row)} |\n" for row in _ranked(details))
    return (
        f"Checkpoints of {run.name}, the best first.\n\n| step | return | |\n|---:|---:|---|\n"
        f"{rows}\nEach can be used as `{run.short}@STEP` by `rlplug eval` and `rlplug.load`.\n"
    )


def _results(run: RunRecord) -> Iterator[tuple[str, str]]:
    started, ended = moment(run.started), moment(run.ended)
    took = format_duration((ended - started).total_seconds()) if started and ended else ""
    yield "run", run.run_id
    yield "status", run.shown_status.lower() + (f", took {took}" if took else "")
    of = f" of {run.about.steps:,}" if run.about.steps else ""
    yield "environment steps", f"{run.step:,}{of}"
    if run.best is not None:
        yield "best evaluation", f"{format_number(run.best[1])} at step {run.best[0]:,}"
    for name, label in _LABELS.items():
        if name in run.latest:
            yield label, format_number(run.latest[name])
    if seconds := run.latest.get("time/seconds"):
        yield "training", f"{format_duration(seconds)}, {run.step / seconds:,.0f} steps per second"


def _evaluations(history: History) -> list[tuple[str, ...]]:
    """Step, mean, least and largest return, the newest first."""
    columns = [
        dict(zip(*history.get(f"eval/return_{name}", NO_VALUES), strict=True))
        for name in ("mean", "min", "max")
    ]
    return [
        (f"{step:,.0f}", *(format_number(column.get(step)) for column in columns))
        for step in sorted(columns[0], reverse=True)[:_EVALUATIONS]
    ]


def _ranked(details: RunDetails) -> list[tuple[str, str, str]]:
    """Step, return and marks of each checkpoint, the best first."""

    def rank(kept: CheckpointRecord) -> tuple[bool, float, int]:
        score = math.nan if kept.score is None else kept.score
        return "best" not in kept.marks, math.inf if math.isnan(score) else -score, -kept.step

    return [
        (f"{kept.step:,}", format_number(kept.score), ", ".join(kept.marks))
        for kept in sorted(details.checkpoints, key=rank)
    ]


def _picture(title: str, file: Path) -> str:
    """A picture or video in the page; of a large video, a link; nothing without a file."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        # A run in progress replaces its video by a better one.
        return ""
    place, data = escape(f"{file.parent.name}/{file.name}"), base64.b64encode(content).decode()
    if len(content) > LARGEST_VIDEO:
        shown = f'<p><a href="{place}">{place}</a></p>'
    elif file.suffix == ".mp4":
        shown = f'<video controls muted src="data:video/mp4;base64,{data}"></video>'
    else:
        shown = _image(data, title)
    return f"<h2>{escape(title)}</h2>{shown}"


def _image(data: str, title: str) -> str:
    return f'<img alt="{escape(title)}" src="data:image/png;base64,{data}"/>'


def _section(title: str, rows: Iterable[Sequence[str]], heading: Sequence[str] = ()) -> str:
    """A table under its title; nothing without rows."""
    table = _table(rows, heading)
    return f"<h2>{title}</h2>{table}" if table else ""


def _table(rows: Iterable[Sequence[str]], heading: Sequence[str] = ()) -> str:
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{name}</th>" for name in heading)
    lines = "".join(f"<tr>{row}</tr>" for row in ([head] if head else []) + cells)
    return f"<table>{lines}</table>" if cells else ""
