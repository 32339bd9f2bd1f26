"""Numbers and times as they are printed of seeds."""

from __future__ import annotations

from rlplug.quantities import format_number
from rlplug.review.statistics import Interval

__all__ = ["clock", "interval", "seeds_text"]


def interval(value: Interval) -> str:
    """An estimate and its interval: `482.1 [470.2, 495]`."""
    return (
        f"{format_number(value.estimate)} [{format_number(value.low)}, {format_number(value.high)}]"
    )


def clock(seconds: float) -> str:
    """`0:42`, `3:07:10`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seeds_text(seeds: tuple[int, ...]) -> str:
    """The seeds as `--seeds` takes them: `0-4`, `1,2,5`."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ",".join(f"{one[0]}-{one[-1]}" if one[1:] else str(one[0]) for one in parts)
