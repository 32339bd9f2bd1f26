"""Learning curves of several seeds: each one, their interquartile mean, and its interval."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.review.statistics import interquartile_mean
from rlplug.runs.seeds.text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Band", "bands_of", "draw_bands"]

Array = NDArray[numpy.float64]
Curves = Mapping[str, Sequence[tuple[int, float]]]
"""Metric → steps and values of one run."""

POINTS = 200
SMOOTH = 10
"""Points of a moving average, for what is measured in training."""
RESAMPLES = 1000
TITLES = {
    "eval/return_mean": "evaluation: mean return",
    "rollout/return_mean": "training: mean return, smoothed",
    "rollout/reward_mean": "reward per step, smoothed",
    "rollout/regret_total": "total regret",
}
COLOR, QUIET, INK, GRID = "#1a6fb5", "#7b8794", "#1f2933", "#e4e7eb"


@attrs.frozen(kw_only=True, eq=False)
class Band:
    """One metric of several runs, at the same steps."""

    name: str
    curves: tuple[tuple[Array, Array], ...]
    """Steps and values of each run, as they are drawn."""
    steps: Array
    """From the last first step to the first last one: all runs have values there."""
    middle: Array
    """The interquartile mean."""
    low: Array
    high: Array
    """Its 95 % bootstrap interval."""

    @classmethod
    def of(cls, name: str, curves: Sequence[tuple[Array, Array]]) -> Band:
        """Of at least one run."""
        begin = max(steps[0] for steps, _ in curves)
        end = max(min(steps[-1] for steps, _ in curves), begin)
        grid = numpy.unique(numpy.linspace(begin, end, POINTS))
        at_grid = numpy.stack([_smooth(numpy.interp(grid, *curve), name) for curve in curves])
        drawn = numpy.random.default_rng(0).integers(len(curves), size=(RESAMPLES, len(curves)))
        # The statistic is over the last axis: the seeds.
        resampled = interquartile_mean(at_grid.T[:, drawn])
        low, high = numpy.percentile(resampled, [2.5, 97.5], axis=1)
        middle = interquartile_mean(at_grid.T)
        drawn_curves = tuple((grid, values) for values in at_grid)
        return cls(name=name, curves=drawn_curves, steps=grid, middle=middle, low=low, high=high)


def bands_of(runs: Sequence[Curves]) -> list[Band]:
    """The evaluations, if there are any, and what was measured in training; at most two."""
    names = list(TITLES)
    if any(run.get("rollout/return_mean") for run in runs):
        # Where episodes have several steps, the reward of one says little.
        names.remove("rollout/reward_mean")
    found = []
    for name in names:
        curves = [curve for run in runs if (curve := _finite(run.get(name, ()))) is not None]
        if curves and len(curves) == len(runs):
            found.append(Band.of(name, curves))
    return found[:2]


def draw_bands(bands: Sequence[Band], title: str, subtitle: str, file: Path) -> None:
    """Plot the bands side by side into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across, high = 1.2 + 5.4 * len(bands), 4.4
    figure = Figure(figsize=(across, high), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.02, 0.975, title, size=13, weight="bold", color=INK, va="top")
    figure.text(0.02, 0.915, subtitle, size=9.5, color=QUIET, va="top")
    for index, band in enumerate(bands):
        width = across / len(bands)
        left = 0.75 + index * width
        inches = (left / across, 0.6 / high, (width - 1.45) / across, 2.95 / high)
        axes = figure.add_axes(inches)
        _style(axes, band)
        _draw(axes, band)
    partial = file.with_suffix(".new.png")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(partial, pil_kwargs={"compress_level": 1})
    os.replace(partial, file)


def _finite(points: Sequence[tuple[int, float]]) -> tuple[Array, Array] | None:
    """Steps and values in the order of steps, without NaN; None if nothing is left."""
    last = {step: value for step, value in points if numpy.isfinite(value)}
    if not last:
        return None
    steps = sorted(last)
    return numpy.array(steps, dtype=float), numpy.array([last[step] for step in steps])


def _smooth(values: Array, name: str) -> Array:
    """A centered moving average, shorter at both ends; of evaluations and sums the values."""
    half = min(SMOOTH, len(values) // 10) // 2
    if half == 0 or not name.startswith("rollout/") or "total" in name:
        return values
    sums = numpy.concatenate([[0.0], numpy.cumsum(values)])
    index = numpy.arange(len(values))
    low, high = numpy.maximum(index - half, 0), numpy.minimum(index + half + 1, len(values))
    return numpy.asarray((sums[high] - sums[low]) / (high - low))


def _draw(axes: Axes, band: Band) -> None:
    for steps, values in band.curves:
        axes.plot(steps, values, color=QUIET, alpha=0.45, linewidth=0.9)
    axes.fill_between(band.steps, band.low, band.high, color=COLOR, alpha=0.18, linewidth=0)
    single = "o" if len(band.steps) == 1 else None
    axes.plot(band.steps, band.middle, color=COLOR, linewidth=2.2, marker=single)
    axes.annotate(
        number(float(band.middle[-1])),
        (band.steps[-1], band.middle[-1]),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        size=9.5,
        weight="bold",
        color=COLOR,
        annotation_clip=False,
    )


def _style(axes: Axes, band: Band) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_title(TITLES[band.name], loc="left", size=11, color=INK)
    axes.set_xlabel("environment steps", size=9.5, color=QUIET)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.tick_params(length=0, labelsize=9, labelcolor=QUIET)
    axes.spines[:].set_visible(False)
