"""Records the experience of a collector as a log, with the probabilities of its actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.feeds import Experience
from rlplug.logs.recording import Recording
from rlplug.sampling.actor import Actor

__all__ = ["Recorder"]


class Recorder:
    """Writes experience into a recording, and numbers its episodes; what is learned stays the same.

    `one_step` leaves out what single-step episodes have no use for: ends, next observations.
    """

    def __init__(
        self, recording: Recording, environments: Environments, *, one_step: bool, is_greedy: bool
    ) -> None:
        self.recording = recording
        self.episodes = numpy.zeros(environments.num_envs, numpy.int64)
        """Episodes of each environment that have ended."""
        self._is_discrete = isinstance(environments.action_space, spaces.Discrete)
        self._one_step, self._is_greedy = one_step, is_greedy
        self._keeps_log_prob: bool | None = None
        """Whether the feed gets log-probabilities: whether it would without a recording."""

    def begin(self, actor: Actor) -> None:
        """Have the module tell the probabilities of its actions, before they are collected."""
        if self._keeps_log_prob is None:
            self._keeps_log_prob = actor.ask_for_log_prob()

    def record(self, experience: Experience) -> Experience:
        """Add its steps; returns the experience as it is without a recording."""
        columns = {name: to_arrays(column) for name, column in experience.columns.items()}
        rows: dict[str, Any] = {
            "action": columns["actions"],
            "reward": numpy.asarray(columns["rewards"], numpy.float64),
        }
        log_prob = columns.get("log_prob")
        if log_prob is None and self._is_greedy and self._is_discrete:
            # One action has all the probability.
            log_prob = numpy.zeros(len(rows["reward"]))
        if log_prob is not None:
            rows["action_log_prob"] = numpy.asarray(log_prob, numpy.float64).reshape(-1)
            if self._is_discrete:
                rows["propensity"] = numpy.exp(rows["action_log_prob"])
        observations, stepped = columns["observations"], to_arrays(experience.stepped)
        if "action_mask" in columns and not isinstance(observations, Mapping):
            rows["action_mask"] = numpy.asarray(columns["action_mask"], numpy.int8)
        if not self._one_step:
            rows |= self._ends(experience, columns)
        if stepped is not None and not stepped.all():
            rows, observations = tree_map(lambda leaf: leaf[stepped], (rows, observations))
        self.recording.add(observations, {name: numpy.array(row) for name, row in rows.items()})
        if not self._keeps_log_prob and "log_prob" in experience.columns:
            others = {name: x for name, x in experience.columns.items() if name != "log_prob"}
            experience.columns = others
        return experience

    def get_state(self) -> dict[str, Any]:
        """What was recorded, which is on the disk then."""
        self.recording.flush()
        return {"rows": self.recording.rows, "episodes": self.episodes.tolist()}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state; rows that were recorded after it are deleted."""
        self.recording.resume(saved["rows"])
        self.episodes[:] = saved["episodes"]

    def _ends(self, experience: Experience, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The episode of each step, how it ended, and what was observed next."""
        num_envs = len(self.episodes)
        if self.recording.rows:
            # Reset without an end: whatever comes is another episode.
            self.episodes += experience.after_reset
        ended = to_arrays(experience.ended())
        before = numpy.concatenate([numpy.zeros((1, num_envs), int), ended[:-1].cumsum(0)])
        numbers = (self.episodes + before) * num_envs + numpy.arange(num_envs)
        self.episodes += ended.sum(0)
        return {
            "episode": numbers[experience.times_and_envs()],
            "terminated": columns["terminated"],
            "truncated": columns["truncated"],
            "next_context": to_arrays(experience.next_rows("observations")),
        }
