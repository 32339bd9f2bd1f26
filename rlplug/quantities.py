"""What counts as a number, and numbers, sizes, times and paths as they are shown to people."""

from __future__ import annotations

from datetime import datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))
_LONGEST_AGO = 14 * 86_400


def is_number(value: Any) -> bool:
    """Whether it is a real number, also one of NumPy's; a truth value is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole_number(value: Any) -> bool:
    """Whether it is an integer, also one of NumPy's; a truth value is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def format_number(value: float | None) -> str:
    """Four digits, without exponents where that is readable: `-1,183`, `0.5201`, `3e-05`."""
    if value is None:
        return ""
    if abs(value) >= 999.95:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_bytes(size: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if size >= 10 or unit == "bytes" else f"{size:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """`0:42`, `3:07:10`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(text: str) -> datetime | None:
    """The time that is recorded as `2026-11-23T05:47:35+0000`; None if it is not one."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None


def format_age(text: str, now: datetime) -> str:
    """A recorded time as seen from now: `3 h ago`; after two weeks, the day."""
    time = moment(text)
    if time is None:
        return ""
    seconds = (now - time).total_seconds()
    if seconds >= _LONGEST_AGO:
        return f"{time:%Y-%m-%d}"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"


def format_path(path: Path) -> str:
    """A path as it can be typed here: short if it is in the current folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
