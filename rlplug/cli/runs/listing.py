"""The table of `rlplug runs`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rlplug.cli.table import Column
from rlplug.quantities import format_age, format_number
from rlplug.review.record import RunRecord

__all__ = ["as_json", "columns_of", "shown_best", "shown_last"]


def columns_of(runs: Sequence[RunRecord], *, now: datetime) -> list[Column]:
    """The columns; algorithm and environment only where the names do not begin with them."""
    named = all(_is_named(run) for run in runs)
    return [
        Column(heading="run", cells=[run.short for run in runs]),
        Column(heading="name", cells=[run.name for run in runs], shortest=18),
        Column(
            heading="algorithm",
            cells=["" if named else run.about.algorithm for run in runs],
            rank=3,
        ),
        Column(heading="env", cells=["" if named else run.about.env for run in runs], rank=3),
        Column(heading="status", cells=[run.shown_status for run in runs]),
        Column(heading="step", cells=[_step(run) for run in runs], right=True, rank=4),
        Column(heading="best @ step", cells=[shown_best(run) for run in runs], right=True, rank=1),
        Column(heading="last", cells=[shown_last(run) for run in runs], right=True, rank=2),
        Column(heading="started", cells=[format_age(run.started, now) for run in runs], rank=6),
        Column(
            heading="options",
            cells=[run.about.shown_options for run in runs],
            rank=5,
            shortest=16,
            cut_end=True,
        ),
    ]


def shown_best(run: RunRecord) -> str:
    """`500 @ 12,288`; empty without evaluations."""
    return "" if run.best is None else f"{format_number(run.best[1])} @ {run.best[0]:,}"


def shown_last(run: RunRecord) -> str:
    """The last value of what says how good the run is."""
    return "" if run.headline is None else format_number(run.headline[1])


def as_json(run: RunRecord) -> dict[str, Any]:
    """What is known of the run, as JSON values; what is not a number is null."""
    about = run.about
    best = run.best and {"step": run.best[0], "return_mean": _finite(run.best[1])}
    return {
        "run_id": run.run_id,
        "name": run.name,
        "algorithm": about.algorithm,
        "env": about.env,
        "seed": about.seed,
        "group": about.group,
        "options": dict(about.options),
        "status": run.status,
        "reason": run.reason,
        "step": run.step,
        "steps": about.steps,
        "started": run.started,
        "ended": run.ended,
        "return": _finite(run.score),
        "best": best,
        "pending": run.pending,
        "folder": None if run.folder is None else str(run.folder),
        "uri": run.uri,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _step(run: RunRecord) -> str:
    """How far a run came that has not finished, in percent, too."""
    if run.status == "FINISHED" or run.about.steps <= 0:
        return f"{run.step:,}"
    return f"{100 * run.step // run.about.steps}%  {run.step:,}"


def _is_named(run: RunRecord) -> bool:
    about = run.about
    return about.algorithm in run.name and about.env in run.name
