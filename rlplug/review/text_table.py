"""Tables as text: columns aligned for the terminal, and rows of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["aligned", "fitting", "markdown_row", "table_width"]


def fitting(rows: Sequence[Sequence[str]], width: int, spare: Sequence[str]) -> Iterator[str]:
    """A table without the columns that can be spared, where it is too wide."""
    for name in spare:
        if table_width(rows) > width and name in rows[0]:
            index = rows[0].index(name)
            rows = [(*row[:index], *row[index + 1 :]) for row in rows]
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns aligned to the right, but the first one."""
    widths = _widths(rows)
    for first, *others in rows:
        cells = (f"{cell:>{wide}}" for cell, wide in zip(others, widths[1:], strict=True))
        yield "  ".join([f"{first:<{widths[0]}}", *cells]).rstrip()


def table_width(rows: Sequence[Sequence[str]]) -> int:
    """The characters of its lines."""
    widths = _widths(rows)
    return sum(widths) + 2 * (len(widths) - 1)


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]
