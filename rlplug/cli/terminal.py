"""Consoles for what people look at: as wide as the terminal, unbroken where there is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console"]

_UNBROKEN = 4000


def console(*, stderr: bool = False) -> Console:
    """A rich console; lines that go to a pipe or a file are not wrapped."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _UNBROKEN
    return Console(file=stream, width=width, highlight=False, soft_wrap=not stream.isatty())
