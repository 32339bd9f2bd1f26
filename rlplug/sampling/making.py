"""The collector of a run, made from its options, and what records its experience as a log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from gymnasium import spaces

from rlplug.batch.nested import to_arrays
from rlplug.config.sections import RunConfig
from rlplug.durable import absolute_path
from rlplug.envs import Environments
from rlplug.errors import RequestError
from rlplug.feeds import Experience, ModuleFeeds, OpenFeed
from rlplug.feeds.feed import rows_of
from rlplug.logs.recording import Recording
from rlplug.plugin import DEFAULT_MODULE, Module
from rlplug.sampling.actor import Actor
from rlplug.sampling.collector import Collector

if TYPE_CHECKING:
    from rlplug.sampling.league import League

__all__ = ["Recorder", "make_collector", "record_into"]


def make_collector(
    config: RunConfig,
    environments: Environments,
    modules: Mapping[str, Module],
    feed: OpenFeed,
    league: League | None = None,
) -> Collector:
    """A collector of what the feed asks for, or those of several modules."""
    options, steps = config.sampling, feed.steps_per_collect
    feeds = feed.by_module if isinstance(feed, ModuleFeeds) else {DEFAULT_MODULE: feed}
    count, is_rollout = options.num_epoch_samples, feed.by_environment
    if options.backend != "workers" or options.force_sync or isinstance(feed, ModuleFeeds):
        steps, count = -(-count // environments.num_envs) or steps, 0
    elif not is_rollout:
        count = count or steps * environments.num_envs
    shortest = options.min_trajectory_length
    if shortest > 1 and (not is_rollout or environments.device is not None):
        raise RequestError(
            f"sampling.min_trajectory_length = {shortest} is for rollouts of arrays.",
            "try: --set sampling.min_trajectory_length=1",
        )
    if shortest > steps and not options.num_epoch_samples:
        raise RequestError(
            f"sampling.min_trajectory_length = {shortest} is above the {steps:,} steps that a "
            "rollout has of each environment.",
            f"try: --set sampling.min_trajectory_length={steps}",
        )
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
    folder = absolute_path(config.sampling.record, "sampling.record:")
    one_step = not feed.wants_next and not feed.by_environment
    collector.recorder = Recorder(
        folder, environments, one_step=one_step, is_greedy=config.sampling.optimal
    )


class Recorder:
    """Writes experience into a recording, and numbers its episodes; what is learned stays the same.

    `one_step` leaves out what single-step episodes have no use for: ends, next observations.
    """

    def __init__(
        self, folder: Path, environments: Environments, *, one_step: bool, is_greedy: bool
    ) -> None:
        space = environments.vector.single_observation_space
        self.recording = Recording(folder, space, environments.action_space)
        self._episodes = numpy.zeros(environments.num_envs, numpy.int64)
        """Episodes of each environment that have ended."""
        self._is_discrete = isinstance(environments.action_space, spaces.Discrete)
        self._one_step, self._is_greedy = one_step, is_greedy
        self._keeps_log_prob: bool | None = None
        """Whether the feed gets log-probabilities: whether it would without a recording."""

    def begin(self, actor: Actor) -> None:
        """Have the module return the probabilities of its actions, before they are collected."""
        if self._keeps_log_prob is None:
            self._keeps_log_prob = actor.ask_for_log_prob()

    def record(self, experience: Experience) -> Experience:
        """Add its steps; returns the experience as it is without a recording."""
        columns = {name: to_arrays(column) for name, column in experience.columns.items()}
        rewards = numpy.asarray(columns["rewards"], numpy.float64)
        rows: dict[str, Any] = {"action": columns["actions"], "reward": rewards}
        log_prob = columns.get("log_prob")
        if log_prob is None and self._is_greedy and self._is_discrete:
            # One action has all the probability.
            log_prob = numpy.zeros(len(rewards))
        if log_prob is not None:
            rows["action_log_prob"] = numpy.asarray(log_prob, numpy.float64).reshape(-1)
            if self._is_discrete:
                rows["propensity"] = numpy.exp(rows["action_log_prob"])
        observations, stepped = columns["observations"], to_arrays(experience.stepped)
        if "action_mask" in columns and not isinstance(observations, Mapping):
            rows["action_mask"] = numpy.asarray(columns["action_mask"], numpy.int8)
        if not self._one_step:
            rows["episode"] = self._numbers(experience)
            rows |= {name: columns[name] for name in ("terminated", "truncated")}
            rows["next_context"] = to_arrays(experience.next_rows("observations"))
        if stepped is not None:
            rows, observations = rows_of((rows, observations), stepped)
        self.recording.add(observations, {name: numpy.array(row) for name, row in rows.items()})
        if not self._keeps_log_prob:
            others = {name: x for name, x in experience.columns.items() if name != "log_prob"}
            experience.columns = others
        return experience

    def get_state(self) -> dict[str, Any]:
        """What was recorded, which is on the disk then."""
        self.recording.flush()
        return {"rows": self.recording.rows, "episodes": self._episodes.tolist()}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state; rows that were recorded after it are deleted."""
        self.recording.resume(saved["rows"])
        self._episodes[:] = saved["episodes"]

    def _numbers(self, experience: Experience) -> Any:
        """The number of the episode of each row."""
        num_envs = len(self._episodes)
        if self.recording.rows:
            # Reset without an end: whatever comes is another episode.
            self._episodes += experience.after_reset
        ended = to_arrays(experience.ended())
        before = numpy.concatenate([numpy.zeros((1, num_envs), int), ended[:-1].cumsum(0)])
        numbers = (self._episodes + before) * num_envs + numpy.arange(num_envs)
        self._episodes += ended.sum(0)
        return numbers[experience.times_and_envs()]
