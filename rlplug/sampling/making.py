"""The collector of a run, made from its options."""

from __future__ import annotations

from collections.abc import Mapping

from rlplug.config.sections import RunConfig, SamplingSection
from rlplug.durable import absolute_path
from rlplug.envs import Environments
from rlplug.errors import RequestError
from rlplug.feeds import ModuleFeeds, OpenFeed
from rlplug.logs.recording import Recording
from rlplug.plugin import DEFAULT_MODULE, Module
from rlplug.sampling.collector import Collector
from rlplug.sampling.league import League
from rlplug.sampling.recording import Recorder

__all__ = ["make_collector", "record_into"]


def make_collector(
    config: RunConfig,
    environments: Environments,
    modules: Mapping[str, Module],
    feed: OpenFeed,
    league: League | None = None,
) -> Collector:
    """A collector of what the feed asks for, or those of several modules."""
    options, steps = config.sampling, feed.steps_per_collect
    several = isinstance(feed, ModuleFeeds)
    feeds = feed.by_module if isinstance(feed, ModuleFeeds) else {DEFAULT_MODULE: feed}
    is_rollout, count = feed.by_environment, options.num_epoch_samples
    in_order = several or options.backend != "workers" or options.force_sync
    if in_order and count:
        steps, count = -(-count // environments.num_envs), 0
    elif not in_order and not is_rollout:
        count = count or steps * environments.num_envs
    _refuse_short(options, environments, steps, is_rollout=is_rollout)
    return Collector(
        environments,
        modules,
        feeds,
        seed=config.run.seed,
        options=options,
        steps=steps,
        run_steps=config.run.steps,
        count=count,
        league=league,
    )


def record_into(
    collector: Collector, config: RunConfig, environments: Environments, feed: OpenFeed
) -> None:
    """Record what is collected in the folder `sampling.record`."""
    recording = Recording(
        absolute_path(config.sampling.record, "sampling.record:"),
        environments.vector.single_observation_space,
        environments.action_space,
    )
    collector.recorder = Recorder(
        recording,
        environments,
        one_step=not feed.wants_next and not feed.by_environment,
        is_greedy=config.sampling.optimal,
    )


def _refuse_short(
    options: SamplingSection, environments: Environments, steps: int, *, is_rollout: bool
) -> None:
    """Refuse a shortest trajectory that leaves nothing, or that has no effect."""
    shortest, most, why = options.min_trajectory_length, 1, ""
    if shortest > 1 and not is_rollout:
        why = "is for rollouts, but this algorithm learns from single steps"
    elif shortest > steps and not options.num_epoch_samples:
        most, why = steps, f"is above the {steps:,} steps that a rollout has of each environment"
    elif shortest > 1 and environments.device is not None:
        where = f"those of {environments.name!r} stay on {environments.device}"
        why = f"would have to look at every episode; {where}"
    if why:
        raise RequestError(
            f"sampling.min_trajectory_length = {shortest} {why}.",
            f"try: --set sampling.min_trajectory_length={most}",
        )
