"""Choose and sort recorded runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from datetime import datetime
from fnmatch import fnmatchcase

from rlplug.quantities import moment
from rlplug.review.record import RunRecord

__all__ = ["SORTED_BY", "select", "sort"]

SORTED_BY = ("started", "best", "name", "step")


def select(
    runs: Iterable[RunRecord],
    *,
    env: str = "",
    algo: str = "",
    group: str = "",
    status: Collection[str] = (),
    since: datetime | None = None,
) -> list[RunRecord]:
    """The runs that meet all conditions; texts may have `*`, and case does not matter."""
    wanted = {one.lower() for one in status}
    return [
        run
        for run in runs
        if _is_like(run.about.env, env)
        and _is_like(run.about.algorithm, algo)
        and _is_like(run.about.group, group)
        and (not wanted or run.status.lower() in wanted)
        and (since is None or _began(run) >= since.timestamp())
    ]


def sort(runs: Iterable[RunRecord], by: str = "started") -> list[RunRecord]:
    """Newest, or longest first, by name, or the best first in each environment."""
    newest = sorted(runs, key=lambda run: run.started, reverse=True)
    if by == "best":
        return sorted(newest, key=lambda run: (run.about.env, -_score(run)))
    if by == "name":
        return sorted(newest, key=lambda run: run.name)
    return sorted(newest, key=lambda run: -run.step) if by == "step" else newest


def _is_like(value: str, pattern: str) -> bool:
    return not pattern or fnmatchcase(value.lower(), pattern.lower())


def _began(run: RunRecord) -> float:
    time = moment(run.started)
    return 0.0 if time is None else time.timestamp()


def _score(run: RunRecord) -> float:
    """What is not a number comes last."""
    return -math.inf if run.score is None or math.isnan(run.score) else run.score
