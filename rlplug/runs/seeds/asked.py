"""Which seeds were asked for, and how their processes share the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from rlplug.errors import RequestError
from rlplug.runs.request import Request, layers_of
from rlplug.tracking.provenance import cores

__all__ = [
    "Share",
    "check_seeds",
    "num_threads",
    "parse_seeds",
    "refuse_seed_option",
    "seeds_text",
    "share",
]

_FORMS = "5 (for 0 to 4), 0-4, or 1,2,5"
_PART = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 1000


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds that `5`, `0-4` or `1,2,5` names."""
    found = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    ends = [(int(one[1]), int(one[2] or one[1])) for one in found if one is not None]
    if len(ends) < len(found) or any(first > last for first, last in ends):
        raise RequestError(f"--seeds: expected {_FORMS}, got {text!r}.", "try: --seeds 5")
    if len(found) == 1 and "-" not in text:
        ends = [(0, ends[0][0] - 1)]
    if sum(last - first + 1 for first, last in ends) > _MOST:
        raise RequestError(f"--seeds: at most {_MOST:,} seeds, got {text!r}.", "try: --seeds 5")
    return check_seeds([seed for first, last in ends for seed in range(first, last + 1)])


def seeds_text(seeds: tuple[int, ...]) -> str:
    """The seeds as `--seeds` takes them: `0-4`, `1,2,5`."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ",".join(f"{one[0]}-{one[-1]}" if one[1:] else str(one[0]) for one in parts)


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds, or raise which cannot be run together."""
    given = tuple(int(seed) for seed in seeds)
    if not given:
        raise RequestError(f"no seed was named: expected {_FORMS}.", "try: --seeds 5")
    if min(given) < 0:
        raise RequestError(f"a seed must be at least 0, got {min(given)}.", "try: --seeds 5")
    for seed in given:
        if given.count(seed) > 1:
            raise RequestError(f"seed {seed} is given {given.count(seed)} times.", "try: it once")
    return given


def refuse_seed_option(request: Request) -> None:
    """Refuse a seed beside the seeds; that of a file is overridden."""
    given = ["--seed"] if "seed" in request.flags.get("run", {}) else []
    given += [f"--set {one.key}" for one in request.settings if one.key in ("seed", "run.seed")]
    if given:
        raise RequestError(f"{given[0]} and --seeds are both given.", "try: one of the two")


@attrs.frozen
class Share:
    """How many seeds run at a time, and the most CPU threads that each may use."""

    jobs: int
    threads: int

    def environ(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Environment variables of a process; one that allows fewer threads is left as it is."""
        given = environ.get("OMP_NUM_THREADS", "")
        fewer = given.isdecimal() and 0 < int(given) <= self.threads
        return {**environ, **({} if fewer else {"OMP_NUM_THREADS": str(self.threads)})}


def share(request: Request, seeds: Sequence[int], jobs: int = 0, available: int = 0) -> Share:
    """As many processes as the cores allow, each with its part of them.

    `compute.num_threads` threads each if that is set. `jobs` is how many were asked for; 0: none.
    """
    if jobs < 0:
        raise RequestError(f"jobs must be at least 1, got {jobs}.", "try: leave it out")
    available = available or cores()
    wanted = num_threads(request)
    jobs = min(jobs or max(available // max(wanted, 1), 1), len(seeds))
    return Share(jobs, max(wanted or available // jobs, 1))


def num_threads(request: Request) -> int:
    """The option, where the request has it; what is wrong with it is said by the run."""
    layers = layers_of(request)
    for setting in request.settings:
        if setting.key in ("num_threads", "compute.num_threads"):
            layers.put(("compute", "num_threads"), setting.value, "--set")
    value: Any = layers.section("compute", "num_threads")
    return value if type(value) is int and value > 0 else 0
