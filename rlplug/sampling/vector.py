"""Samples from a vector environment in this process, acting with one module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy
import torch

from rlplug.batch.nested import copied, to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.envs.saving import EnvironmentSaver, SavedEnvironments, restore_environments
from rlplug.envs.sync import INFOS_READ, SyncVector
from rlplug.errors import FAILURES, RlplugError
from rlplug.feeds import Experience
from rlplug.nn.arrays import FrozenWeights
from rlplug.plugin import DEFAULT_MODULE, ActInput, Module
from rlplug.sampling.buffers import RolloutBuffer, StepViews
from rlplug.sampling.episode_stats import EpisodeStats
from rlplug.sampling.policy_io import Columns, PolicyIO
from rlplug.sampling.uploads import Uploads
from rlplug.spaces import ACTION_MASK

__all__ = ["VectorSampler"]


class VectorSampler:
    """Steps a vector environment, some steps per collection.

    `keep_next` is for feeds that need next observations. `state_interval` stores the recurrent
    state every so many steps. `run_steps` is the length of the run, for exploration schedules;
    `optimal` acts without exploration. Pieces of episodes with fewer than `min_trajectory` steps
    are left out of rollouts, which are copied to the GPU `upload_to` while environments step.
    """

    def __init__(
        self,
        environments: Environments,
        module: Module,
        *,
        seed: int,
        steps: int = 1,
        keep_next: bool = True,
        by_environment: bool = False,
        state_interval: int = 0,
        run_steps: int = 0,
        optimal: bool = False,
        min_trajectory: int = 1,
        upload_to: torch.device | None = None,
    ) -> None:
        vector, normalization = environments.vector, environments.normalization
        self.episode_stats = EpisodeStats(environments.num_envs)
        self.version = 0
        """Updates of the weights so far."""
        self._vector = vector
        self._saver = EnvironmentSaver(environments.another)
        self._num_envs = environments.num_envs
        self.choose = module.forward_inference if optimal else module.forward_exploration
        """How the module acts."""
        self.num_envs, self.action_space = environments.num_envs, environments.action_space
        self._steps = steps
        self._keep_next = keep_next
        self._min_trajectory = min_trajectory
        self._discarded = 0
        self._state_interval = state_interval or steps
        self._seed = seed
        self._normalization = normalization
        self._io = PolicyIO(
            environments,
            module,
            random=numpy.random.default_rng(environments.seed(seed, "acting")),
            normalize=None if normalization is None else normalization.observations,
            keep_finals=keep_next,
            run_steps=run_steps,
        )
        self._buffer = RolloutBuffer(steps, self._num_envs, by_environment=by_environment)
        # A subclass of SyncVector may override what a step returns.
        self._sync = (
            vector if type(vector) is SyncVector and vector.has_array_observations else None
        )
        self._step_into: Any = None if self._sync is None else self._sync.step_into
        self._uploads = Uploads(upload_to, steps) if upload_to is not None and steps > 1 else None
        self._views: StepViews | None = None
        self._frozen_weights = FrozenWeights()
        self._after_reset = True
        # Reused: for streams of single steps a new one costs more than filling it.
        self._experience = Experience(
            {},
            steps=steps,
            num_envs=self._num_envs,
            by_environment=by_environment,
            initial_state=self._io.autoreset.initial_state,
        )

    def start(self, seed: int | None = None) -> None:
        """Reset the environments, each from a seed of its own under `seed`, or the run's."""
        if self._normalization is not None:
            self._normalization.forget_episodes()
        self.episode_stats.forget_episodes()
        self._after_reset = True
        self._io.reset(self._seed if seed is None else seed)

    def get_state(self, *, environments: bool = True) -> dict[str, Any]:
        """All that the next collection depends on; `not_saved` tells why without environments."""
        act = self._io.act
        saved = SavedEnvironments(reason="checkpoint.save_environments is false")
        if environments:
            saved = self._save_environments()
        return {
            "random": act.random.bit_generator.state,
            "drawn": list(act.drawn),
            "episode_stats": self.episode_stats.get_state(),
            "after_reset": self._after_reset,
            "environments": saved.pickled,
            "not_saved": saved.reason,
        }

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Restore a state; returns why environments were reset, from `seed`, or nothing."""
        act = self._io.act
        act.random.bit_generator.state = saved["random"]
        act.drawn[:] = saved["drawn"]
        self.episode_stats.set_state(saved["episode_stats"])
        if not saved["environments"]:
            self.start(seed)
            return str(saved["not_saved"])
        self._restore_environments(saved["environments"])
        self._after_reset = saved["after_reset"]
        return ""

    def _save_environments(self) -> SavedEnvironments:
        return self._saver.save(self._vector, self._io.get_state())

    def _restore_environments(self, saved: bytes) -> None:
        self._io.set_state(restore_environments(self._vector, saved))

    def collect(self, timestep: int) -> Experience:
        """Take the next steps; what it returns is valid until the next call."""
        experience, io = self._experience, self._io
        if self._steps == 1:
            columns = self._step(timestep)
        else:
            states: list[Any] = []
            experience.states = states
            with self._frozen_weights:
                if self._sync is not None:
                    self._fill_zero_copy(timestep, states)
                else:
                    self._fill(timestep, states)
            columns, grids = dict(self._buffer.columns), self._buffer.grids
            if self._uploads is not None:
                self._uploads.begin(grids, self._steps)
                by_environment = experience.by_environment
                experience.uploaded = self._uploads.finish(by_environment=by_environment)
            self.episode_stats.add_rollout(
                grids["rewards"], grids["terminated"], grids["truncated"], grids.get("stepped")
            )
        experience.columns = columns
        experience.following = io.current if self._keep_next else _NOTHING
        experience.finals = io.autoreset.take_finals() if io.autoreset.active else None
        experience.stepped = columns.pop("stepped", None)
        experience.after_reset, self._after_reset = self._after_reset, False
        self._check(experience, timestep)
        if self._min_trajectory > 1:
            self._discard_short(experience)
        return experience

    def _discard_short(self, experience: Experience) -> None:
        """Leave out the rows of pieces of episodes with too few steps."""
        ended, steps = experience.ended(), experience.steps
        stepped = numpy.ones_like(ended)
        if experience.stepped is not None:
            stepped = experience.grid(experience.stepped).copy()
        before = int(stepped.sum())
        last = ended.copy()
        last[:-1] |= ~stepped[1:]
        last[-1] = True
        for env in range(self._num_envs):
            start = 0
            for stop in (numpy.flatnonzero(last[:, env]) + 1).tolist():
                if stepped[start:stop, env].sum() < self._min_trajectory:
                    stepped[start:stop, env] = False
                start = stop
        experience.discarded = before - int(stepped.sum())
        self._discarded += experience.discarded
        experience.stepped = (stepped.T if experience.by_environment else stepped).reshape(
            steps * self._num_envs
        )

    def _check(self, experience: Experience, timestep: int) -> None:
        """Refuse numbers that are not finite."""
        checks, after = self._io.checks, timestep + experience.steps * self._num_envs
        if experience.steps > 1:
            checks.check_rollout(experience, timestep)
        else:
            checks.check("a reward", experience.columns["rewards"], after)
            if experience.finals is not None:
                checks.check_finals(experience.finals, timestep)
        checks.check("an observation", self._io.current["observations"], after)

    @property
    def act(self) -> ActInput:
        """Input of the module's next call."""
        return self._io.act

    def ask_for_log_prob(self) -> bool:
        """Have the module return log-probabilities; whether it returned them already, unasked.

        To find out, it acts for a copy of its input, the random generator included.
        """
        act = copy.copy(self._io.act)
        self._io.act.wants_log_prob = True
        if act.wants_log_prob:
            return True
        seen, normalize = self._io.current["observations"], self._io.normalize
        act.observations = seen if normalize is None else normalize(seen)
        act.action_mask = self._io.current.get(ACTION_MASK)
        act.random, act.drawn = copy.deepcopy(act.random), list(act.drawn)
        act.state = None if act.state is None else tree_map(copied, act.state)
        with torch.no_grad():
            return "log_prob" in self.choose(act).extras

    @property
    def step_seconds(self) -> float:
        """Seconds that the environments took for their steps."""
        return self._io.step_seconds

    @property
    def stats_by_module(self) -> Mapping[str, EpisodeStats]:
        """The episodes, by the id of the module that acts."""
        return {DEFAULT_MODULE: self.episode_stats}

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes since the last call."""
        metrics = self.episode_stats.take()
        if self._min_trajectory > 1:
            metrics["sampling/discarded_steps"] = float(self._discarded)
            self._discarded = 0
        return metrics

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        if self._normalization is None or not self._experience.columns:
            return
        self._experience.absorb_into(self._normalization)
        self._io.normalize_again()

    def normalize_again(self) -> None:
        """Normalise the current observations, after the statistics were set from outside."""
        self._io.normalize_again()

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile, `act` and `step`, of acting and stepping."""
        self.choose = record("act", self.choose)
        self._step_into = record("step", self._step_into)
        self._io.step_vector = record("step", self._io.step_vector)

    def close(self) -> None:
        """Close the environments."""
        self._vector.close()

    def _step(self, timestep: int) -> Columns:
        """One step, without a buffer."""
        io = self._io
        if io.act.state is not None:
            self._experience.states = [io.act.state]
        io.act.timestep = timestep
        columns = io.record(self.choose(io.act))
        observations = io.current["observations"]
        # A vector environment may write its next observations over the last.
        columns["observations"] = (
            tree_map(copied, observations) if self._keep_next else observations
        )
        infos = io.step(columns["actions"], columns, 0, timestep)
        self.episode_stats.add(
            columns["rewards"],
            columns["terminated"],
            columns["truncated"],
            infos,
            columns.get("stepped"),
        )
        return columns

    def _fill(self, timestep: int, states: list[Any]) -> None:
        """Copy the steps of a vector environment into the buffer."""
        buffer, io = self._buffer, self._io
        for time in range(self._steps):
            now = timestep + time * self._num_envs
            if io.act.state is not None and time % self._state_interval == 0:
                states.append(tree_map(copied, io.act.state))
            buffer.write(time, {"observations": io.current["observations"]})
            io.act.timestep = now
            columns = io.record(self.choose(io.act))
            buffer.write(time, columns)
            outcome: Columns = {}
            infos = io.step(columns["actions"], outcome, time, now)
            buffer.write(time, outcome)
            self.episode_stats.add_infos(infos, outcome.get("stepped"))
            self._upload(time + 1)

    def _fill_zero_copy(self, timestep: int, states: list[Any]) -> None:
        """Let environments of this process write into the buffer directly."""
        io, buffer, views = self._io, self._buffer, self._views
        act, normalize, clip, autoreset = io.act, io.normalize, io.clip, io.autoreset
        explore, step_into, uploads = self.choose, self._step_into, self._uploads
        observations = io.current["observations"]
        if views is None:
            views = self._views = StepViews(buffer, self._num_envs, observations)
        tree_map(numpy.copyto, views.observations[0], observations)
        buffer.columns["terminated"].fill(False)
        buffer.columns["truncated"].fill(False)
        if normalize is None:
            act.observations = views.observations[0]
        for time in range(self._steps):
            act.timestep = now = timestep + time * self._num_envs
            if act.state is not None and time % self._state_interval == 0:
                states.append(tree_map(copied, act.state))
            acted = explore(act)
            actions, observations = acted.actions, views.observations[time + 1]
            if type(actions) is not numpy.ndarray:
                actions = to_arrays(actions)
            if views.actions and act.action_mask is None and act.state is None and not acted.extras:
                views.actions[time][:] = actions
            else:
                buffer.write(time, io.record(acted))
            terminated, truncated = views.terminated[time], views.truncated[time]
            try:
                acted_on, rewards = clip(actions), views.rewards[time]
                began = perf_counter()
                infos = step_into(
                    acted_on, observations, rewards, terminated, truncated, INFOS_READ
                )
                io.step_seconds += perf_counter() - began
                if "final_obs" in infos and autoreset.active:
                    outcome = {"terminated": terminated, "truncated": truncated}
                    autoreset.handle(time, outcome, observations, infos, act)
            except RlplugError:
                raise
            except FAILURES as error:
                raise io.checks.failed("step", now, error) from error
            if infos or act.action_mask is not None:
                self.episode_stats.add_infos(infos)
                io.observe(observations, infos, now + self._num_envs)
            else:
                act.observations = observations if normalize is None else normalize(observations)
            if uploads is not None:
                self._upload(time + 1)
        io.current = {**io.current, "observations": observations}
        grid = buffer.grids["actions"]
        if not views.actions and type(grid) is numpy.ndarray:
            views.actions = list(grid)

    def _upload(self, taken: int) -> None:
        """Begin to copy steps to the GPU, once there are enough."""
        if self._uploads is not None and taken % self._uploads.every == 0:
            self._uploads.begin(self._buffer.grids, taken)


_NOTHING: Columns = {}
