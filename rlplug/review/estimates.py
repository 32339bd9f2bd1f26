"""The plot of off-policy estimates: a point and an interval per estimator and policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlplug.review.figure import (
    COLORS,
    GRID,
    QUIET,
    headed_figure,
    quiet_axes,
    save_png,
    show_legend,
)

__all__ = ["Point", "draw_estimates"]


class Point(NamedTuple):
    """An estimate and its interval."""

    value: float
    low: float
    high: float


def draw_estimates(
    names: Sequence[str],
    policies: Sequence[tuple[str, Sequence[Point]]],
    logged: Point,
    title: str,
    subtitle: str,
    of: str,
    path: Path,
) -> None:
    """Write a PNG: rows are estimators, the line is what the log's own policy earned.

    `of` says what is estimated.
    """
    height = 1.6 + 0.42 * len(names)
    figure = headed_figure(8.0, height, title, subtitle)
    axes = figure.add_axes((0.2, 0.13, 0.76, 0.87 - 0.75 / height))
    axes.axvspan(logged.low, logged.high, color=GRID, lw=0)
    axes.axvline(logged.value, color=QUIET, lw=1.2, ls="--", label="policy that logged")
    for index, (label, points) in enumerate(policies):
        color = COLORS[index % len(COLORS)]
        shift = 0.0 if len(policies) == 1 else 0.14 * (2 * index - 1)
        known = {y + shift: one for y, one in enumerate(points) if math.isfinite(one.value)}
        for y, one in known.items():
            axes.plot([one.low, one.high], [y, y], color=color, lw=2.2, solid_capstyle="round")
        values = [one.value for one in known.values()]
        axes.plot(values, [*known], "o", color=color, ms=5.5, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    quiet_axes(axes, "", of)
    axes.spines["left"].set_visible(False)
    show_legend(axes)
    save_png(figure, path)
