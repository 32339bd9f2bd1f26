"""DQN of rlplug, as a person would run it: through `rlplug.run`, with nothing recorded."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import dqn_settings as same

from rlplug import run as start
from rlplug.plugin import DEFAULT_MODULE
from rlplug.registry import Registry
from rlplug.runs.components import make_components
from rlplug.runs.kinds import setup_for
from rlplug.runs.prepare import prepare
from rlplug.runs.request import Request
from rlplug.runs.signals import Interrupts


def options(batch_size: int = same.BATCH_SIZE) -> dict[str, Any]:
    """As everybody is set."""
    first, last, fraction = same.EXPLORATION
    return {
        "algorithm": {
            "net_arch": list(same.NET_ARCH),
            "learning_rate": same.LEARNING_RATE,
            "buffer_size": same.BUFFER_SIZE,
            "learning_starts": same.LEARNING_STARTS,
            "batch_size": batch_size,
            "gamma": same.GAMMA,
            "train_freq": same.TRAIN_FREQ,
            "gradient_steps": 1,
            "target_update_interval": same.TARGET_INTERVAL,
            "exploration_fraction": fraction,
            "exploration_initial_eps": first,
            "exploration_final_eps": last,
            "loss": "huber",
        },
        "learner": {"max_grad_norm": same.MAX_GRAD_NORM},
        "tracking": {"enabled": False},
        "evaluation": {"episodes": 0},
        "checkpoint": {"minutes": 0},
    }


def run(steps: int, seed: int) -> same.Timed:
    """A whole training; one before it has imported everything."""
    flat = {
        f"{section}.{name}" if section != "algorithm" else name: value
        for section, values in options().items()
        for name, value in values.items()
    }
    start("dqn", same.ENV, steps=1_200, seed=seed, options=flat)
    return same.timed(lambda: start("dqn", same.ENV, steps=steps, seed=seed, options=flat))


def learn(updates: int, batch_size: int, seed: int) -> same.Timed:
    """Updates alone, drawn from a buffer of steps."""
    values = options(batch_size)
    values["algorithm"]["gradient_steps"] = updates
    values["run"] = {"algorithm": "dqn", "env": same.ENV, "steps": 4_000, "seed": seed}
    prepared = prepare(Request(flags=values), Registry.installed())
    with ExitStack() as stack, Interrupts() as interrupts:
        parts = make_components(setup_for(prepared, same.ENV), interrupts, stack)
        sampler, feed, learner = parts.sampler, parts.feed, parts.learner
        sampler.start()
        for step in range(0, same.LEARNING_STARTS, same.TRAIN_FREQ):
            list(feed.take(sampler.collect(step), step))
        last = sampler.collect(2_000)

        def work() -> None:
            for drawn in feed.take(last, 2_000):
                learner.update({DEFAULT_MODULE: drawn.batch}, timestep=2_000)
                feed.learned(drawn, learner.rows.get(DEFAULT_MODULE, {}))

        return same.timed(work)


if __name__ == "__main__":
    same.measure("rlplug", run=run, learn=learn)
