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
        1,
        "Number of learners, as in --learners: each samples and learns from an equal share, "
        "and their gradients are averaged. Under torchrun: the number of its processes.",
        at_least(1),
    )
    engine: str = option(
        "local",
        "local, or ray: on a Ray cluster, environments are stepped by runners, as with --runners, "
        "or whole runs are placed, as with --place (needs rlplug[ray]).",
        one_of(("local", "ray")),
    )
    runners: int = option(
        1, "ray: number of runners, which share sampling.num_envs equally.", at_least(1)
    )
    envs_per_runner: int = option(
        0, "ray: environments of each runner; 0: num_envs divided by runners.", at_least(0)
    )
    runner_cpus: float = option(1.0, "ray: CPUs that each runner reserves.", at_least(0))
    runner_gpus: float = option(0.0, "ray: GPUs that each runner reserves.", at_least(0))
    runner_resources: Mapping[str, float] = option(
        dict, "ray: custom resources that each runner reserves: {big = 1}.", factory=True
    )
    learner_cpus: float = option(
        1.0, "ray: CPUs that each of several learners reserves.", at_least(0)
    )
    learner_gpus: float = option(
        0.0, "ray: GPUs that each of several learners reserves.", at_least(0)
    )
    learner_resources: Mapping[str, float] = option(
        dict, "ray: custom resources that each of several learners reserves.", factory=True
    )
    address: str = option(
        "",
        "ray: address of a cluster, HOST:PORT or auto; empty: a local one, which ends with "
        "the run.",
    )
    max_staleness: int = option(
        -1,
        "ray: collections that runners may be ahead of the weights; 0: synchronous; -1: 0 for"
        " rollouts, 1 for replay and streams.",
        at_least(-1),
    )
    max_restarts: int = option(
        3, "ray: runners of each learner to replace after they died.", at_least(0)
    )
    placement_timeout: float = option(
        300.0,
        "ray: seconds that a runner may wait for room on the cluster at the start of a run.",
        at_least(0),
    )

    def __attrs_post_init__(self) -> None:
        """Refuse options that contradict each other or have no effect, all at once."""
        ray = [name for name in changed(self) if name not in _OF_LEARNERS]
        learner = [name for name in ray if name.startswith("learner_")]
        if self.engine == "local":
            refuse(no_effect(ray, "with engine = 'local': add --runners N"))
        elif self.learners == 1:
            refuse(no_effect(learner, "with one learner"))
