"""Plot of several runs: the mean of each group over environment steps, with a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from rlplug.review.figure import (
    COLORS,
    EVAL_COLOR,
    headed_figure,
    label_point,
    save_png,
    show_legend,
    style_axes,
)
from rlplug.review.history import NO_VALUES, Array, Series
from rlplug.review.statistics import bootstrap_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["band_figure", "draw_band", "on_common_steps"]

_COLORS = (*COLORS, EVAL_COLOR, "#7c3aed", "#b7791f", "#0f766e", "#be185d", "#4b5563")


def draw_band(
    groups: Mapping[str, Sequence[Series]], title: str, subtitle: str, file: Path, *, name: str = ""
) -> None:
    """Plot the groups into a PNG file, as `band_figure` does."""
    save_png(band_figure(groups, title, subtitle, name=name), file)


def band_figure(
    groups: Mapping[str, Sequence[Series]], title: str, subtitle: str, *, name: str = ""
) -> Figure:
    """Plot each group's mean over its runs, with 95% bootstrap intervals.

    One run is a line without a band. `name` labels the y-axis.
    """
    figure = headed_figure(7.6, 4.6, title, subtitle)
    axes = figure.add_axes((0.1, 0.13, 0.79, 0.66))
    style_axes(axes, name)
    for index, (group, runs) in enumerate(groups.items()):
        steps, rows = on_common_steps(runs)
        if len(steps):
            color, means = _COLORS[index % len(_COLORS)], rows.mean(axis=0)
            seeds = f" ({len(rows)} runs)" if len(rows) > 1 else ""
            axes.plot(steps, means, color=color, linewidth=2.0, label=f"{group}{seeds}")
            if len(rows) > 1:
                axes.fill_between(
                    steps, *bootstrap_rows(rows), color=color, alpha=0.15, linewidth=0
                )
            label_point(axes, steps[-1], means[-1], color)
    if axes.lines:
        show_legend(axes)
    return figure


def on_common_steps(runs: Sequence[Series]) -> tuple[Array, Array]:
    """The steps at which all runs of a group have values, and a row of values per run.

    Runs of one group report at the same steps; for others, values between two reports are
    interpolated at the steps of the first, as far as the shortest goes.
    """
    finite = [Series(*(column[numpy.isfinite(run.values)] for column in run)) for run in runs]
    finite = [run for run in finite if len(run.steps)]
    if not finite:
        return NO_VALUES.steps, numpy.empty((0, 0))
    steps = finite[0].steps
    steps = steps[steps >= max(run.steps[0] for run in finite)]
    steps = steps[steps <= min(run.steps[-1] for run in finite)]
    rows = [numpy.interp(steps, run.steps, run.values) for run in finite]
    return steps, numpy.array(rows).reshape(len(finite), len(steps))
