"""Records the experience of a sampler as a log, with the probabilities of its actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.feeds import Experience
from rlplug.logs.recording import Recording
from rlplug.sampling.tensors import TensorSampler
from rlplug.sampling.vector import VectorSampler

__all__ = ["ExperienceRecorder", "RecordingSampler"]


class ExperienceRecorder:
    """Writes experience into a recording, and numbers its episodes.

    `one_step` leaves out what single-step episodes have no use for: ends, next observations.
    """

    def __init__(
        self, recording: Recording, num_envs: int, *, is_discrete: bool, one_step: bool
    ) -> None:
        self.recording = recording
        self.episodes = numpy.zeros(num_envs, numpy.int64)
        """Episodes of each environment that have ended."""
        self._is_discrete, self._one_step = is_discrete, one_step

    def record(self, experience: Experience, *, is_greedy: bool) -> None:
        """Add its steps."""
        num_envs, stepped = len(self.episodes), to_arrays(experience.stepped)
        columns = {name: to_arrays(one) for name, one in experience.columns.items()}
        rows: dict[str, Any] = {
            "action": columns["actions"],
            "reward": numpy.asarray(columns["rewards"], numpy.float64),
        }
        log_prob = columns.get("log_prob")
        if log_prob is None and is_greedy and self._is_discrete:
            # One action has all the probability.
            log_prob = numpy.zeros(len(rows["reward"]))
        if log_prob is not None:
            rows["action_log_prob"] = numpy.asarray(log_prob, numpy.float64).reshape(-1)
            if self._is_discrete:
                rows["propensity"] = numpy.exp(rows["action_log_prob"])
        observations = columns["observations"]
        if "action_mask" in columns and not isinstance(observations, Mapping):
            rows["action_mask"] = numpy.asarray(columns["action_mask"], numpy.int8)
        if not self._one_step:
            if self.recording.rows:
                # Reset without an end: whatever comes is another episode.
                self.episodes += experience.after_reset
            ended = to_arrays(experience.ended())
            before = numpy.concatenate([numpy.zeros((1, num_envs), int), ended[:-1].cumsum(0)])
            numbers = (self.episodes + before) * num_envs + numpy.arange(num_envs)
            times, envs = experience.times_and_envs()
            rows["episode"] = numbers[times, envs]
            rows["terminated"] = columns["terminated"]
            rows["truncated"] = columns["truncated"]
            rows["next_context"] = to_arrays(experience.next_observations())
            self.episodes += ended.sum(0)
        if stepped is not None and not stepped.all():
            rows = {name: one[stepped] for name, one in rows.items()}
            observations = tree_map(lambda leaf: leaf[stepped], observations)
        self.recording.add(observations, {name: numpy.array(one) for name, one in rows.items()})


class RecordingSampler:
    """A sampler whose experience is recorded; what is learned from it stays the same."""

    def __init__(
        self,
        sampler: VectorSampler | TensorSampler,
        recording: Recording,
        *,
        one_step: bool,
        is_greedy: bool,
    ) -> None:
        self._sampler, self._recording = sampler, recording
        self._is_greedy = is_greedy
        self._recorder = ExperienceRecorder(
            recording,
            sampler.num_envs,
            is_discrete=isinstance(sampler.action_space, spaces.Discrete),
            one_step=one_step,
        )
        self._keeps_log_prob: bool | None = None
        """Whether the feed gets log-probabilities: whether it would without a recording."""

    @property
    def version(self) -> int:
        """Updates of the weights so far."""
        return self._sampler.version

    @version.setter
    def version(self, updates: int) -> None:
        self._sampler.version = updates

    @property
    def step_seconds(self) -> float:
        """Seconds that the environments took for their steps."""
        return self._sampler.step_seconds

    def start(self, seed: int | None = None) -> None:
        """Reset the environments, and begin the recording."""
        self._recording.start()
        self._sampler.start(seed)

    def collect(self, timestep: int) -> Experience:
        """Take the next steps, and record them."""
        if self._keeps_log_prob is None:
            self._keeps_log_prob = self._sampler.ask_for_log_prob()
        experience = self._sampler.collect(timestep)
        self._recorder.record(experience, is_greedy=self._is_greedy)
        if not self._keeps_log_prob and "log_prob" in experience.columns:
            experience.columns = {
                name: one for name, one in experience.columns.items() if name != "log_prob"
            }
        return experience

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile of acting and stepping."""
        self._sampler.record_phases(record)

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        self._sampler.absorb()

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes since the last call."""
        return self._sampler.take_metrics()

    def get_state(self, *, environments: bool = True) -> dict[str, Any]:
        """All that the next collection depends on; what was recorded is on the disk then."""
        self._recording.flush()
        recorded = {"rows": self._recording.rows, "episodes": self._recorder.episodes.tolist()}
        return {**self._sampler.get_state(environments=environments), "recorded": recorded}

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Restore a state; rows that were recorded after it are deleted."""
        self._recording.resume(saved["recorded"]["rows"])
        self._recorder.episodes[:] = saved["recorded"]["episodes"]
        return self._sampler.set_state(saved, seed=seed)

    def close(self) -> None:
        """Write the last rows, and close the environments."""
        self._recording.flush()
        self._sampler.close()
