"""Evaluates a module on the same episodes again and again, in environments of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy
from gymnasium import spaces

from rlplug.batch.nested import to_arrays
from rlplug.config.sections import EvaluationSection, SamplingSection
from rlplug.envs import Environments
from rlplug.evaluation.agents import AgentModules
from rlplug.evaluation.scores import EpisodeScores, EvaluationResult
from rlplug.feeds import Experience, ModuleExperience, OpenFeed
from rlplug.nn.layers import evaluating
from rlplug.plugin import DEFAULT_MODULE, Module
from rlplug.sampling import Collector
from rlplug.sampling.checks import action_clipper
from rlplug.sampling.making import Recorder
from rlplug.seeding import derive, forked
from rlplug.spaces import AnySpace

__all__ = ["Evaluator", "greedy_collector"]

_LOG = logging.getLogger("rlplug")


class Evaluator:
    """Runs greedy episodes; the run's random numbers and the module's modes stay as they were.

    Environments are made at the first evaluation. Every evaluation starts from the same seed, so
    that modules are compared on the same episodes. `check` is called in every step and may raise.
    """

    def __init__(
        self,
        make: Callable[[int], Environments],
        *,
        episodes: int,
        parallel: int,
        seed: int,
        check: Callable[[], None] = lambda: None,
        max_episode_steps: int = EvaluationSection().max_episode_steps,
        record: Path | None = None,
        one_step: bool = False,
        step_timeout: float = SamplingSection().step_timeout,
    ) -> None:
        self._make, self._check, self._step_timeout = make, check, step_timeout
        self._episodes, self._parallel = episodes, min(parallel, episodes)
        self._max_steps = max_episode_steps
        self._seed = derive(seed, "evaluation")
        self._record, self._one_step = record, one_step
        """Folder to record the episodes in, and whether they have one step."""
        self._warned = False
        self.result: EvaluationResult | None = None
        """The last evaluation, episode by episode."""
        self._environments: Environments | None = None
        self._scores: EpisodeScores | None = None

    @property
    def played(self) -> int:
        """Episodes of the evaluation in progress; also from other threads."""
        return 0 if self._scores is None else self._scores.finished

    @property
    def progress(self) -> str:
        """The same in words."""
        return f"{self.played:,} of {self._episodes:,} episodes"

    def evaluate(self, module: Module, step: int, normalize: Any = None) -> dict[str, float]:
        """Returns `eval/return_mean` and the other metrics of `EvaluationResult`.

        `normalize` changes observations; with several agents, it is a mapping by module.
        """
        started = time.perf_counter()
        self._scores = None
        if self._environments is None:
            self._environments = self._make(self._parallel)
        environments, recorder = self._environments, None
        if self._record is not None:
            recorder = Recorder(self._record, environments, one_step=self._one_step, is_greedy=True)
            recorder.recording.start()
        result = self.play(module, environments, step, normalize, recorder=recorder)
        if recorder is not None:
            recorder.recording.flush()
        if result.cut and not self._warned:
            self._warned = True
            _LOG.warning(
                "rlplug: %d of the episodes of environment %r did not end within %s steps of an "
                "evaluation (evaluation.max_episode_steps); returns so far count, and no other "
                "episodes are played in the same environments.",
                result.cut,
                environments.name,
                f"{self._max_steps:,}",
            )
        self.result = result
        return {**result.metrics(), "time/evaluation_seconds": time.perf_counter() - started}

    def play(
        self,
        module: Module,
        environments: Environments,
        step: int,
        normalize: Any,
        episodes: int = 0,
        recorder: Recorder | None = None,
    ) -> EvaluationResult:
        """Play its episodes, or another number of them.

        Taking the first n episodes that end would favour short ones: instead, each environment
        gets its share of episodes in advance.
        """
        num_envs, agents = environments.num_envs, environments.agents
        scores = EpisodeScores(episodes or self._episodes, num_envs, self._max_steps, agents)
        clip, taken, self._scores = action_clipper(environments.action_space), 0, scores
        limits, at_limits = _limits(environments.action_space), numpy.zeros(2)
        keeps = recorder is not None
        with forked(self._seed), evaluating(module):
            collector = greedy_collector(
                module, environments, self._seed, step, normalize, self._step_timeout, keeps=keeps
            )
            collector.start()
            while scores.active.any():
                self._check()
                experience = collector.collect(taken)
                taken += num_envs
                active, stepped = scores.active, experience.stepped
                scores.add(stepped, _rewards(experience, agents), experience.ended()[0])
                if limits is not None:
                    actions = to_arrays(experience.columns["actions"])[active]
                    at_limits += (
                        numpy.count_nonzero((actions <= limits[0]) | (actions >= limits[1])),
                        actions.size,
                    )
                if recorder is not None:
                    columns = experience.columns
                    # What acts greedily has no other probability of its actions.
                    columns.pop("log_prob", None)
                    columns["actions"] = clip(to_arrays(columns["actions"]))
                    experience.stepped = active if stepped is None else stepped & active
                    recorder.record(experience)
                if taken % _FORGET_EVERY < num_envs:
                    collector.take_metrics()
        share = None if limits is None else float(at_limits[0] / at_limits[1])
        return attrs.evolve(scores.result(), at_bounds=share)

    def close(self) -> None:
        """Close the environments, if there are any."""
        if self._environments is not None:
            self._environments.close()
            self._environments = None


_FORGET_EVERY = 10_000
"""Steps of which a collector keeps the rewards for its own statistics, which nobody reads."""


def greedy_collector(
    module: Module,
    environments: Environments,
    seed: int,
    timestep: int,
    normalize: Any,
    step_timeout: float = 0.0,
    *,
    keeps: bool = False,
) -> Collector:
    """Collects one greedy step at a time, `keeps` next observations; `timestep` is of training.

    `normalize` changes observations; with several agents, it is a mapping by module.
    """
    modules, by_module = {DEFAULT_MODULE: module}, {DEFAULT_MODULE: normalize}
    if isinstance(module, AgentModules):
        modules, by_module = module.by_id, normalize or {}
    feed = OpenFeed()
    feed.wants_next = keeps
    return Collector(
        environments,
        modules,
        dict.fromkeys(modules, feed),
        seed=seed,
        options=SamplingSection(optimal=True, step_timeout=step_timeout),
        normalize=by_module,
        at=timestep,
        during=" of an evaluation",
    )


def _limits(space: AnySpace) -> tuple[Any, Any] | None:
    """Continuous actions beyond these are at a bound of their space, up to rounding."""
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not space.is_bounded():
        return None
    slack = 1e-3 * (space.high - space.low)
    return space.low + slack, space.high - slack


def _rewards(experience: Experience, agents: Mapping[str, str]) -> Any:
    """The rewards of a step, shape (num_envs, agents)."""
    if not isinstance(experience, ModuleExperience):
        return numpy.asarray(experience.columns["rewards"], float)[:, None]
    rewards = numpy.zeros((experience.num_envs, len(agents)))
    for module_id, own in experience.by_module.items():
        columns = [number for number, its in enumerate(agents.values()) if its == module_id]
        rewards[:, columns] = own.columns["rewards"].reshape(experience.num_envs, len(columns))
    return rewards
