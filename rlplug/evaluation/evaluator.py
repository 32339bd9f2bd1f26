"""Evaluates a module on the same episodes again and again, in environments of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy
import torch
from gymnasium import spaces

from rlplug.batch.nested import copied, to_arrays, tree_map
from rlplug.config.sections import EvaluationSection
from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
from rlplug.evaluation.agents import AgentModules, evaluate_agents
from rlplug.evaluation.scores import EpisodeScores, EvaluationResult
from rlplug.feeds import Experience
from rlplug.logs.recording import Recording
from rlplug.nn.layers import evaluating
from rlplug.plugin import Acted, Module
from rlplug.sampling.policy_io import Columns, PolicyIO
from rlplug.sampling.recording import ExperienceRecorder
from rlplug.seeding import derive, forked

__all__ = ["EpisodeRunner", "Evaluator", "evaluate_policy"]

_LOG = logging.getLogger("rlplug")


class Evaluator:
    """Runs greedy episodes; the run's random numbers and the module's modes stay as they were.

    Environments are made at the first evaluation. Every evaluation starts from the same seed, so
    that modules are compared on the same episodes.
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
    ) -> None:
        self._record = record
        """Folder to record the episodes in."""
        self._one_step = one_step
        self._make = make
        self._episodes = episodes
        self._parallel = min(parallel, episodes)
        self._seed = derive(seed, "evaluation")
        self._check = check
        self._max_steps = max_episode_steps
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

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile of evaluations."""
        own: Any = self
        own.evaluate = record("evaluate", self.evaluate)

    def evaluate(self, module: Module, step: int, normalize: Any = None) -> dict[str, float]:
        """Returns `eval/return_mean` and the other metrics of `EvaluationResult`.

        `normalize` changes observations; with several agents, it is a mapping by module.
        """
        started = time.perf_counter()
        self._scores = None
        if self._environments is None:
            self._environments = self._make(self._parallel)
        recorder = None if self._record is None else self._recorder(self._record)
        played: dict[str, Any] = {
            "episodes": self._episodes,
            "seed": self._seed,
            "timestep": step,
            "normalize": normalize,
            "check": self._check,
            "max_steps": self._max_steps,
            "watch": self._watch,
        }
        result: EvaluationResult
        with forked(self._seed), evaluating(module):
            if isinstance(module, AgentModules):
                games = cast(AgentEnvironments, self._environments)
                result = evaluate_agents(module, games, **played)
            else:
                result = evaluate_policy(module, self._environments, **played, recorder=recorder)
        if recorder is not None:
            recorder.recording.flush()
        self.result = result
        if result.cut and not self._warned:
            self._warned = True
            self._warn(self._environments, result.cut)
        return {**result.metrics(), "time/evaluation_seconds": time.perf_counter() - started}

    def _recorder(self, folder: Path) -> ExperienceRecorder:
        environments = self._environments
        assert environments is not None
        space, actions = environments.vector.single_observation_space, environments.action_space
        recording = Recording(folder, space, actions)
        recording.start()
        return ExperienceRecorder(
            recording,
            environments.num_envs,
            is_discrete=isinstance(actions, spaces.Discrete),
            one_step=self._one_step,
        )

    def _watch(self, scores: EpisodeScores) -> None:
        self._scores = scores

    def _warn(self, environments: Environments, cut: int) -> None:
        count = "one episode" if cut == 1 else f"{cut} episodes"
        _LOG.warning(
            "rlplug: %s of environment %r did not end within %s steps of an evaluation "
            "(evaluation.max_episode_steps); returns so far count, and no other episodes are "
            "played in the same environments.",
            count,
            environments.name,
            f"{self._max_steps:,}",
        )

    def close(self) -> None:
        """Close the environments, if there are any."""
        if self._environments is not None:
            self._environments.close()
            self._environments = None


def evaluate_policy(
    module: Module,
    environments: Environments,
    *,
    episodes: int,
    seed: int,
    timestep: int = 0,
    normalize: Callable[[Any], Any] | None = None,
    check: Callable[[], None] = lambda: None,
    max_steps: int = EvaluationSection().max_episode_steps,
    watch: Callable[[EpisodeScores], None] = lambda scores: None,
    recorder: ExperienceRecorder | None = None,
) -> EvaluationResult:
    """Returns and lengths of exactly so many episodes.

    Taking the first n episodes that end would favour short ones: instead, each environment gets
    its share of episodes in advance. `check` is called in every step and may raise; `watch` is
    given the scores before the first one.
    """
    runner = EpisodeRunner(environments, module, normalize, seed, timestep, recorder)
    scores = EpisodeScores(episodes, environments.num_envs, max_steps)
    watch(scores)
    runner.reset(seed)
    while scores.active.any():
        check()
        with torch.no_grad():
            acted = module.forward_inference(runner.act)
        scores.add(*runner.step(acted, scores.active))
    return scores.result()


class EpisodeRunner:
    """Steps environments for evaluation, outside of training."""

    def __init__(
        self,
        environments: Environments,
        module: Module,
        normalize: Callable[[Any], Any] | None,
        seed: int,
        timestep: int,
        recorder: ExperienceRecorder | None = None,
    ) -> None:
        self._recorder = recorder
        random = numpy.random.default_rng(derive(seed, "acting"))
        during = " of an evaluation"
        self._io = PolicyIO(
            environments,
            module,
            random=random,
            normalize=normalize,
            during=during,
            keep_finals=recorder is not None,
        )
        self.act = self._io.act
        self.act.timestep = timestep
        self._num_envs = environments.num_envs
        self._taken = 0
        """Steps since the reset, summed over environments."""

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        self._taken = 0
        self._io.reset(seed)

    def step(self, acted: Acted, active: Any = None) -> tuple[Any, Any, Any]:
        """Returns which environments stepped (others only reset), the rewards, and which ended.

        Where there is a recorder, the steps of `active` environments are recorded.
        """
        io = self._io
        seen = {} if self._recorder is None else tree_map(copied, io.current)
        if self.act.state is not None:
            self.act.state = acted.state
        before, self._taken = self._taken, self._taken + self._num_envs
        outcome: Columns = {}
        io.step(acted.actions, outcome, 0, before)
        rewards = numpy.asarray(outcome["rewards"])
        io.checks.check("a reward", rewards, self._taken)
        io.checks.check("an observation", io.current["observations"], self._taken)
        ended = outcome["terminated"] | outcome["truncated"]
        stepped = outcome.get("stepped", numpy.ones_like(ended))
        if self._recorder is not None:
            self._add(seen, acted, {**outcome, "rewards": rewards}, stepped & active)
        return stepped, rewards.astype(float), ended

    def _add(self, seen: Columns, acted: Acted, outcome: Columns, stepped: Any) -> None:
        """Record one step of those environments that took one."""
        io, recorder = self._io, self._recorder
        assert recorder is not None
        columns = {**seen, **outcome, "actions": io.clip(to_arrays(acted.actions))}
        columns.pop("stepped", None)
        experience = Experience(
            columns,
            steps=1,
            num_envs=self._num_envs,
            following=io.current,
            finals=io.autoreset.take_finals(),
            stepped=stepped,
        )
        recorder.record(experience, is_greedy=True)
