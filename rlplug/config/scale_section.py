"""The options of `[scale]`: over how many processes a run is spread."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from rlplug.config.option import at_least, changed, no_effect, one_of, option, refuse

__all__ = ["ScaleSection"]


_OF_LEARNERS = ("learners", "engine")


@attrs.frozen(kw_only=True)
class ScaleSection:
    """Data-parallel learners, and sampling by runners on a Ray cluster."""

    learners: int = option(
        1, "Data-parallel learners, as --learners; torchrun: its processes.", at_least(1)
    )
    engine: str = option(
        "local",
        "Step environments here, or by runners on a Ray cluster (needs rlplug[ray]).",
        one_of(("local", "ray")),
    )
    runners: int = option(1, "ray: runners, which share num_envs.", at_least(1))
    envs_per_runner: int = option(0, "ray: environments of each; 0: an equal share.", at_least(0))
    runner_cpus: float = option(1.0, "ray: CPUs that each runner reserves.", at_least(0))
    runner_gpus: float = option(0.0, "ray: GPUs that each runner reserves.", at_least(0))
    runner_resources: Mapping[str, float] = option(
        dict, "ray: custom resources of each runner: {big = 1}.", factory=True
    )
    learner_cpus: float = option(1.0, "ray: CPUs of each of several learners.", at_least(0))
    learner_gpus: float = option(0.0, "ray: GPUs of each of several learners.", at_least(0))
    learner_resources: Mapping[str, float] = option(
        dict, "ray: custom resources of each learner.", factory=True
    )
    address: str = option("", "ray: cluster, HOST:PORT or auto; empty: a local one.")
    max_staleness: int = option(
        -1, "ray: collections ahead of the weights; -1: 0 for rollouts, else 1.", at_least(-1)
    )
    max_restarts: int = option(3, "ray: dead runners to replace, per learner.", at_least(0))
    placement_timeout: float = option(
        300.0, "ray: seconds a runner may wait for room at the start of a run.", at_least(0)
    )

    def __attrs_post_init__(self) -> None:
        """Refuse options that contradict each other or have no effect, all at once."""
        ray = [name for name in changed(self) if name not in _OF_LEARNERS]
        learner = [name for name in ray if name.startswith("learner_")]
        if self.engine == "local":
            refuse(no_effect(ray, "with engine = 'local': add --scale ray"))
        elif self.learners == 1:
            refuse(no_effect(learner, "with one learner"))
