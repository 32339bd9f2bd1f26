"""Plot of a league: win rates between its copies, and their Elo ratings over the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from rlplug.review.figure import (
    COLORS,
    INK,
    headed_figure,
    label_point,
    quiet_axes,
    save_png,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_league"]

_MOST = 12
"""Ticks, and players up to which each cell shows its win rate."""
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
    matrix = figure.add_axes((0.075, 0.17, 0.36, 0.62))
    bar = figure.add_axes((0.445, 0.17, 0.012, 0.62))
    _draw_matrix(matrix, bar, steps, numpy.array(win_rates, float))
    curve = figure.add_axes((0.555, 0.17, 0.39, 0.62))
    style_axes(curve, "Elo rating of the copies")
    rated, values = zip(*ratings, strict=True)
    curve.plot(rated, values, color=COLORS[0], linewidth=1.6, marker="o", markersize=3.5)
    label_point(curve, rated[-1], values[-1], COLORS[0])
    save_png(figure, file)


def _draw_matrix(axes: Axes, bar: Axes, steps: Sequence[int], rates: numpy.ndarray) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import EngFormatter

    scale = LinearSegmentedColormap.from_list("league", [COLORS[1], "white", COLORS[0]])
    colors = scale.with_extremes(bad=_UNKNOWN)
    image = axes.imshow(rates, cmap=colors, vmin=0, vmax=1, aspect="auto")
    axes.figure.colorbar(image, cax=bar, ticks=[0, 0.5, 1])
    quiet_axes(axes, "win rate of row against column", "step of the copy")
    quiet_axes(bar, "", "")
    for part in (axes, bar):
        part.spines[:].set_visible(False)
    count = len(rates)
    shown = sorted({*range(0, count, -(-count // _MOST)), count - 1})
    number = EngFormatter(sep="")
    labels = [*(str(number(step)) for step in steps), "now"]
    axes.set_xticks(shown, [labels[place] for place in shown], rotation=45, ha="right")
    axes.set_yticks(shown, [labels[place] for place in shown])
    if count <= _MOST:
        for row, column in numpy.argwhere(~numpy.isnan(rates)):
            rate = rates[row, column]
            color = "white" if abs(rate - 0.5) > 0.3 else INK
            text = f"{rate:.2f}".removeprefix("0")
            axes.text(column, row, text, ha="center", va="center", size=8, color=color)
