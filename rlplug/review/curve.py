"""Plot of the learning curve: return or reward, and regret, over environment steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy

from rlplug.review.figure import (
    COLORS,
    EVAL_COLOR,
    INK,
    headed_figure,
    label_point,
    plotted_number,
    save_png,
    style_axes,
)
from rlplug.review.history import Array, History, Series
from rlplug.review.record import BEST_RETURN, BEST_STEP, HEADLINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "curve_figure", "draw_curve", "panels_of"]

LEFT, RIGHT = 0.75, 0.7
"""Margins of a panel in inches, for tick labels and the label of the last value."""

BEST_COLOR = "#b7791f"


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
        return any(word in self.name for word in ("total", "sum", "cumulative"))

    @property
    def title(self) -> str:
        """The metric's name as a title."""
        return self.name.rpartition("/")[2].replace("_", " ")


def panels_of(history: History) -> list[Panel]:
    """The panels that a run has metrics for: its return or reward, then its regret."""
    first = next((name for name in HEADLINES[1:] if name in history), HEADLINES[-1])
    panels = [_panel(history, first), _panel(history, _regret(history))]
    panels[0] = attrs.evolve(panels[0], evaluated=_evaluations(history), best=_best(history))
    return [panel for panel in panels if len(panel.steps) or len(panel.evaluated)]


def draw_curve(panels: Sequence[Panel], title: str, subtitle: str, file: Path) -> None:
    """Plot the panels side by side into a PNG file."""
    save_png(curve_figure(panels, title, subtitle), file)


def curve_figure(panels: Sequence[Panel], title: str, subtitle: str) -> Figure:
    """The panels side by side as a figure of matplotlib."""
    across, high = 1.2 + 5.4 * len(panels), 4.4
    figure = headed_figure(across, high, title, subtitle)
    for index, panel in enumerate(panels):
        # Explicit positions: automatic layout takes as long as the drawing itself.
        left, bottom, width = LEFT + index * (across / len(panels)), 0.6, across / len(panels)
        inches = (left / across, bottom / high, (width - LEFT - RIGHT) / across, 2.95 / high)
        axes = figure.add_axes(inches)
        style_axes(axes, panel.title)
        _format_values(axes, panel)
        _draw(axes, panel, COLORS[index % len(COLORS)])
    return figure


_NONE = Series(numpy.empty(0), numpy.empty(0))


def _panel(history: History, name: str) -> Panel:
    steps, values = history.get(name, _NONE)
    return Panel(name=name, steps=steps, values=values, evaluated=numpy.empty((0, 4)))


def _evaluations(history: History) -> Array:
    """Rows of step, mean, least and largest return."""
    steps, means = history.get("eval/return_mean", _NONE)
    spread = {
        name: dict(zip(*history.get(f"eval/return_{name}", _NONE), strict=True))
        for name in ("min", "max")
    }
    rows = [
        (step, mean, spread["min"].get(step, mean), spread["max"].get(step, mean))
        for step, mean in zip(steps, means, strict=True)
    ]
    return numpy.array(rows, dtype=float).reshape(-1, 4)


def _best(history: History) -> tuple[int, float] | None:
    if BEST_STEP not in history:
        return None
    return int(history[BEST_STEP].values[-1]), float(history[BEST_RETURN].values[-1])


def _regret(names: Collection[str]) -> str:
    """The regret metric to plot: cumulative rather than mean; empty without any."""
    regrets = sorted(name for name in names if "regret" in name.rpartition("/")[2])
    sums = [name for name in regrets if any(w in name for w in ("total", "sum", "cumulative"))]
    return (sums or regrets or [""])[0]


def _draw(axes: Axes, panel: Panel, color: str) -> None:
    noisy = not panel.is_sum and len(panel.steps) >= 20
    single = "o" if len(panel.steps) == 1 else None
    if noisy:
        axes.plot(panel.steps, panel.values, color=color, alpha=0.25, linewidth=1.0)
        smooth = _smooth(panel.values)
        axes.plot(panel.steps, smooth, color=color, linewidth=2.0, label="training, smoothed")
    elif len(panel.steps):
        (line,) = axes.plot(panel.steps, panel.values, color=color, marker=single, linewidth=2.0)
        line.set_label("training")
    if panel.is_sum and len(panel.steps):
        axes.fill_between(panel.steps, 0.0, panel.values, color=color, alpha=0.08, linewidth=0)
    if len(panel.evaluated):
        _draw_evaluations(axes, panel)
    _label_last(axes, panel, color)


def _draw_evaluations(axes: Axes, panel: Panel) -> None:
    """The greedy policy's mean return, the range of its episodes, the best and the last value."""
    steps, means, least, largest = panel.evaluated.T
    (line,) = axes.plot(steps, means, color=EVAL_COLOR, marker="o", markersize=4, linewidth=1.6)
    line.set_label("evaluation, greedy")
    seen = "its episodes, least to best"
    axes.fill_between(steps, least, largest, color=EVAL_COLOR, alpha=0.12, linewidth=0, label=seen)
    if numpy.isfinite(means[-1]):
        label_point(axes, steps[-1], means[-1], EVAL_COLOR)
    if panel.best is not None:
        label = f"best: {plotted_number(panel.best[1])} at step {panel.best[0]:,}"
        (marker,) = axes.plot(*panel.best, "*", color=BEST_COLOR, label=label, zorder=5)
        marker.set(markersize=13, markeredgecolor="white")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)


def _label_last(axes: Axes, panel: Panel, color: str) -> None:
    """Label the last value of the curve, unless that of the greedy policy is close to it."""
    finite = numpy.flatnonzero(numpy.isfinite(panel.values))
    if not len(finite):
        return
    noisy = not panel.is_sum and len(panel.steps) >= 20
    shown = (_smooth(panel.values) if noisy else panel.values)[finite[-1]]
    low, high = axes.get_ylim()
    near = len(panel.evaluated) and abs(panel.evaluated[-1, 1] - shown) < (high - low) / 20
    if not near:
        label_point(axes, panel.steps[finite[-1]], shown, color)


def _format_values(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter

    seen = panel.values[numpy.isfinite(panel.values)]
    largest, spread = numpy.abs(seen).max(initial=0.0), numpy.ptp(seen) if len(seen) else 0.0
    if largest < 1e4:
        # Without a negative zero.
        axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at + 0.0:,.10g}"))
    elif spread > largest / 20:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _smooth(values: Array) -> Array:
    """A centered moving average that ignores NaN, with shorter windows at both ends."""
    half = max(1, len(values) // 40)
    finite = numpy.isfinite(values)
    sums = numpy.concatenate([[0.0], numpy.cumsum(numpy.where(finite, values, 0.0))])
    counts = numpy.concatenate([[0], numpy.cumsum(finite)])
    index = numpy.arange(len(values))
    low = numpy.maximum(index - half, 0)
    high = numpy.minimum(index + half + 1, len(values))
    number = counts[high] - counts[low]
    means = (sums[high] - sums[low]) / numpy.maximum(number, 1)
    return numpy.where(number > 0, means, numpy.nan)
