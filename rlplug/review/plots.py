"""Pictures of runs: learning curves, bands over seeds and off-policy estimates."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy

from rlplug.durable import unfinished
from rlplug.ope.bootstrap import Interval
from rlplug.quantities import format_number
from rlplug.review.comparison import bootstrap_rows
from rlplug.review.history import NO_VALUES, Array, History, Series
from rlplug.review.record import BEST_RETURN, BEST_STEP, HEADLINES, REGRET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUIET, GRID = "#7b8794", "#e4e7eb"
COLORS = ("#1a6fb5", "#2f855a", "#c2410c", "#7c3aed", "#b7791f", "#0f766e", "#be185d", "#4b5563")
_FEW = 20
"""Points below which a curve is not smoothed and its points are marked."""


@attrs.frozen(kw_only=True, eq=False)
class Line:
    """A curve over environment steps."""

    label: str
    steps: Array
    values: Array
    band: tuple[Array, Array] | None = None
    """Lower and upper bounds."""
    raw: Array | None = None
    """The values before smoothing."""


@attrs.frozen(kw_only=True)
class Panel:
    """Curves that share their axes."""

    name: str
    lines: Sequence[Line]
    best: tuple[int, float] | None = None
    """Step and mean return of the best evaluation."""


def curve_panels(history: History) -> list[Panel]:
    """Return or reward with evaluations, and the total regret, as far as the run has them."""
    name = HEADLINES[1] if HEADLINES[1] in history else HEADLINES[2]
    lines, panels = [], []
    best = None
    if name in history:
        steps, values = history[name]
        smooth = values if len(values) < _FEW else _smooth(values)
        label = "training" if smooth is values else "training, smoothed"
        raw = None if smooth is values else values
        lines.append(Line(label=label, steps=steps, values=smooth, raw=raw))
    if HEADLINES[0] in history:
        steps, values = history[HEADLINES[0]]
        bounds = [history.get(f"eval/return_{end}", NO_VALUES).values for end in ("min", "max")]
        band = (bounds[0], bounds[1]) if all(len(one) == len(steps) for one in bounds) else None
        lines.append(Line(label="evaluation, greedy", steps=steps, values=values, band=band))
        if BEST_STEP in history:
            best = int(history[BEST_STEP].values[-1]), float(history[BEST_RETURN].values[-1])
    if lines:
        panels.append(Panel(name=name, lines=lines, best=best))
    if REGRET in history:
        steps, values = history[REGRET]
        panels.append(Panel(name=REGRET, lines=[Line(label="", steps=steps, values=values)]))
    return panels


def band_panel(groups: Mapping[str, Sequence[Series]], name: str) -> Panel:
    """The mean over the runs of each group, with its 95% bootstrap interval."""
    lines = []
    for label, runs in groups.items():
        steps, rows = on_common_steps(runs)
        if len(rows) == 1:
            lines.append(Line(label=label, steps=steps, values=rows[0]))
        elif len(steps):
            label, band = f"{label} ({len(rows)} runs)", bootstrap_rows(rows)
            lines.append(Line(label=label, steps=steps, values=rows.mean(axis=0), band=band))
    return Panel(name=name, lines=lines)


def on_common_steps(runs: Sequence[Series]) -> tuple[Array, Array]:
    """The steps at which all runs have values, and a row of values per run.

    Seeds report at the same steps; the values of other runs are interpolated at the steps of the
    first, as far as the shortest goes.
    """
    finite = [Series(*(column[numpy.isfinite(run.values)] for column in run)) for run in runs]
    finite = [run for run in finite if len(run.steps)]
    if not finite:
        return NO_VALUES.steps, numpy.empty((0, 0))
    steps = finite[0].steps
    first, last = max(run.steps[0] for run in finite), min(run.steps[-1] for run in finite)
    steps = steps[(first <= steps) & (steps <= last)]
    return steps, numpy.array([numpy.interp(steps, *run) for run in finite])


def draw(panels: Sequence[Panel], title: str, subtitle: str) -> Figure:
    """The panels side by side."""
    figure, every = _figure([5.4] * len(panels), 4.4, title, subtitle)
    for axes, panel in zip(every, panels, strict=True):
        _draw_lines(axes, panel)
    return figure


def estimates_figure(
    names: Sequence[str],
    policies: Mapping[str, Sequence[Interval]],
    logged: Interval,
    title: str,
    subtitle: str,
    of: str,
) -> Figure:
    """Rows of estimators with a point and an interval per policy; a line for the logging policy.

    `of` says what is estimated.
    """
    figure, (axes,) = _figure([7.5], 2.2 + 0.42 * len(names), title, subtitle)
    _style(axes, "", of)
    axes.axvspan(logged.low, logged.high, color=GRID)
    axes.axvline(logged.value, color=QUIET, linestyle="--", label="logging policy")
    for index, (label, intervals) in enumerate(policies.items()):
        rows = numpy.arange(len(names)) + 0.2 * index
        low, high = [one.low for one in intervals], [one.high for one in intervals]
        axes.hlines(rows, low, high, color=COLORS[index])
        axes.plot([one.value for one in intervals], rows, "o", color=COLORS[index], label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    place = axes.get_position()
    axes.set_position((0.25, place.y0, 0.72, place.height))
    axes.legend(frameon=False, fontsize=9)
    return figure


def png_of(figure: Figure) -> bytes:
    """The figure as PNG."""
    content = io.BytesIO()
    # 17% larger files in two thirds of the time.
    figure.savefig(content, format="png", pil_kwargs={"compress_level": 1})
    return content.getvalue()


def save(figure: Figure, file: Path) -> None:
    """Write the figure as PNG, beside the file first."""
    partial = unfinished(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(png_of(figure))
    os.replace(partial, file)


def _figure(
    widths: Sequence[float], height: float, title: str, subtitle: str
) -> tuple[Figure, list[Axes]]:
    """Axes of these widths in inches, side by side, in a figure that pyplot does not know."""
    from matplotlib.figure import Figure

    across = sum(widths) + 1.2
    figure = Figure(figsize=(across, height), dpi=110, facecolor="white")
    figure.text(0.2 / across, 1 - 0.12 / height, title, size=13, weight="bold", va="top")
    figure.text(0.2 / across, 1 - 0.4 / height, subtitle, size=9.5, color=QUIET, va="top")
    axes, left = [], 0.8
    for width in widths:
        # Explicit positions: automatic layout takes as long as the drawing itself.
        place = (left / across, 0.6 / height, (width - 0.9) / across, 1 - 1.5 / height)
        axes.append(figure.add_axes(place))
        left += width
    return figure, axes


def _style(axes: Axes, title: str, label: str) -> None:
    # Its place is given: to find one, matplotlib lays out all ticks once more.
    axes.set_title(title, loc="left", y=1.0, size=11)
    axes.set_xlabel(label, size=9.5, color=QUIET)
    axes.tick_params(length=0, labelsize=9, labelcolor=QUIET)
    axes.spines[:].set_color(GRID)
    axes.grid(color=GRID)
    axes.set_axisbelow(True)


def _draw_lines(axes: Axes, panel: Panel) -> None:
    """Each line with its band and its last value; the best evaluation is a star."""
    from matplotlib.ticker import EngFormatter

    _style(axes, panel.name.rpartition("/")[2].replace("_", " "), "environment steps")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for index, line in enumerate(panel.lines):
        color, marker = COLORS[index % len(COLORS)], "o" if len(line.steps) < _FEW else ""
        of = line.steps, line.values
        if line.raw is not None:
            axes.plot(line.steps, line.raw, color=color, alpha=0.25, linewidth=1)
        axes.plot(*of, color=color, marker=marker, markersize=4, label=line.label)
        if line.band is not None:
            axes.fill_between(line.steps, *line.band, color=color, alpha=0.15, linewidth=0)
        if numpy.isfinite(line.values[-1]):
            _annotate(axes, line.steps[-1], line.values[-1], color)
    if panel.best is not None:
        label = f"best: {_label(panel.best[1])} at step {panel.best[0]:,}"
        axes.plot(*panel.best, "*", color="#b7791f", markersize=13, label=label)
    if any(line.label for line in panel.lines):
        axes.legend(frameon=False, fontsize=9)


def _annotate(axes: Axes, step: float, value: float, color: str) -> None:
    """Write a value to the right of its point."""
    beside, label = "offset points", _label(value)
    text = axes.annotate(label, (step, value), (6, 0), textcoords=beside, annotation_clip=False)
    text.set(size=9.5, color=color, verticalalignment="center")


def _label(value: float) -> str:
    """A number that fits beside its point."""
    return format_number(value) if abs(value) < 1e5 else f"{value:.3g}"


def _smooth(values: Array) -> Array:
    """A centered moving average that ignores NaN, with shorter windows at both ends."""
    window = numpy.ones(2 * max(1, len(values) // 40) + 1)
    finite = numpy.isfinite(values)
    count = numpy.convolve(finite, window, "same").round()
    sums = numpy.convolve(numpy.where(finite, values, 0.0), window, "same")
    return numpy.where(count > 0, sums / numpy.maximum(count, 1), numpy.nan)
