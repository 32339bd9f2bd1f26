"""What all plots share: a figure with a heading, the style of axes, labels, and the PNG file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlplug.durable import unfinished
from rlplug.quantities import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, GRID = "#1f2933", "#7b8794", "#e4e7eb"
COLORS = ("#1a6fb5", "#c2410c")
EVAL_COLOR = "#2f855a"


def headed_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """An empty figure of this size in inches, which pyplot does not know."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.02, 0.975, title, size=13, weight="bold", color=INK, va="top")
    figure.text(0.02, 0.915, subtitle, size=9.5, color=QUIET, va="top")
    return figure


def style_axes(axes: Axes, title: str) -> None:
    """A quiet style, with environment steps on the x-axis."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(color=GRID, linewidth=0.8)
    axes.margins(x=0.02)
    quiet_axes(axes, title, "environment steps")


def quiet_axes(axes: Axes, title: str, label: str) -> None:
    """A title on the left, no ticks, and a frame on two sides at most."""
    # Its place is given: to find one, matplotlib lays out all ticks once more.
    axes.set_title(title, loc="left", y=1.0, size=11, color=INK)
    axes.set_xlabel(label, size=9.5, color=QUIET)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=QUIET)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)


def show_legend(axes: Axes) -> None:
    """A legend without a frame."""
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)


def label_point(axes: Axes, step: float, value: float, color: str) -> None:
    """Write a value to the right of its point."""
    text, beside = plotted_number(value), "offset points"
    label = axes.annotate(text, (step, value), (6, 0), textcoords=beside, annotation_clip=False)
    label.set(size=9.5, weight="bold", color=color, verticalalignment="center")


def plotted_number(number: float) -> str:
    """As everywhere else, unless it is too long to stand beside its point: `-1,183`, `1.2M`."""
    from matplotlib.ticker import EngFormatter

    large = abs(number) >= 1e5
    return str(EngFormatter(places=1, sep="")(number)) if large else format_number(number)


def save_png(figure: Figure, file: Path) -> None:
    """Write the figure beside the file, and rename it into place."""
    partial = unfinished(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    # 17% larger files in two thirds of the time.
    figure.savefig(partial, format="png", pil_kwargs={"compress_level": 1})
    os.replace(partial, file)
