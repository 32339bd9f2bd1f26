"""Chooses between this process and worker processes: `sampling.backend = "auto"`."""

from __future__ import annotations

import time
from functools import partial

import attrs

from rlplug.config.sections import SamplingSection
from rlplug.envs import Environments, EnvMaker, make_environments
from rlplug.envs.agents import game_maker
from rlplug.envs.sync import SyncVector
from rlplug.errors import FAILURES
from rlplug.runs.prepare import Prepared
from rlplug.seeding import derive, forked

__all__ = ["with_backend"]

_SECONDS, _STEPS, _WARM_UP = 0.3, 200, 3
"""How long, and how often, environments are stepped at most to time them."""

_LEAST_GAIN = 1.25
"""Workers are not taken for less: evaluations and the learner use the same cores."""

_QUICK = 300e-6
"""Seconds for a step of all environments that worker processes need for their messages alone."""


def with_backend(prepared: Prepared, maker: EnvMaker) -> tuple[Prepared, str]:
    """The run with the faster backend instead of `auto`, and a line that says which and why.

    The results are the same: workers are used in lock-step.
    """
    options = prepared.config.sampling
    in_workers = attrs.evolve(options, backend="workers", force_sync=True)
    make = partial(
        make_environments,
        maker,
        options.num_envs,
        prepared.config.env,
        vectorization=options.vectorization,
        max_episode_steps=options.max_trajectory_length,
        seed=prepared.config.run.seed,
    )
    # What is timed is made and thrown away: the run's environments begin as without it.
    with forked(derive(prepared.config.run.seed, "timing")):
        if game_maker(maker, prepared.config.env.arguments) is None:
            reason, is_faster = _compare(make, in_workers)
        else:
            reason, is_faster = "the environment has several agents", False
    chosen = in_workers if is_faster else options.without_workers()
    name = f"{in_workers.workers} worker processes" if is_faster else "this process"
    config = attrs.evolve(prepared.config, sampling=chosen)
    origins = {**prepared.origins, "sampling.backend": f"auto: {reason}"}
    for option in ("force_sync",) if is_faster else ():
        origins[f"sampling.{option}"] = "sampling.backend = auto"
    line = f"sampling in {name} (auto: {reason})"
    return attrs.evolve(prepared, config=config, origins=origins), line


def _compare(make: partial[Environments], options: SamplingSection) -> tuple[str, bool]:
    """What was found, and whether workers are faster."""
    if options.workers < 2:
        return "there would be one worker", False
    environments = make()
    if type(environments.vector) is not SyncVector:
        environments.close()
        return "the environment has its own vector form", False
    here = _seconds_per_step(environments)
    if isinstance(here, str):
        return here, False
    if here < _QUICK:
        return f"a step of all environments takes {_format(here)}", False
    there = _seconds_per_step(make(workers=options))
    if isinstance(there, str):
        return there, False
    found = f"a step of all environments takes {_format(here)} in this process"
    return f"{found}, {_format(there)} in workers", here >= _LEAST_GAIN * there


def _seconds_per_step(environments: Environments) -> float | str:
    """Seconds for a step of all environments with random actions, or why it cannot be timed."""
    vector = environments.vector
    vector.action_space.seed(0)
    try:
        environments.reset(0)
        for _ in range(_WARM_UP):
            vector.step(vector.action_space.sample())
        began, steps = time.perf_counter(), 0
        while steps < _STEPS and time.perf_counter() - began < _SECONDS:
            vector.step(vector.action_space.sample())
            steps += 1
        return (time.perf_counter() - began) / steps
    except FAILURES as error:
        return f"a random action failed: {type(error).__name__}"
    finally:
        environments.close()


def _format(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms"
