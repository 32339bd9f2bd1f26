"""What `--trace-hooks` costs: CPU time of updates with and without it, interleaved.

    python benchmarks/hook_trace.py [--rounds 40]

DQN alone, and with an add-on that changes gradients, in minibatches of 32 rows through networks of
64-64: as short as updates are. Exits with 1 if the median of the ratios is above 1.02.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy
from gymnasium.spaces import Box, Discrete

from rlplug import AddOn, Batch, build_learner

UPDATES = 100


class Halve(AddOn):
    """Halves every gradient."""

    def postprocess_gradients(self, gradients: Any) -> None:
        for gradient in gradients.values():
            gradient.mul_(0.5)


def main() -> int:
    """Print the ratio with and without the add-on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    worst = 0.0
    for name, addons in (("dqn", []), ("dqn and an add-on", [Halve])):
        learners = [
            build_learner(
                "dqn",
                Box(-1.0, 1.0, (4,)),
                Discrete(2),
                addons=[one() for one in addons],
                options={"learner.trace_hooks": traced},
            )
            for traced in (False, True)
        ]
        batches = [sample(seed) for seed in range(UPDATES)]
        ratios, seconds = [], 0.0
        for index in range(rounds + 3):
            off, on = (updated(one, batches, index) for one in learners)
            if index >= 3:
                ratios.append(on / off)
                seconds += off
        ratio = statistics.median(ratios)
        worst = max(worst, ratio)
        each = seconds / rounds / UPDATES * 1e6
        print(f"{name:<20} {each:7.0f} µs per update, traced × {ratio:.4f}")
    return 0 if worst <= 1.02 else 1


def updated(learner: Any, batches: list[Batch], index: int) -> float:
    """The CPU seconds of some updates."""
    began = time.process_time()
    for number, batch in enumerate(batches):
        learner.update_from_batch(batch, timestep=index * UPDATES + number)
    seconds = time.process_time() - began
    learner.calls.take_trace()
    return seconds


def sample(seed: int, rows: int = 32) -> Batch:
    """A batch of a replay buffer."""
    random = numpy.random.default_rng(seed)
    return Batch(
        {
            "observations": random.random((rows, 4), dtype=numpy.float32),
            "next_observations": random.random((rows, 4), dtype=numpy.float32),
            "actions": random.integers(2, size=rows),
            "rewards": random.random(rows, dtype=numpy.float32),
            "discounts": numpy.full(rows, 0.99, numpy.float32),
            "terminated": numpy.zeros(rows, bool),
            "truncated": numpy.zeros(rows, bool),
        }
    )


if __name__ == "__main__":
    raise SystemExit(main())
