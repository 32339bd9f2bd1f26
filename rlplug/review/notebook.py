"""A run in a notebook: a table of what it is and how it went, and its curve as SVG."""

from __future__ import annotations

import html
from collections.abc import Mapping

import numpy

from rlplug.quantities import format_number
from rlplug.review.history import History, Series
from rlplug.review.metrics_text import curve_metric

__all__ = ["run_html"]

_WIDTH, _HEIGHT, _MARGIN = 460.0, 130.0, 6.0
_MOST_POINTS = 500


def run_html(title: str, rows: Mapping[str, str], history: History) -> str:
    """HTML that takes its colors from the notebook; texts are escaped."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in rows.items()
        if text
    )
    name = curve_metric(history)
    picture = _svg(history[name], name) if name else ""
    return f"<div><b>{html.escape(title)}</b><table>{cells}</table>{picture}</div>"


def _svg(series: Series, name: str) -> str:
    """The curve with its metric, its ends and its range; empty for a single value."""
    finite = numpy.isfinite(series.values)
    steps, values = series.steps[finite], series.values[finite]
    if len(steps) < 2:
        return ""
    every = -(-len(steps) // _MOST_POINTS)
    steps, values = steps[::every], values[::every]
    low, high = float(values.min()), float(values.max())
    across = (steps - steps[0]) / max(float(steps[-1] - steps[0]), 1.0)
    up = (values - low) / (high - low if high > low else 1.0)
    x = _MARGIN + across * (_WIDTH - 2 * _MARGIN)
    y = _HEIGHT - _MARGIN - up * (_HEIGHT - 2 * _MARGIN)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    caption = (
        f"{html.escape(name)}: {format_number(low)} to {format_number(high)}, "
        f"steps {steps[0]:,.0f} to {steps[-1]:,.0f}"
    )
    return (
        f"<svg width='{_WIDTH:.0f}' height='{_HEIGHT:.0f}' role='img' aria-label='{caption}'>"
        f"<polyline points='{points}' fill='none' stroke='#1a6fb5' stroke-width='2'/></svg>"
        f"<div><small>{caption}</small></div>"
    )
