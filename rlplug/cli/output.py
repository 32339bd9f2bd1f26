"""What commands print: JSON, tables, labeled rows that fit the terminal, and the next command."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import click

__all__ = ["in_columns", "print_json", "print_next", "print_rows", "print_table", "table_lines"]

_SHORTEST = 12
"""How far a cell is shortened."""


def terminal_width() -> int:
    """The width of the terminal on standard output; lines to a pipe or a file have no end."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else 4000


def print_next(command: str) -> None:
    """Print the next useful command, as the last line."""
    click.echo(f"next: rlplug {command}")


def print_json(facts: Any) -> None:
    """Print a line of JSON; a number that is not finite is null."""
    click.echo(json.dumps(_plain(facts)))


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        value = {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | None) else str(value)


def in_columns(rows: Mapping[str, str], width: int, *, wrapped: bool = False) -> Iterator[str]:
    """A line per row, with values aligned.

    A value that does not fit has a line of its own, from which it can be copied, or is wrapped.
    """
    column = max(map(len, rows), default=0)
    for name, value in rows.items():
        if column + 2 + len(value) <= width:
            yield f"{name:<{column}}  {value}".rstrip()
        elif wrapped:
            lines = textwrap.wrap(value, max(width - column - 2, 20), break_on_hyphens=False)
            yield f"{name:<{column}}  {lines[0]}"
            yield from (f"{'':<{column}}  {line}" for line in lines[1:])
        else:
            yield from filter(None, (name, f"  {value}"))


def print_rows(rows: Mapping[str, str], *, wrapped: bool = False) -> None:
    """Print labeled values."""
    for line in in_columns(rows, terminal_width(), wrapped=wrapped):
        click.echo(line)


def print_table(rows: Sequence[Mapping[str, str]], **layout: Collection[str]) -> None:
    """Print a table as wide as the terminal: see `table_lines`."""
    for line in table_lines(rows, terminal_width(), **layout):
        click.echo(line)


def table_lines(
    rows: Sequence[Mapping[str, str]],
    width: int,
    *,
    numbers: Collection[str] = (),
    shortened: Collection[str] = (),
    spare: Collection[str] = (),
) -> Iterator[str]:
    """A heading and a line per row, whose keys are the headings; empty columns are left out.

    Where the terminal is too narrow, `spare` columns are left out in their order, `shortened` ones
    are cut in the middle, and the last column is wrapped.
    """
    names = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    least = widths | {name: min(widths[name], _SHORTEST) for name in shortened if name in names}

    def excess(of: Mapping[str, int]) -> int:
        return max(sum(of[name] + 2 for name in names) - 2 - width, 0)

    for name in spare:
        if excess(least) and name in names:
            names.remove(name)
    for name in shortened:
        if name in names:
            widths[name] -= min(excess(widths), widths[name] - least[name])
    for name in names[-1:]:
        widths[name] -= min(excess(widths), max(widths[name] - 24, 0))
    for row in ({name: name for name in names}, *rows) if names else ():
        cells = {name: _cut(row[name], widths[name]) for name in names}
        wrapped = textwrap.wrap(row[names[-1]], widths[names[-1]])
        if wrapped and names[-1] not in shortened:
            cells[names[-1]] = wrapped[0]
        aligned = (
            cell.rjust(widths[name]) if name in numbers else cell.ljust(widths[name])
            for name, cell in cells.items()
        )
        yield "  ".join(aligned).rstrip()
        if names[-1] not in shortened:
            indent = " " * sum(widths[name] + 2 for name in names[:-1])
            yield from (indent + line for line in wrapped[1:])


def _cut(text: str, width: int) -> str:
    """Text cut in the middle, as names differ at their ends."""
    if len(text) <= width:
        return text
    return f"{text[: width // 2]}…{text[len(text) - (width - width // 2 - 1) :]}"
