"""Which seeds are asked for: `5`, `0-4`, `1,2,5`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rlplug.errors import RequestError
from rlplug.runs.request import Request

__all__ = ["check_seeds", "parse_seeds", "refuse_seed_option", "seeds_text"]

_FORMS = "5 (for 0 to 4), 0-4, or 1,2,5"
_HINT = "try: --seeds 5"
_PART = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 1000


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds that a text names."""
    parts = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
    if len(ranges) < len(parts) or not all(ranges):
        raise RequestError(f"--seeds: expected {_FORMS}, got {text!r}.", _HINT)
    if text.strip().isdecimal():
        ranges = [range(int(text))]
    if sum(map(len, ranges)) > _MOST:
        raise RequestError(f"--seeds: at most {_MOST:,} seeds, got {text!r}.", _HINT)
    return check_seeds([seed for part in ranges for seed in part])


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds, or raise which cannot be run together."""
    given = tuple(map(int, seeds))
    if not given:
        raise RequestError(f"no seed was named: expected {_FORMS}.", _HINT)
    if min(given) < 0:
        raise RequestError(f"a seed must be at least 0, got {min(given)}.", _HINT)
    for seed in given:
        if given.count(seed) > 1:
            raise RequestError(f"seed {seed} is given {given.count(seed)} times.", "try: it once")
    return given


def seeds_text(seeds: Iterable[int]) -> str:
    """The seeds as `--seeds` takes them."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ",".join(f"{part[0]}-{part[-1]}" if part[1:] else str(part[0]) for part in parts)


def refuse_seed_option(request: Request) -> None:
    """Refuse a seed beside the seeds; that of a file is overridden."""
    given = ["--seed"] if "seed" in request.flags.get("run", {}) else []
    keys = [setting.key for setting in request.settings]
    given += [f"--set {key}" for key in keys if key in ("seed", "run.seed")]
    if given:
        raise RequestError(f"{given[0]} and --seeds are both given.", "try: one of the two")
