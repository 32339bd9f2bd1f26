"""The options of `[sampling]`: how environments are stepped, and what is collected."""

from __future__ import annotations

import os
from typing import Any

import attrs

from rlplug.config.option import at_least, changed, no_effect, one_of, option, refuse

__all__ = ["SamplingSection"]


@attrs.frozen(kw_only=True)
class SamplingSection:
    """Parallel environments, worker processes, inference batches, and trajectories."""

    num_envs: int = option(1, "Environments stepped in parallel.", at_least(1))
    backend: str = option(
        "in_process",
        "Step environments in this process or in workers; auto: where it is faster.",
        one_of(("in_process", "workers", "auto")),
    )
    num_workers: int = option(0, "Worker processes; 0: one per CPU core.", at_least(0))
    envs_per_worker: int = option(0, "Environments in each worker; 0: an equal share.", at_least(0))
    num_epoch_samples: int = option(
        0, "Environment steps before each update; 0: what the algorithm asks for.", at_least(0)
    )
    min_batch_size: int = option(1, "workers: least environments to act for at once.", at_least(1))
    max_batch_size: int = option(
        0, "workers: most environments to act for at once; 0: all.", at_least(0)
    )
    max_wait_time: float = option(
        0.0, "workers: seconds to wait for more than min_batch_size.", at_least(0)
    )
    min_trajectory_length: int = option(
        1, "Leave out shorter pieces of episodes in a rollout.", at_least(1)
    )
    max_trajectory_length: int = option(
        0, "Truncate training episodes here; 0 disables.", at_least(0)
    )
    force_sync: bool = option(
        False, "workers: step all in lock-step; results equal those of in_process."
    )
    record: str = option("", "Folder to record experience in, as --record.")
    optimal: bool = option(False, "Act without exploration while collecting experience.")
    max_staleness: int = option(
        0, "workers: most updates between acting and learning; 0: no limit.", at_least(0)
    )
    max_restarts: int = option(
        3, "workers: workers to replace after a death or step_timeout.", at_least(0)
    )
    vectorization: str = option(
        "auto",
        "native: the environment's own; sync; async: a process each; auto: by number.",
        one_of(("auto", "native", "sync", "async")),
    )
    step_timeout: float = option(
        300.0,
        "Seconds for a step, then a warning (workers: a new worker); 0 disables.",
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
        elif self.backend == "auto":
            problems += no_effect(changed(self, _OF_BATCHES), "with backend = 'auto'")
        refuse(problems)

    def without_workers(self) -> SamplingSection:
        """The same for `backend = "in_process"`."""
        fields = attrs.fields_dict(type(self))
        defaults: dict[str, Any] = {name: fields[name].default for name in _OF_WORKERS}
        return attrs.evolve(self, backend="in_process", **defaults)


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

_OF_WORKERS = ("num_workers", "envs_per_worker", "force_sync", "max_restarts", *_OF_BATCHES)
"""Options of `[sampling]` that worker processes alone have."""
