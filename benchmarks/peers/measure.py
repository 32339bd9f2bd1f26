"""Play one part of the benchmark with one peer, and print what it took as a line of JSON."""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

from problem import Floats, Rounds, featured_rounds, fixed_rounds, logged_rows

__all__ = ["ALPHA", "L2_LAMBDA", "Bandit", "Fitted", "measure"]

ALPHA = 1.0
L2_LAMBDA = 1.0

ENOUGH_SECONDS = 1.0
"""Fast peers play the same rounds again, each time from the start, until so much has passed."""


class Bandit(Protocol):
    """Decides and learns one row at a time."""

    def choose(self, seen: Floats) -> int:
        """The arm for a context (1, features), or among arms (arms, features)."""

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        """Take in what the arm paid."""


class Fitted(Protocol):
    """Learns a whole log, then decides one row at a time."""

    most_rows: int
    """A peer that takes one row at a time is given so many of the rows."""

    def fit(self, contexts: Floats, actions: Any, rewards: Floats) -> None:
        """Take in all rows."""

    def choose(self, seen: Floats) -> int:
        """The arm for a context (1, features)."""


def measure(
    distribution: str,
    *,
    fixed: Callable[[int, int], Bandit] | None = None,
    featured: Callable[[int, int], Bandit] | None = None,
    logged: Callable[[int, int], Fitted] | None = None,
) -> None:
    """Run the part that the command line names; peers are made from arms and features."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["fixed", "featured", "logged"])
    for name in ("seed", "rounds", "arms", "features"):
        parser.add_argument(f"--{name}", type=int, required=True)
    said = parser.parse_args()
    arguments = (said.seed, said.rounds, said.arms, said.features)
    if said.part == "fixed" and fixed is not None:
        found = _played(fixed, fixed_rounds(*arguments), one_row=True)
    elif said.part == "featured" and featured is not None:
        found = _played(featured, featured_rounds(*arguments), one_row=False)
    elif said.part == "logged" and logged is not None:
        found = _fitted(logged, *arguments)
    else:
        parser.exit(3, f"{distribution} has no {said.part}")
    print(json.dumps({"version": version(distribution), **found}))


def _played(make: Callable[[int, int], Bandit], rounds: Rounds, *, one_row: bool) -> dict[str, Any]:
    arms, features = rounds.expected.shape[1], rounds.seen.shape[-1]
    seen = [one[None] if one_row else one for one in rounds.seen]
    rewards = rounds.rewards.tolist()
    steps, wall, cpu = 0, 0.0, 0.0
    first: list[int] = []
    while wall < ENOUGH_SECONDS:
        bandit = make(arms, features)
        chosen = []
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        for one, paid in zip(seen, rewards, strict=True):
            arm = bandit.choose(one)
            bandit.learn(one, arm, paid[arm])
            chosen.append(arm)
        wall += time.perf_counter() - wall_start
        cpu += time.process_time() - cpu_start
        steps += len(chosen)
        first = first or chosen
    return {"steps": steps, "wall": wall, "cpu": cpu, "regret": _regret(rounds, first)}


def _fitted(make: Callable[[int, int], Fitted], *arguments: int) -> dict[str, Any]:
    log = logged_rows(*arguments)
    peer = make(*arguments[2:])
    rows = min(peer.most_rows, len(log.rewards))
    before = _peak()
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    peer.fit(log.contexts[:rows], log.actions[:rows], log.rewards[:rows])
    # Who solves when first asked has not fitted before that.
    peer.choose(log.test.seen[:1])
    wall, cpu = time.perf_counter() - wall_start, time.process_time() - cpu_start
    more = _peak() - before
    chosen = [peer.choose(one[None]) for one in log.test.seen]
    regret = _regret(log.test, chosen)
    return {"steps": rows, "wall": wall, "cpu": cpu, "regret": regret, "megabytes": more}


def _regret(rounds: Rounds, chosen: list[int]) -> float:
    """The mean over the rounds."""
    expected = rounds.expected
    earned = expected[range(len(chosen)), chosen]
    return float((expected.max(1) - earned).mean())


def _peak() -> float:
    """The most memory the process has had so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
