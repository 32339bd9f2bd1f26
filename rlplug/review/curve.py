"""Plot of the learning curve: return or reward, and regret, over environment steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy

from rlplug.review.figure import (
    COLORS,
    EVAL_COLOR,
    headed_figure,
    label_point,
    plotted_number,
    save_png,
    show_legend,
    style_axes,
)
from rlplug.review.history import NO_VALUES, Array, History, Series
from rlplug.review.record import BEST_RETURN, BEST_STEP, HEADLINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "curve_figure", "draw_curve", "panels_of"]

BEST_COLOR = "#b7791f"
_SUMS = ("total", "sum", "cumulative")
_FEW = 20
"""Values below which a curve is not smoothed."""


@attrs.frozen(kw_only=True, eq=False)
class Panel:
    """One metric over the run, optionally with evaluations."""

    name: str
    steps: Array
    values: Array
    evaluated: Array
    """Rows of step, mean return, least and largest; empty without evaluations."""
    best: tuple[int, float] | None = None
    """Step and mean return of the best evaluation."""

    @property
    def is_sum(self) -> bool:
        """Whether it is cumulative, so that it is not smoothed."""
        return any(word in self.name for word in _SUMS)

    @property
    def smooth(self) -> Array:
        """The values, averaged over neighbours where there are many."""
        return self.values if self.is_sum or len(self.steps) < _FEW else _smooth(self.values)


def panels_of(history: History) -> list[Panel]:
    """Return or reward with evaluations, and regret, as far as the run has them."""
    first = HEADLINES[1] if HEADLINES[1] in history else HEADLINES[2]
    regrets = sorted(name for name in history if "regret" in name.rpartition("/")[2])
    sums = [name for name in regrets if any(word in name for word in _SUMS)]
    best = None
    if BEST_STEP in history:
        best = int(history[BEST_STEP].values[-1]), float(history[BEST_RETURN].values[-1])
    panels = []
    for name in (first, (sums or regrets or [""])[0]):
        steps, values = history.get(name, NO_VALUES)
        evaluated = _evaluations(history) if name == first else numpy.empty((0, 4))
        shown = best if len(evaluated) else None
        panels.append(Panel(name=name, steps=steps, values=values, evaluated=evaluated, best=shown))
    return [panel for panel in panels if len(panel.steps) or len(panel.evaluated)]


def draw_curve(panels: Sequence[Panel], title: str, subtitle: str, file: Path) -> None:
    """Plot the panels side by side into a PNG file."""
    save_png(curve_figure(panels, title, subtitle), file)


def curve_figure(panels: Sequence[Panel], title: str, subtitle: str) -> Figure:
    """The panels side by side as a figure of matplotlib."""
    across = 1.2 + 5.4 * len(panels)
    width = across / len(panels) if panels else across
    figure = headed_figure(across, 4.4, title, subtitle)
    for index, panel in enumerate(panels):
        # Explicit positions: automatic layout takes as long as the drawing itself.
        left, share = (0.75 + index * width) / across, (width - 1.45) / across
        axes = figure.add_axes((left, 0.6 / 4.4, share, 2.95 / 4.4))
        style_axes(axes, panel.name.rpartition("/")[2].replace("_", " "))
        _draw(axes, panel, COLORS[index % len(COLORS)])
    return figure


def _evaluations(history: History) -> Array:
    """Rows of step, mean, least and largest return."""
    means = Series(*history.get("eval/return_mean", NO_VALUES))
    least, largest = (
        dict(zip(*history.get(f"eval/return_{name}", NO_VALUES), strict=True))
        for name in ("min", "max")
    )
    rows = [
        (step, mean, least.get(step, mean), largest.get(step, mean))
        for step, mean in zip(*means, strict=True)
    ]
    return numpy.array(rows, dtype=float).reshape(-1, 4)


def _draw(axes: Axes, panel: Panel, color: str) -> None:
    smooth = panel.smooth
    if len(panel.steps):
        label = "training" if smooth is panel.values else "training, smoothed"
        if smooth is not panel.values:
            axes.plot(panel.steps, panel.values, color=color, alpha=0.25, linewidth=1.0)
        marker = "o" if len(panel.steps) == 1 else None
        axes.plot(panel.steps, smooth, color=color, linewidth=2.0, marker=marker, label=label)
        if panel.is_sum:
            axes.fill_between(panel.steps, 0.0, smooth, color=color, alpha=0.08, linewidth=0)
    if len(panel.evaluated):
        _draw_evaluations(axes, panel)
    _format_values(axes, smooth)
    finite = numpy.flatnonzero(numpy.isfinite(smooth))
    if len(finite):
        last, (low, high) = smooth[finite[-1]], axes.get_ylim()
        near = len(panel.evaluated) and abs(panel.evaluated[-1, 1] - last) < (high - low) / 20
        # Two labels at one place could not be read.
        if not near:
            label_point(axes, panel.steps[finite[-1]], last, color)


def _draw_evaluations(axes: Axes, panel: Panel) -> None:
    """The greedy policy's mean return, the range of its episodes, the best and the last value."""
    steps, means, least, largest = panel.evaluated.T
    label, color = "evaluation, greedy", EVAL_COLOR
    axes.plot(steps, means, color=color, marker="o", markersize=4, linewidth=1.6, label=label)
    seen = "its episodes, least to best"
    axes.fill_between(steps, least, largest, color=color, alpha=0.12, linewidth=0, label=seen)
    if numpy.isfinite(means[-1]):
        label_point(axes, steps[-1], means[-1], color)
    if panel.best is not None:
        label = f"best: {plotted_number(panel.best[1])} at step {panel.best[0]:,}"
        (star,) = axes.plot(*panel.best, "*", color=BEST_COLOR, label=label, zorder=5)
        star.set(markersize=13, markeredgecolor="white")
    show_legend(axes)


def _format_values(axes: Axes, values: Array) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter

    seen = values[numpy.isfinite(values)]
    largest, spread = numpy.abs(seen).max(initial=0.0), numpy.ptp(seen) if len(seen) else 0.0
    if largest < 1e4:
        # Without a negative zero.
        axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at + 0.0:,.10g}"))
    elif spread > largest / 20:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _smooth(values: Array) -> Array:
    """A centered moving average that ignores NaN, with shorter windows at both ends."""
    window = numpy.ones(2 * max(1, len(values) // 40) + 1)
    finite = numpy.isfinite(values)
    count = numpy.convolve(finite, window, "same").round()
    sums = numpy.convolve(numpy.where(finite, values, 0.0), window, "same")
    return numpy.where(count > 0, sums / numpy.maximum(count, 1), numpy.nan)
