"""Measure replay: python benchmarks/replay.py

Drawing and updating by priority beside a plain uniform draw, and what buffers take of memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.feeds import Experience, FeedSetting, OpenFeed, Replay
from rlplug.feeds.ring import RingBuffer
from rlplug.feeds.transitions import Transitions

ROWS, BATCH, ROUNDS, REPEATS = 1_000_000, 128, 15, 200
CARTPOLE = spaces.Box(-numpy.inf, numpy.inf, (4,), numpy.float32)
FRAMES = spaces.Box(0, 255, (4, 84, 84), numpy.uint8)


def main() -> None:
    """Print a table of each."""
    draws()
    memory("1,000,000 CartPole transitions", CARTPOLE, ROWS, 1, 1_000)
    memory("100,000 frames of 84 × 84, stacks of 4", FRAMES, 100_000, 4, 50)


def setting(space: spaces.Space[numpy.ndarray], stack: int = 1) -> FeedSetting:
    """One environment with two actions."""
    return FeedSetting(
        observation_space=space,
        action_space=spaces.Discrete(2),
        num_envs=1,
        steps=ROWS,
        seed=0,
        frame_stack=stack,
    )


def filled(feed: Replay, space: spaces.Space[numpy.ndarray], stack: int, chunk: int) -> OpenFeed:
    """A buffer that has been written all over, by episodes of 200 steps."""
    opened = feed.open(setting(space, stack))
    random = numpy.random.default_rng(0)
    shape, dtype = space.shape or (), space.dtype
    ended = numpy.arange(chunk) % 200 == 199
    observations = random.integers(0, 255, (chunk, *shape)).astype(dtype)
    for start in range(0, feed.buffer_size, chunk):
        columns = {
            "observations": observations,
            "actions": random.integers(2, size=chunk),
            "rewards": numpy.ones(chunk),
            "terminated": ended,
            "truncated": numpy.zeros(chunk, bool),
        }
        following = {"observations": observations[:1]}
        experience = Experience(columns, steps=chunk, num_envs=1, following=following)
        for _ in opened.take(experience, start):
            pass
    return opened


def draws() -> None:
    """Prioritised and uniform draws in turn."""
    common: dict[str, Any] = {"buffer_size": ROWS, "batch_size": BATCH, "learning_starts": ROWS - 1}
    uniform = filled(Replay(**common), CARTPOLE, 1, 1_000)
    by_priority = filled(Replay(**common, prioritized=True), CARTPOLE, 1, 1_000)
    random = numpy.random.default_rng(0)
    plain: dict[str, Any] = {
        "observations": random.random((ROWS, 4), numpy.float32),
        "next_observations": random.random((ROWS, 4), numpy.float32),
        "actions": random.integers(2, size=ROWS),
        "rewards": random.random(ROWS, numpy.float32),
        "terminated": random.random(ROWS) < 0.01,
    }
    errors = random.random(BATCH, numpy.float32)
    one = Experience(
        {
            "observations": plain["observations"][:1],
            "actions": plain["actions"][:1],
            "rewards": plain["rewards"][:1],
            "terminated": numpy.zeros(1, bool),
            "truncated": numpy.zeros(1, bool),
        },
        steps=1,
        num_envs=1,
        following={"observations": plain["observations"][1:2]},
    )

    def gathered() -> None:
        rows = random.integers(ROWS, size=BATCH)
        for column in plain.values():
            column[rows]

    def work(feed: OpenFeed) -> Callable[[], None]:
        def run() -> None:
            for made in feed.take(one, ROWS):
                rows = {"priority": errors}
                if "indices" in made.batch:
                    rows["indices"] = made.batch.array("indices")
                feed.learned(made, rows)

        return run

    def tree() -> None:
        rows, _ = priorities.draw(random, BATCH, 0)
        transitions.at(rows)
        priorities.learned(rows, errors)

    def own() -> None:
        transitions.at(ring.draw(random, BATCH))

    ring: RingBuffer = by_priority._ring  # type: ignore[attr-defined] # measured from inside
    transitions = Transitions(ring, 0.99, 1)
    priorities = by_priority._priorities  # type: ignore[attr-defined] # measured from inside
    forms: dict[str, Callable[[], None]] = {
        "uniform: row gather, plain arrays": gathered,
        "uniform: drawn from the buffer": own,
        "prioritised: drawn and updated": tree,
        "uniform: a step kept, one update": work(uniform),
        "prioritised: a step kept, one update": work(by_priority),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(ROUNDS):
        for name, form in forms.items():
            start = time.process_time()
            for _ in range(REPEATS):
                form()
            times[name].append((time.process_time() - start) / REPEATS * 1e6)
    first = statistics.median(times["uniform: row gather, plain arrays"])
    print(f"{BATCH} of {ROWS:,} CartPole transitions")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"  {name:<40}{median:>9.1f} µs{median / first:>8.2f} ×")


def memory(
    title: str, space: spaces.Space[numpy.ndarray], rows: int, stack: int, chunk: int
) -> None:
    """What was announced, and what the process has grown by once all of it is written."""
    feed = Replay(buffer_size=rows, batch_size=32, learning_starts=rows - 1)
    before = resident()
    opened = filled(feed, space, stack, chunk)
    grown = resident() - before
    print(f"{title}: {opened.describe()}; the process grew by {grown / 1e6:.0f} MB")


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


if __name__ == "__main__":
    main()
