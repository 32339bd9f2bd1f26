"""The options of `[sampling]`: how environments are stepped, and what is collected."""

from __future__ import annotations

import os

import attrs

from rlplug.config.option import at_least, changed, no_effect, one_of, option, refuse

__all__ = ["SamplingSection"]


@attrs.frozen(kw_only=True)
class SamplingSection:
    """Parallel environments, worker processes, inference batches, and trajectories."""

    num_envs: int = option(1, "Number of environments stepped in parallel.", at_least(1))
    backend: str = option(
        "in_process",
        "in_process: step environments in this process; workers: in worker processes.",
        one_of(("in_process", "workers")),
    )
    num_workers: int = option(
        0, "Number of worker processes; 0: one per CPU core, at most num_envs.", at_least(0)
    )
    envs_per_worker: int = option(
        0,
        "The most environments in each worker process; 0: num_envs divided by num_workers.",
        at_least(0),
    )
    num_epoch_samples: int = option(
        0,
        "Environment steps to collect before each update; 0: what the algorithm asks for. "
        "workers: from whichever environments bring them, in_process: the same number from "
        "each.",
        at_least(0),
    )
    min_batch_size: int = option(
        1, "workers: minimum number of environments to choose actions for at once.", at_least(1)
    )
    max_batch_size: int = option(
        0,
        "workers: maximum number of environments to choose actions for at once; 0: num_envs.",
        at_least(0),
    )
    max_wait_time: float = option(
        0.0,
        "workers: seconds to wait for more environments once min_batch_size are ready.",
        at_least(0),
    )
    min_trajectory_length: int = option(
        1, "Leave out pieces of episodes in a rollout that have fewer steps than this.", at_least(1)
    )
    max_trajectory_length: int = option(
        0, "Truncate training episodes after this many steps; 0 disables.", at_least(0)
    )
    force_sync: bool = option(
        False, "workers: step all environments in lock-step; the results equal those of in_process."
    )
    record: str = option(
        "", "Folder to record the experience in, as a log, as in --record; empty: do not."
    )
    optimal: bool = option(False, "Act without exploration while collecting experience.")
    max_staleness: int = option(
        0,
        "workers: maximum number of updates between choosing an action and learning from it; "
        "0: no limit.",
        at_least(0),
    )
    vectorization: str = option(
        "auto",
        "native: the environment's own vector version; sync: step one after another; async: "
        "Gymnasium's AsyncVectorEnv, a process for each; auto: native if it resets in the "
        "same step, or from 16 environments on; else sync.",
        one_of(("auto", "native", "sync", "async")),
    )
    step_timeout: float = option(
        300.0,
        "Warn once, with its name, if an environment takes longer than this many seconds for "
        "one step or reset (workers: end the run); 0 disables.",
        at_least(0),
    )

    @property
    def workers(self) -> int:
        """The number of worker processes."""
        if self.envs_per_worker:
            return -(-self.num_envs // self.envs_per_worker)
        return self.num_workers or min(os.cpu_count() or 1, self.num_envs)

    def __attrs_post_init__(self) -> None:
        """Refuse options that contradict each other, all at once."""
        problems = [
            f"{low} = {getattr(self, low)} is above {high} = {getattr(self, high)}"
            for low, high in _ORDERED
            if 0 < getattr(self, high) < getattr(self, low)
        ]
        product = self.num_workers * self.envs_per_worker
        if product and product != self.num_envs:
            problems.append(
                f"num_workers × envs_per_worker = {product} is not num_envs = {self.num_envs}"
            )
        if self.backend != "in_process" and self.vectorization in ("native", "async"):
            problems.append(f"vectorization = {self.vectorization!r} is for backend = 'in_process'")
        if self.backend == "in_process":
            problems += no_effect(changed(self, _OF_WORKERS), "with backend = 'in_process'")
        elif self.force_sync:
            problems += no_effect(changed(self, _OF_BATCHES), "with force_sync = true")
        refuse(problems)


_ORDERED = (
    ("min_batch_size", "max_batch_size"),
    ("min_batch_size", "num_envs"),
    ("num_workers", "num_envs"),
    ("min_trajectory_length", "num_epoch_samples"),
    ("min_trajectory_length", "max_trajectory_length"),
)
"""Options of which the first is at most the second, if that is set."""

_OF_BATCHES = ("min_batch_size", "max_batch_size", "max_wait_time", "max_staleness")
"""Options of `[sampling]` that have no effect in lock-step."""

_OF_WORKERS = ("num_workers", "envs_per_worker", "force_sync", *_OF_BATCHES)
"""Options of `[sampling]` that worker processes alone have."""
