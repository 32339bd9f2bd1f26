"""Plot of a league: win rates between its copies, and their Elo ratings over the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from rlplug.review.figure import (
    COLORS,
    INK,
    QUIET,
    headed_figure,
    label_point,
    save_png,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_league"]

_NUMBERS = 12
"""Players up to which each cell shows its win rate."""
_TICKS = 12
_UNKNOWN = "#f0f1f3"
"""The color of pairs that have not played."""


def draw_league(
    *,
    steps: Sequence[int],
    win_rates: Sequence[Sequence[float]],
    ratings: Sequence[tuple[int, float]],
    subtitle: str,
    file: Path,
) -> None:
    """Write the plot.

    `win_rates` are those of rows against columns, of copies in the order of their `steps`, then of
    the current weights; nan where unknown. `ratings` are steps with Elo ratings.
    """
    figure = headed_figure(11.5, 5.4, "League", subtitle)
    left = figure.add_axes((0.075, 0.17, 0.36, 0.62))
    bar = figure.add_axes((0.445, 0.17, 0.012, 0.62))
    right = figure.add_axes((0.555, 0.17, 0.39, 0.62))
    _draw_matrix(left, bar, steps, numpy.array(win_rates, float))
    _draw_ratings(right, ratings)
    save_png(figure, file)


def _draw_matrix(axes: Axes, bar: Axes, steps: Sequence[int], rates: numpy.ndarray) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import EngFormatter

    scale = LinearSegmentedColormap.from_list("league", [COLORS[1], "white", COLORS[0]])
    colors = scale.with_extremes(bad=_UNKNOWN)
    image = axes.imshow(rates, cmap=colors, vmin=0, vmax=1, aspect="auto")
    count = len(rates)
    shown = sorted({*range(0, count, -(-count // _TICKS)), count - 1})
    number = EngFormatter(sep="")
    labels = [*(str(number(step)) for step in steps), "now"]
    axes.set_xticks(shown, [labels[one] for one in shown], rotation=45, ha="right")
    axes.set_yticks(shown, [labels[one] for one in shown])
    axes.set_xlabel("step of the copy", size=9.5, color=QUIET)
    axes.set_title("win rate of row against column", loc="left", size=11, color=INK)
    axes.tick_params(length=0, labelsize=9, labelcolor=QUIET)
    if count <= _NUMBERS:
        for row, column in numpy.argwhere(~numpy.isnan(rates)):
            rate = rates[row, column]
            color = "white" if abs(rate - 0.5) > 0.3 else INK
            text = f"{rate:.2f}".removeprefix("0")
            axes.text(column, row, text, ha="center", va="center", size=8, color=color)
    axes.figure.colorbar(image, cax=bar, ticks=[0, 0.5, 1])
    bar.tick_params(length=0, labelsize=9, labelcolor=QUIET)
    for part in (axes, bar):
        for spine in part.spines.values():
            spine.set_visible(False)


def _draw_ratings(axes: Axes, ratings: Sequence[tuple[int, float]]) -> None:
    style_axes(axes, "Elo rating of the copies")
    steps, values = zip(*ratings, strict=True)
    axes.plot(steps, values, color=COLORS[0], linewidth=1.6, marker="o", markersize=3.5)
    label_point(axes, steps[-1], values[-1], COLORS[0])
