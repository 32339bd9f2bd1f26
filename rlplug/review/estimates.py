"""The plot of off-policy estimates: a point and an interval per estimator and policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlplug.review.figure import COLORS, GRID, INK, QUIET, headed_figure, save_png

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
    figure = headed_figure(8.0, 1.6 + 0.42 * len(names), title, subtitle)
    top = 1 - 0.75 / (1.6 + 0.42 * len(names))
    axes = figure.add_axes((0.2, 0.13, 0.76, top - 0.13))
    axes.axvspan(logged.low, logged.high, color=GRID, lw=0)
    axes.axvline(logged.value, color=QUIET, lw=1.2, ls="--", label="policy that logged")
    for index, (label, points) in enumerate(policies):
        color = COLORS[index % len(COLORS)]
        shift = 0.0 if len(policies) == 1 else 0.14 * (2 * index - 1)
        there = [(y + shift, one) for y, one in enumerate(points) if math.isfinite(one.value)]
        for y, one in there:
            axes.plot([one.low, one.high], [y, y], color=color, lw=2.2, solid_capstyle="round")
        heights, values = [y for y, _ in there], [one.value for _, one in there]
        axes.plot(values, heights, "o", color=color, ms=5.5, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(of, size=9.5, color=QUIET)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="best")
    save_png(figure, path)
