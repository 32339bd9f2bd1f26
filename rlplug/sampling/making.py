"""The sampler of a run, made from its options."""

from __future__ import annotations

from typing import Any

from rlplug.config.sections import RunConfig, SamplingSection
from rlplug.durable import absolute_path
from rlplug.envs import Environments
from rlplug.errors import RequestError
from rlplug.feeds import OpenFeed
from rlplug.logs.recording import Recording
from rlplug.nn.layers import device_of
from rlplug.plugin import Module
from rlplug.sampling.batching import Batching
from rlplug.sampling.recording import RecordingSampler
from rlplug.sampling.tensors import TensorSampler
from rlplug.sampling.vector import VectorSampler
from rlplug.sampling.workers import WorkerSampler

__all__ = ["make_sampler", "recorded"]


def make_sampler(
    config: RunConfig, environments: Environments, module: Module, feed: OpenFeed
) -> VectorSampler | TensorSampler:
    """A sampler that collects what the feed asks for."""
    options, steps = config.sampling, feed.steps_per_collect
    is_rollout, count = feed.by_environment, options.num_epoch_samples
    # A dry run does not time what `auto` would take.
    in_workers = options.backend == "workers"
    in_order = not in_workers or options.force_sync
    if in_order and count:
        steps, count = -(-count // environments.num_envs), 0
    elif not in_order and not is_rollout:
        count = count or steps * environments.num_envs
    _refuse_short(options, steps, is_rollout=is_rollout)
    shared: dict[str, Any] = {
        "seed": config.run.seed,
        "steps": steps,
        "keep_next": feed.wants_next,
        "by_environment": feed.by_environment,
        "state_interval": feed.state_interval,
        "run_steps": config.run.steps,
        "optimal": options.optimal,
    }
    shortest = options.min_trajectory_length
    if environments.device is not None:
        if shortest > 1:
            raise RequestError(
                f"sampling.min_trajectory_length = {shortest} would have to look at every episode; "
                f"those of {environments.name!r} stay on {environments.device}.",
                "try: --set sampling.min_trajectory_length=1",
            )
        return TensorSampler(environments, module, **shared)
    shared["min_trajectory"] = shortest
    if not in_workers:
        device = device_of(module)
        upload_to = device if is_rollout and device.type == "cuda" else None
        return VectorSampler(environments, module, upload_to=upload_to, **shared)
    return WorkerSampler(
        environments,
        module,
        batching=Batching(
            min_batch_size=options.min_batch_size,
            max_batch_size=options.max_batch_size,
            max_wait_time=options.max_wait_time,
            force_sync=options.force_sync,
            max_staleness=options.max_staleness,
        ),
        count=count,
        ahead=count > 0 and not is_rollout,
        # Greedy actions are no draws from what is learned.
        needs_log_prob=count > 0 and feed.on_policy and not options.optimal,
        **shared,
    )


def recorded(
    sampler: VectorSampler | TensorSampler,
    config: RunConfig,
    environments: Environments,
    feed: OpenFeed,
) -> RecordingSampler:
    """The sampler, its experience recorded in the folder `sampling.record`."""
    recording = Recording(
        absolute_path(config.sampling.record, "sampling.record:"),
        environments.vector.single_observation_space,
        environments.action_space,
    )
    return RecordingSampler(
        sampler,
        recording,
        one_step=not feed.wants_next and not feed.by_environment,
        is_greedy=config.sampling.optimal,
    )


def _refuse_short(options: SamplingSection, steps: int, *, is_rollout: bool) -> None:
    """Refuse a shortest trajectory that leaves nothing, or that has no effect."""
    shortest = options.min_trajectory_length
    if shortest > 1 and not is_rollout:
        raise RequestError(
            f"sampling.min_trajectory_length = {shortest} is for rollouts, but this algorithm "
            "learns from single steps.",
            "try: --set sampling.min_trajectory_length=1",
        )
    if shortest > steps and not options.num_epoch_samples:
        raise RequestError(
            f"sampling.min_trajectory_length = {shortest} is above the {steps:,} steps that a "
            "rollout has of each environment: nothing would be learned.",
            f"try: --set sampling.min_trajectory_length={steps}",
        )
