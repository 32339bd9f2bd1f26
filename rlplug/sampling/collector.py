"""Collects experience: ready rows, the policy of each row, send, receive, store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy
import torch

from rlplug.batch.nested import copied, tree_map
from rlplug.config.sections import SamplingSection
from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
from rlplug.envs.saving import SavedEnvironments
from rlplug.envs.tensors import TensorVector
from rlplug.envs.workers import WorkerVector
from rlplug.feeds import Experience, FinalObservations, ModuleExperience, OpenFeed
from rlplug.nn.arrays import FrozenWeights
from rlplug.plugin import Module
from rlplug.sampling.actor import Actor
from rlplug.sampling.episode_stats import EpisodeStats, metrics_of_modules
from rlplug.sampling.games import GameSource
from rlplug.sampling.source import Source, VectorSource, watch
from rlplug.sampling.tensors import TensorSource
from rlplug.sampling.workers import WorkerSource
from rlplug.seeding import derive

if TYPE_CHECKING:
    from rlplug.sampling.league import League, Roster

__all__ = ["Collector"]

_MOST_SHARES = 4
"""How many times its equal share of a collection one environment may bring."""

_DEFAULTS = SamplingSection()

_NOTHING: Mapping[str, Any] = {}


class Collector:
    """Steps environments with the modules of a run, some steps per collection.

    `feeds` has what is wanted of each module's experience; a module without one only acts. `steps`
    is the length of a collection, `run_steps` that of the run, for exploration schedules.
    `normalize` and `at` are for evaluations: the statistics and the step of training.

    Environments in worker processes are acted for in batches. With `count`, a collection has about
    so many rows of whichever environments bring them; those that are stepping then are rows of the
    next one, and unless a rollout is wanted, others begin steps for it, too: they step while the
    learner learns. The weights that act may then be older than those that learn: log-probabilities
    are stored with the actions, where the module returns them; for rollouts, it must.
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
        self.recorder: Any = None
        """Writes what is collected into a log."""
        self.num_envs = num = environments.num_envs
        if count:
            steps = -(-_MOST_SHARES * count // num)
        self._steps, self._seed, self._count = steps, seed, count
        self._environments, self._device = environments, environments.device
        self._shortest, self._discarded = options.min_trajectory_length, 0
        self._step_timeout, self.league = options.step_timeout, league
        feed = next(iter(feeds.values()))
        memory = any(module.initial_state(1) is not None for module in modules.values())
        vector, keeps = environments.vector, feed.wants_next
        self.source: Source
        """The environments."""
        # Whether weights may learn from what other ones chose.
        stale = count > 0 and not options.optimal
        if isinstance(environments, AgentEnvironments):
            self.source = GameSource(environments, league, during)
            stale = not self.source.in_step
        elif isinstance(vector, TensorVector):
            self.source = TensorSource(environments, vector, keeps, memory)
        elif isinstance(vector, WorkerVector):
            self.source = WorkerSource(environments, vector, options, feed, count, memory)
        else:
            self.source = VectorSource(environments, keeps, memory, during)
        self.actors: dict[str, Actor] = {}
        """What acts for the rows of each module."""
        for name in self.source.rows:
            self.actors[name] = actor = Actor(
                name,
                modules[name],
                feeds.get(name),
                self.source,
                steps=steps + self.source.spare_steps,
                random=self._random(name),
            )
            actor.act.steps, actor.act.wants_log_prob, actor.at = run_steps, count > 0, at
            if normalize is not None:
                actor.normalize = normalize.get(name)
            if options.optimal:
                actor.choose = torch.no_grad()(modules[name].forward_inference)
            if stale and actor.feed is not None and actor.feed.on_policy:
                actor.act.wants_log_prob = actor.needs_log_prob = True
        self._acting = list(self.actors.items())
        self._actor = actor = self._acting[0][1]
        self._keeps_next = feed.wants_next
        self._is_single = steps == 1 and isinstance(self.source, VectorSource)
        if isinstance(self.source, VectorSource):
            self.source.buffer = actor.buffer
        self._scaled = [one for one in self.actors.values() if one.normalization is not None]
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
        if self._step_timeout:
            # Later starts are watched by the same thread.
            watch(self.source, self._step_timeout)
            self._step_timeout = 0.0
        self.source.reset(self._seed if seed is None else seed)
        for actor in self.actors.values():
            actor.start()

    def collect(self, timestep: int) -> Experience:
        """Take the next steps; what it returns is valid until the next call."""
        recorder = self.recorder
        if recorder is not None:
            recorder.begin(self._actor)
        experience = self._single(timestep) if self._is_single else self._filled(timestep)
        return experience if recorder is None else recorder.record(experience)

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        for actor in self._scaled:
            actor.absorb()

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes and of sampling since the last call."""
        own = {name: stats.take() for name, stats in self.stats_by_module.items()}
        metrics = {**metrics_of_modules(own), **self.source.take_metrics()}
        if self.league is not None:
            self.league.roster.settle()
            metrics |= self.league.roster.metrics()
        if self._shortest > 1:
            metrics["sampling/discarded_steps"] = float(self._discarded)
            self._discarded = 0
        return metrics

    @property
    def step_seconds(self) -> float:
        """Seconds that the environments took for their steps."""
        return self.source.step_seconds

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
            saved = self.source.save({name: own.get_episodes() for name, own in self._acting})
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
        episodes = self.source.restore(saved["environments"])
        for name, actor in self._acting:
            actor.set_episodes(episodes[name])
        return ""

    def close(self) -> None:
        """Write the last recorded rows, and close the environments."""
        if self.recorder is not None:
            self.recorder.recording.flush()
        self._environments.vector.close()

    def _single(self, timestep: int) -> Experience:
        """One step of environments in this process, without a buffer."""
        actor, source, experience = self._actor, self.source, self._experience
        rows, keeps = source.own, self._keeps_next
        if actor.state is not None:
            experience.states = [actor.state]
        # A vector environment may write its next observations over the last.
        seen = tree_map(copied, rows.seen) if keeps else rows.seen
        mask = rows.mask
        acted = actor.turn(None, timestep)
        source.timestep, source.actions = timestep, acted.actions
        source.recv()
        columns = experience.columns = rows.outcome
        columns["observations"], columns["actions"] = seen, acted.actions
        if mask is not None:
            columns["action_mask"] = mask
        if acted.extras:
            columns.update(acted.extras)
        stepped, stats = columns.pop("stepped", None), actor.stats
        experience.stepped, experience.finals = stepped, None
        rewards = columns["rewards"]
        stats.steps.append((rewards, columns["terminated"], columns["truncated"], stepped))
        if rows.infos:
            stats.add_regret(rows.infos)
        if rows.restarted is not None:
            actor.restart()
        if rows.finals:
            experience.finals, rows.finals = FinalObservations(*rows.finals[0]), []
            source.checks.check_finals(experience, timestep)
        experience.following = rows.current if keeps else _NOTHING
        experience.after_reset, actor.after_reset = actor.after_reset, False
        actor.last = experience
        source.checks.check_step(rewards, rows.seen, timestep + self.num_envs)
        return experience

    def _filled(self, timestep: int) -> Experience:
        """Several steps, or those of several modules, in the buffers of their actors."""
        source = self.source
        source.version = self.version
        if self.league is not None:
            self.league.refresh(timestep)
        if self._device is not None:
            # Random numbers depend on the seed and the step alone: they are part of no state.
            self._actor.act.random.manual_seed(self._derived(timestep))
        for _, actor in self._acting:
            actor.begin()
        with self._scope:
            for now in source.turns(timestep, self._steps):
                for name, actor in self._acting:
                    rows = actor.rows
                    actor.store()
                    if rows.turns is None or len(rows.turns):
                        acted = actor.collect(rows.turns, now)
                        source.send(name, rows.turns, acted.actions)
                    for choose, others in rows.others:
                        source.send(name, others, actor.turn(others, now, choose).actions)
            for _, actor in self._acting:
                actor.store()
        if isinstance(source, GameSource):
            return self._of_modules(timestep, source)
        experience = self._actor.experience(timestep)
        if self._shortest > 1:
            self._discarded += _discard_short(experience, self._shortest)
        return experience

    def _of_modules(self, timestep: int, source: GameSource) -> ModuleExperience:
        """The experience of each module, and of those whose agents did nothing."""
        learned = [pair for pair in self._acting if pair[1].feed is not None]
        own = {name: actor.experience(timestep) for name, actor in learned}
        return ModuleExperience(
            {},
            steps=self._steps,
            num_envs=self.num_envs,
            by_module={name: one for name, one in own.items() if one.steps},
            idle={name: one for name, one in own.items() if not one.steps},
            over=numpy.array(source.over),
        )

    def _derived(self, *purpose: Any) -> int:
        """A seed for acting, which each process of a run has of its own."""
        first = self._environments.first
        return derive(self._seed, "acting", *purpose, *((first,) if first else ()))

    def _random(self, module_id: str) -> Any:
        if self._device is not None:
            return torch.Generator(self._device)
        own = (module_id,) if isinstance(self.source, GameSource) else ()
        return numpy.random.default_rng(self._derived(*own))


def _discard_short(experience: Experience, shortest: int) -> int:
    """Leave out the rows of pieces of episodes with too few steps; returns how many."""
    last, stepped = experience.ended().copy(), numpy.ones(experience.ended().shape, bool)
    if experience.stepped is not None:
        stepped = experience.grid(experience.stepped)
    last[:-1] |= ~stepped[1:]
    last[-1] = True
    # One environment after the other, as rows of rollouts are.
    ends, real = last.T.ravel(), stepped.T.ravel()
    pieces = ends.cumsum() - ends
    experience.stepped = real & (numpy.bincount(pieces, real) >= shortest)[pieces]
    experience.discarded = int(real.sum() - experience.stepped.sum())
    return experience.discarded
