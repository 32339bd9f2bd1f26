"""Formatted output: as wide as the terminal, without line breaks where there is none."""

from __future__ import annotations

import io
import sys
import textwrap
from typing import TYPE_CHECKING

from rlplug.cli.table import terminal_width

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rich.console import Console

    from rlplug.config.options_table import OptionRow

__all__ = ["console", "in_columns", "print_options"]

_UNBROKEN = 4000
_TYPE_WIDTH = 32


def console(*, stderr: bool = False) -> Console:
    """A rich console; lines written to a pipe or a file are not wrapped."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit with code 1; `main` handles it.
            raise BrokenPipeError

    # sys.stdout is None if the shell closed it (`>&-`).
    stream = (sys.stderr if stderr else sys.stdout) or io.StringIO()
    width = None if stream.isatty() else _UNBROKEN
    return Plain(file=stream, width=width, highlight=False, soft_wrap=not stream.isatty())


def in_columns(rows: Mapping[str, str], *, wrapped: bool = False) -> Iterator[str]:
    """One line per row, values aligned.

    Where the terminal is too narrow for it, a value has a line of its own, so that it can be
    copied; or it is broken between words.
    """
    column = max(map(len, rows), default=0)
    room = (terminal_width() or _UNBROKEN) - column - 2
    for name, value in rows.items():
        if len(value) <= room:
            yield f"{name:<{column}}  {value}"
        elif wrapped:
            lines = textwrap.wrap(value, max(room, 20), break_long_words=False)
            yield f"{name:<{column}}  {lines[0]}"
            yield from (f"{'':<{column}}  {line}" for line in lines[1:])
        else:
            yield from filter(None, (name, f"  {value}"))


def print_options(shown: Console, rows: Iterable[OptionRow]) -> None:
    """Print a table of names, types, defaults and help lines."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  name", no_wrap=True)
    # Long lists of choices are broken where lines have an end, so that the help has room.
    table.add_column("type", max_width=_TYPE_WIDTH if shown.is_terminal else None)
    table.add_column("default", no_wrap=True, overflow="fold")
    table.add_column("", overflow="fold")
    for row in rows:
        table.add_row(f"  {row.name}", row.type, row.default, row.help)
    with shown.capture() as printed:
        shown.print(table, markup=False)
    # rich pads the last column with spaces.
    print(*(line.rstrip() for line in printed.get().splitlines()), sep="\n", file=shown.file)
