"""Tables that fit the terminal: columns are shortened, then left out; rows are never wrapped."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence

import attrs

__all__ = ["Column", "table_lines", "terminal_width"]

_GAP = 2


@attrs.frozen(kw_only=True)
class Column:
    """A column of texts."""

    heading: str
    cells: Sequence[str]
    right: bool = False
    """Whether it is aligned to the right, as numbers are."""
    rank: int = 0
    """Where it does not fit, the columns of the highest rank are left out first; 0: never."""
    shortest: int | None = None
    """How far it may be shortened, in the middle: names differ at their ends."""
    cut_end: bool = False
    """Whether it is shortened at its end instead."""

    @property
    def width(self) -> int:
        return max([len(self.heading), *map(len, self.cells)])

    @property
    def least(self) -> int:
        return self.width if self.shortest is None else min(self.width, self.shortest)


def terminal_width() -> int | None:
    """The width of the terminal on standard output; None: it is a pipe or a file."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def table_lines(columns: Sequence[Column], width: int | None) -> Iterator[str]:
    """The heading and the rows; columns without any text are left out."""
    kept = [one for one in columns if any(one.cells) or one.rank == 0]
    while width is not None and _total(one.least for one in kept) > width:
        last = max(kept, key=lambda one: one.rank)
        if last.rank == 0:
            break
        kept.remove(last)
    widths = _widths(kept, width)
    for row in range(-1, len(kept[0].cells)) if kept else ():
        texts = (one.heading if row < 0 else one.cells[row] for one in kept)
        cells = (
            f"{_cut(text, room, at_end=one.cut_end):{'>' if one.right else '<'}{room}}"
            for one, text, room in zip(kept, texts, widths, strict=True)
        )
        yield (" " * _GAP).join(cells).rstrip()


def _widths(columns: Sequence[Column], width: int | None) -> list[int]:
    """What fits; what is left over goes to the columns from left to right."""
    if width is None:
        return [one.width for one in columns]
    widths = [one.least for one in columns]
    left = width - _total(widths)
    for index, one in enumerate(columns):
        more = max(min(one.width - widths[index], left), 0)
        widths[index] += more
        left -= more
    return widths


def _total(widths: Sequence[int] | Iterator[int]) -> int:
    every = list(widths)
    return sum(every) + _GAP * (len(every) - 1)


def _cut(text: str, width: int, *, at_end: bool) -> str:
    if len(text) <= width:
        return text
    head = width - 1 if at_end else width // 2
    tail = width - head - 1
    return f"{text[:head]}…{text[len(text) - tail :]}"
