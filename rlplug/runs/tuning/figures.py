"""Plots of a study: which options mattered, and how the best score came about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlplug.quantities import format_number
from rlplug.review.figure import (
    COLORS,
    EVAL_COLOR,
    GRID,
    INK,
    QUIET,
    headed_figure,
    label_point,
    save_png,
    style_axes,
)
from rlplug.runs.tuning.summary import StudySummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_history", "draw_importance", "history_figure", "importance_figure"]

_BAR_INCHES = 0.42


def draw_importance(summary: StudySummary, file: Path) -> None:
    """Into a PNG file; without importances, there is none."""
    if summary.importances:
        save_png(importance_figure(summary), file)


def draw_history(summary: StudySummary, file: Path) -> None:
    """Into a PNG file; without a finished trial, there is none."""
    if summary.scores:
        save_png(history_figure(summary), file)


def importance_figure(summary: StudySummary) -> Figure:
    """A bar for each option, the most important on top."""
    names = [*summary.importances][::-1]
    values = [summary.importances[name] for name in names]
    height = 1.5 + _BAR_INCHES * max(len(names), 2)
    figure = headed_figure(7.6, height, "", "")
    _head(figure, height, "Importance of options", _subtitle(summary))
    axes = figure.add_axes((0.28, 0.6 / height, 0.62, 1 - 1.4 / height))
    axes.barh(names, values, color=COLORS[0], height=0.6)
    for place, value in enumerate(values):
        axes.annotate(
            f"{value:.0%}",
            (value, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            size=9.5,
            weight="bold",
            color=INK,
        )
    axes.set_xlim(0, max(values) * 1.12 or 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel(
        "values of good trials against those of all (PED-ANOVA)",
        size=9.5,
        color=QUIET,
    )
    axes.tick_params(length=0, labelsize=9.5, labelcolor=INK)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    return figure


def history_figure(summary: StudySummary) -> Figure:
    """A point for each trial, and the line of the best so far."""
    height = 4.6
    figure = headed_figure(7.6, height, "", "")
    _head(figure, height, summary.study, _subtitle(summary))
    axes = figure.add_axes((0.1, 0.13, 0.79, 0.66))
    style_axes(axes, summary.label)
    axes.set_xlabel("trial", size=9.5, color=QUIET)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    best = summary.best_so_far
    axes.step(
        [*best], [*best.values()], where="post", color=COLORS[0], linewidth=2.0, label="best so far"
    )
    scores = summary.scores
    axes.plot([*scores], [*scores.values()], "o", color=EVAL_COLOR, markersize=5, label="finished")
    pruned = {
        one.proposal.number: one.proposal.score
        for one in summary.trials
        if one.status == "pruned" and one.proposal.score is not None
    }
    if pruned:
        axes.plot([*pruned], [*pruned.values()], "x", color=QUIET, markersize=5, label="pruned")
    number, value = next(reversed(best.items()))
    label_point(axes, max(number, max(scores)), value, COLORS[0])
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _head(figure: Figure, height: float, title: str, subtitle: str) -> None:
    """At the same distance from the top, however high the figure is."""
    heading, below = figure.texts
    heading.set_text(title)
    heading.set_y(1 - 0.115 / height)
    below.set_text(subtitle)
    below.set_y(1 - 0.391 / height)


def _subtitle(summary: StudySummary) -> str:
    runs = summary.runs
    about = next((run.about for run in runs if run.run_id), None)
    where = "" if about is None else f"{about.algorithm} on {about.env}, "
    best = summary.best
    score = "" if best is None else f", best: {format_number(best.proposal.score)}"
    return f"{where}{summary.counts}{score}"
