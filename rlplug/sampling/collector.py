"""Collects experience: ready rows, the policy of each row, send, receive, store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy
import torch

from rlplug.batch.nested import copied, to_arrays, tree_map
from rlplug.config.sections import SamplingSection
from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
from rlplug.envs.saving import SavedEnvironments
from rlplug.envs.tensors import TensorVector
from rlplug.envs.workers import WorkerVector
from rlplug.errors import FAILURES, RlplugError
from rlplug.feeds import Experience, ModuleExperience, OpenFeed
from rlplug.feeds.feed import FinalObservations
from rlplug.nn.arrays import FrozenWeights
from rlplug.plugin import Module
from rlplug.sampling.actor import Actor, StepViews
from rlplug.sampling.episode_stats import EpisodeStats, metrics_of_modules
from rlplug.sampling.games import GameSource
from rlplug.sampling.league import League, Roster
from rlplug.sampling.recording import Recorder
from rlplug.sampling.source import Source, VectorSource
from rlplug.sampling.tensors import TensorSource
from rlplug.sampling.workers import Turns, WorkerSource
from rlplug.seeding import derive

__all__ = ["Collector"]

_MOST_SHARES = 4
"""How many times its equal share of a collection one environment may bring."""


_DEFAULTS = SamplingSection()


class Collector:
    """Steps environments with the modules of a run, some steps per collection.

    `feeds` has what is wanted of each module's experience; a module without one only acts. `steps`
    is the length of a collection, `run_steps` that of the run, for exploration schedules.
    `normalize` and `at` are for evaluations: the statistics and the step of training.

    Environments in worker processes are acted for in batches. With `count`, a collection has about
    so many rows of whichever environments bring them; those that are stepping then are rows of the
    next one, and unless a rollout is wanted, others begin steps for it, too: they step while the
    learner learns. The weights that act may then be older than those that learn: log-probabilities
    are stored with the actions, where the module tells them; for rollouts, it must.
    """

    def __init__(
        self,
        environments: Environments,
        modules: Mapping[str, Module],
        feeds: Mapping[str, OpenFeed],
        *,
        seed: int,
        options: SamplingSection = _DEFAULTS,
        steps: int = 1,
        count: int = 0,
        run_steps: int = 0,
        league: League | None = None,
        normalize: Mapping[str, Callable[[Any], Any]] | None = None,
        at: int | None = None,
        during: str = "",
    ) -> None:
        self.version = 0
        """Updates of the weights so far."""
        self.recorder: Recorder | None = None
        """Writes what is collected into a log."""
        self.num_envs = num = environments.num_envs
        if count:
            steps = -(-_MOST_SHARES * count // num)
        self._steps, self._seed, self._count = steps, seed, count
        self._min_trajectory, self._discarded = options.min_trajectory_length, 0
        self._vector, self._device = environments.vector, environments.device
        self._first = environments.first
        self.league = league
        feed = next(iter(feeds.values()))
        memory = any(module.initial_state(1) is not None for module in modules.values())
        self.source: Any = _source_of(environments, feed, options, league, memory, during)
        """The environments."""
        self._is_games = isinstance(self.source, GameSource)
        others_learn = not self.source.in_step if self._is_games else count and not options.optimal
        self.actors: dict[str, Actor] = {}
        """What acts for the rows of each module."""
        for name, rows in self.source.rows.items():
            self.actors[name] = actor = Actor(
                modules[name],
                rows,
                self.source.checks_of(name),
                feeds.get(name),
                environments.modules[name].normalization,
                steps=steps,
                random=self._random(environments, name),
                device=self._device,
            )
            actor.act.steps, actor.act.wants_log_prob, actor.at = run_steps, count > 0, at
            if normalize is not None:
                actor.normalize = normalize.get(name)
            if options.optimal:
                actor.choose = torch.no_grad()(modules[name].forward_inference)
            if others_learn:
                actor.need_log_prob()
        self._acting = list(self.actors.items())
        self._actor = actor = self._acting[0][1]
        self._turns: Turns | None = None
        if isinstance(self.source, WorkerSource):
            ahead = count > 0 and not feed.by_environment
            self._turns = Turns(actor.times, options, steps=steps, count=count, ahead=ahead)
        self._keeps_next = feed.wants_next
        self._is_single = steps == 1 and isinstance(self.source, VectorSource)
        self._scaled = [one for one in self.actors.values() if one.normalization is not None]
        self._over = numpy.zeros((steps, num), bool)
        """Where episodes of games ended."""
        self._views: StepViews | None = None
        self._scope: Any = FrozenWeights() if self._device is None else torch.no_grad()
        # Reused: for streams of single steps a new one costs more than filling it.
        self._experience = Experience(
            {},
            steps=1,
            num_envs=num,
            by_environment=feed.by_environment,
            initial_state=actor.initial_state,
        )

    def start(self, seed: int | None = None) -> None:
        """Reset the environments, each from a seed of its own under `seed`, or the run's."""
        if self.recorder is not None:
            self.recorder.recording.start()
        try:
            self.source.reset(self._seed if seed is None else seed)
        except FAILURES as error:
            self._refuse(error)
            raise
        for actor in self.actors.values():
            actor.start()
        if self._turns is not None:
            self._turns.start()

    def collect(self, timestep: int) -> Experience:
        """Take the next steps; what it returns is valid until the next call."""
        if self.recorder is not None:
            self.recorder.begin(self._actor)
        try:
            experience = self._step(timestep) if self._is_single else self._filled(timestep)
        except FAILURES as error:
            self._refuse(error)
            raise
        return experience if self.recorder is None else self.recorder.record(experience)

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        for actor in self._scaled:
            actor.absorb()

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes and of sampling since the last call."""
        own = {name: stats.take() for name, stats in self.stats_by_module.items()}
        metrics = {**metrics_of_modules(own), **self.source.take_metrics()}
        if self._turns is not None:
            metrics |= self._turns.take_metrics()
        if self.league is not None:
            self.league.roster.settle()
            metrics |= self.league.roster.metrics()
        if self._min_trajectory > 1:
            metrics["sampling/discarded_steps"] = float(self._discarded)
            self._discarded = 0
        return metrics

    @property
    def step_seconds(self) -> float:
        """Seconds that the environments took for their steps."""
        seconds: float = self.source.step_seconds
        return seconds

    @property
    def stats_by_module(self) -> Mapping[str, EpisodeStats]:
        """The episodes of each module that is trained; on a device, they are counted there."""
        counted = {} if self._device is not None else self.actors
        return {name: actor.stats for name, actor in counted.items() if actor.feed is not None}

    @property
    def roster(self) -> Roster | None:
        """Who may play in the league, where there is one."""
        return None if self.league is None else self.league.roster

    def want_log_prob(self, wanted: bool) -> None:
        """Store the log-probability of actions by the weights that chose them."""
        for actor in self.actors.values():
            actor.act.wants_log_prob |= wanted and actor.feed is not None

    def get_state(self, *, environments: bool = True) -> dict[str, Any]:
        """All that the next collection depends on; `not_saved` tells why without environments."""
        saved = SavedEnvironments(reason="checkpoint.save_environments is false")
        if environments:
            turns = None
            if self._turns is not None:
                self.source.drain()
                turns = self._turns.get_state()
            episodes = {name: actor.get_episodes() for name, actor in self._acting}
            saved = self.source.save((turns, episodes))
        return {
            "modules": {name: actor.get_state() for name, actor in self._acting},
            "league": None if self.league is None else self.league.get_state(),
            "source": self.source.get_state(),
            "recorded": None if self.recorder is None else self.recorder.get_state(),
            "environments": saved.pickled,
            "not_saved": saved.reason,
        }

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Restore a state; returns why environments were reset, from `seed`, or nothing."""
        for name, actor in self._acting:
            actor.set_state(saved["modules"][name])
        if self.league is not None and saved["league"]:
            self.league.set_state(saved["league"])
        if self.recorder is not None:
            self.recorder.set_state(saved["recorded"])
        reason = self.source.set_state(saved["source"]) or str(saved["not_saved"])
        if reason or not saved["environments"]:
            self.start(seed)
            return reason
        turns, episodes = self.source.restore(saved["environments"])
        if self._turns is not None:
            self._turns.set_state(turns)
        for name, actor in self._acting:
            actor.set_episodes(episodes[name])
        return ""

    def close(self) -> None:
        """Write the last recorded rows, and close the environments."""
        if self.recorder is not None:
            self.recorder.recording.flush()
        self._vector.close()

    # -- the loops -------------------------------------------------------------------------------

    def _step(self, timestep: int) -> Experience:
        """One step of environments in this process, without a buffer."""
        actor, source, experience = self._actor, self.source, self._experience
        rows, keeps = source.own, self._keeps_next
        if actor.state is not None:
            experience.states = [actor.state]
        seen, mask = rows.seen, rows.mask
        acted = actor.turn(None, timestep)
        columns = {
            # A vector environment may write its next observations over the last.
            "observations": tree_map(copied, seen) if keeps else seen,
            "actions": acted.actions,
        }
        if mask is not None:
            columns["action_mask"] = mask
        if acted.extras:
            columns.update(acted.extras)
        source.timestep, source.actions = timestep, acted.actions
        source.recv()
        columns["rewards"] = rewards = rows.rewards
        columns["terminated"], columns["truncated"] = rows.terminated, rows.truncated
        actor.stats.add(rewards, rows.terminated, rows.truncated, rows.infos, rows.stepped)
        if rows.restarted is not None:
            actor.restart(rows.restarted)
        experience.columns, experience.stepped = columns, rows.stepped
        experience.finals = FinalObservations(*rows.finals[0]) if rows.finals else None
        experience.following = rows.current if keeps else _NOTHING
        experience.after_reset, actor.after_reset = actor.after_reset, False
        actor.last = experience
        source.checks.check_step(rewards, rows.seen, timestep + self.num_envs)
        if experience.finals is not None:
            source.checks.check_finals(experience, timestep)
        return experience

    def _filled(self, timestep: int) -> Experience:
        """Several steps, or those of several modules, in the buffers of their actors."""
        if self.league is not None:
            self.league.refresh(timestep)
        for actor in self.actors.values():
            actor.begin()
        with self._scope:
            if self._turns is not None:
                self._fill_ready(timestep, self._turns)
            elif self.source.step_into is not None:
                self._fill_into(timestep)
            else:
                self._fill(timestep)
        if self._is_games:
            return self._of_modules(timestep)
        experience = self._actor.experience(timestep)
        if self._min_trajectory > 1:
            self._discarded += _discard_short(experience, self._min_trajectory)
        return experience

    def _fill(self, timestep: int) -> None:
        """Let all rows act at once whose turn it is, and wait for all."""
        source = self.source
        if self._device is not None:
            # Random numbers depend on the seed and the step alone: they are part of no state.
            place = (self._first,) if self._first else ()
            seed = derive(self._seed, "acting", timestep, *place)
            self._actor.act.random.manual_seed(seed)
        for time in range(self._steps):
            now = source.timestep = timestep + time * self.num_envs
            source.ready()
            for module_id, actor in self._acting:
                self._act(module_id, actor, actor.rows.turns, now)
            source.recv()
            for _, actor in self._acting:
                actor.store()
            if self._is_games:
                self._over[time] = source.over

    def _act(self, module_id: str, actor: Actor, which: Any, now: int) -> None:
        """Act for these rows with the module, and for those of others with their policies."""
        if which is None or len(which):
            acted = actor.turn(which, now, keep=True, in_step=self.source.in_step)
            self.source.send(module_id, which, acted.actions)
        for choose, others in actor.rows.others:
            acted = actor.turn(others, now, choose)
            self.source.send(module_id, others, acted.actions)

    def _fill_ready(self, timestep: int, turns: Turns) -> None:
        """Act for rows that are ready until there are enough answers."""
        source, (module_id, actor) = self.source, self._acting[0]
        turns.version = self.version
        num = self.num_envs

        def act(envs: list[int]) -> None:
            now = source.timestep = timestep + int(actor.times.sum())
            self._act(module_id, actor, None if len(envs) == num else numpy.array(envs), now)
            turns.acted(envs)

        def store() -> None:
            envs = source.own.answered
            envs = numpy.arange(num) if envs is None else envs
            if len(envs):
                versions = {"version": turns.versions[envs]} if self._count else {}
                actor.store(**versions)
                turns.stepped(envs)

        def receive(seconds: float | None) -> None:
            source.recv(seconds)
            store()

        # What arrived while a checkpoint was saved.
        source.answer()
        store()
        while envs := turns.wait(receive):
            act(envs)
            receive(0.0)
        if self._count and actor.state is not None:
            # A row of the next collection would need the state from before it.
            source.drain()
            source.answer()
            store()
        while envs := turns.ahead():
            act(envs)
        turns.finish()

    def _fill_into(self, timestep: int) -> None:
        """Let environments of this process write into the buffer directly."""
        actor, source, views = self._actor, self.source, self._views
        rows, buffer, num = source.own, actor.buffer, self.num_envs
        if views is None:
            views = self._views = StepViews(buffer, num, rows.seen)
        tree_map(numpy.copyto, views.observations[0], rows.seen)
        rows.seen = views.observations[0]
        buffer.columns["terminated"].fill(False)
        buffer.columns["truncated"].fill(False)
        choose, step_into, clip = actor.choose, source.step_into, source.clip
        act, normalize, has_state = actor.act, actor.normalize, actor.state is not None
        handles_ends, at = source.handles_ends, actor.at
        for time in range(self._steps):
            now = source.timestep = timestep + time * num
            mask = rows.mask
            if has_state:
                actor.times[:] = time
                actor.keep_states(None)
                acted = actor.turn(None, now)
            else:
                act.timestep, act.action_mask = now if at is None else at, mask
                act.observations = rows.seen if normalize is None else normalize(rows.seen)
                acted = choose(act)
            actions = acted.actions
            if type(actions) is not numpy.ndarray:
                actions = to_arrays(actions)
            if views.actions and mask is None and not acted.extras:
                views.actions[time][:] = actions
            else:
                columns = {"actions": actions, **acted.extras}
                buffer.write(time, columns if mask is None else {**columns, "action_mask": mask})
            seen, rewards = views.observations[time + 1], views.rewards[time]
            terminated, truncated = views.terminated[time], views.truncated[time]
            taken = clip(actions)
            source.doing, began = "step", perf_counter()
            infos = step_into(taken, seen, rewards, terminated, truncated)
            source.step_seconds += perf_counter() - began
            source.doing, rows.seen = "", seen
            if infos or mask is not None:
                if handles_ends and "final_obs" in infos:
                    rows.terminated, rows.truncated = terminated, truncated
                    source.handle_ends(seen, infos)
                    actor.times[:] = time
                    actor.end()
                actor.stats.add_infos(infos)
                source.observe(seen, infos, now + num)
        actor.times[:] = self._steps
        grid = buffer.grids["actions"]
        if not views.actions and type(grid) is numpy.ndarray:
            views.actions = list(grid)

    def _of_modules(self, timestep: int) -> ModuleExperience:
        """The experience of each module, and of those whose agents did nothing."""
        learned = [(name, actor) for name, actor in self._acting if actor.feed is not None]
        own = {name: actor.experience(timestep) for name, actor in learned}
        return ModuleExperience(
            {},
            steps=self._steps,
            num_envs=self.num_envs,
            by_module={name: one for name, one in own.items() if one.steps},
            idle={name: one for name, one in own.items() if not one.steps},
            over=self._over,
        )

    def _random(self, environments: Environments, module_id: str) -> Any:
        """The generator of a module, which each process of a run has of its own."""
        if self._device is not None:
            return torch.Generator(self._device)
        if not self._is_games:
            return numpy.random.default_rng(environments.seed(self._seed, "acting"))
        place = (self._first,) if self._first else ()
        return numpy.random.default_rng(derive(self._seed, "acting", module_id, *place))

    def _refuse(self, error: BaseException) -> None:
        """Name the environment that raised the error, if one did."""
        if self.source.doing and not isinstance(error, RlplugError):
            raise self.source.failed(error) from error


_NOTHING: Mapping[str, Any] = {}


def _source_of(
    environments: Environments,
    feed: OpenFeed,
    options: SamplingSection,
    league: League | None,
    memory: bool,
    during: str,
) -> Source:
    """The environments as a source of what a feed wants."""
    vector, keeps = environments.vector, feed.wants_next
    if isinstance(environments, AgentEnvironments):
        return GameSource(environments, league, during)
    if isinstance(vector, TensorVector):
        return TensorSource(environments, vector, keeps, memory)
    if isinstance(vector, WorkerVector):
        return WorkerSource(environments, vector, keeps, options.force_sync)
    return VectorSource(environments, keeps, memory, during)


def _discard_short(experience: Experience, shortest: int) -> int:
    """Leave out the rows of pieces of episodes with too few steps; returns how many."""
    ended, steps = experience.ended(), experience.steps
    stepped = numpy.ones_like(ended)
    if experience.stepped is not None:
        stepped = experience.grid(experience.stepped).copy()
    before = int(stepped.sum())
    last = ended.copy()
    last[:-1] |= ~stepped[1:]
    last[-1] = True
    for env in range(experience.num_envs):
        start = 0
        for stop in (numpy.flatnonzero(last[:, env]) + 1).tolist():
            if stepped[start:stop, env].sum() < shortest:
                stepped[start:stop, env] = False
            start = stop
    experience.discarded = before - int(stepped.sum())
    experience.stepped = (stepped.T if experience.by_environment else stepped).reshape(
        steps * experience.num_envs
    )
    return experience.discarded
