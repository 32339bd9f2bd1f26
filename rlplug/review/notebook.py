"""A run in a notebook: a table of what it is and how it went, and its curve."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["png_of", "run_html"]


def run_html(title: str, rows: Mapping[str, str], curve: Figure) -> str:
    """HTML that takes its colors from the notebook; texts are escaped."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in rows.items()
        if text
    )
    picture = ""
    if curve.axes:
        content = base64.b64encode(png_of(curve)).decode()
        picture = f"<img width='600' alt='learning curve' src='data:image/png;base64,{content}'/>"
    return f"<div><b>{escape(title)}</b><table>{cells}</table>{picture}</div>"


def png_of(figure: Figure) -> bytes:
    """The figure as PNG."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
