"""Collects experience: ready rows, the policy of each row, send, receive, store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Protocol

import numpy
import torch

from rlplug.batch.nested import copied, to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
from rlplug.envs.saving import SavedEnvironments
from rlplug.envs.sync import INFOS_READ
from rlplug.envs.tensors import TensorVector
from rlplug.envs.workers import WorkerVector
from rlplug.errors import FAILURES, RlplugError
from rlplug.feeds import Experience, ModuleExperience, OpenFeed
from rlplug.feeds.feed import FinalObservations
from rlplug.nn.arrays import FrozenWeights
from rlplug.plugin import Module
from rlplug.sampling.actor import Actor
from rlplug.sampling.buffer import StepViews
from rlplug.sampling.episode_stats import EpisodeStats, metrics_of_modules
from rlplug.sampling.games import GameSource
from rlplug.sampling.league import League, Roster
from rlplug.sampling.recording import Recorder
from rlplug.sampling.tensors import TensorSource
from rlplug.sampling.turns import Batching, Turns
from rlplug.sampling.uploads import Uploads
from rlplug.sampling.vector import VectorSource
from rlplug.sampling.workers import WorkerSource
from rlplug.seeding import derive

__all__ = ["Collector", "Source"]

_MOST_SHARES = 4
"""How many times its equal share of a collection one environment may bring."""


class Source(Protocol):
    """Environments that are stepped: those of one vector, of workers, games, or tensors."""

    rows: Any
    """What the rows of each module see, and what they were answered last."""
    timestep: int
    """Steps of the run before those that are taken, for messages."""
    step_seconds: float
    """Seconds that the environments took for their steps."""

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""

    def send(self, module_id: str, which: Any, actions: Any) -> None:
        """Take the actions of these rows of a module, or of all."""

    def recv(self, max_wait: float | None = None) -> None:
        """Wait for the answers of a step, at most so many seconds where not all are waited for."""

    def save(self, beside: Any) -> SavedEnvironments:
        """The environments and what belongs to their step, or why they cannot be saved."""

    def restore(self, pickled: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""


class Collector:
    """Steps environments with the modules of a run, some steps per collection.

    `feeds` has what is wanted of each module's experience; a module without one only acts. `steps`
    is the length of a collection, `run_steps` that of the run, for exploration schedules; `optimal`
    acts without exploration. Pieces of episodes with fewer than `min_trajectory` steps are left out
    of rollouts, which are copied to the GPU `upload_to` while environments step.

    Environments in worker processes are acted for in batches. With `count`, a collection has about
    so many rows of whichever environments bring them; those that are stepping then are rows of the
    next one, unless a rollout is wanted they also begin steps for it, and step while the learner
    learns. The weights that act may then be older than those that learn: log-probabilities are
    stored with the actions, where the module tells them; for rollouts, it must.
    """

    def __init__(
        self,
        environments: Environments,
        modules: Mapping[str, Module],
        feeds: Mapping[str, OpenFeed],
        *,
        seed: int,
        steps: int = 1,
        run_steps: int = 0,
        optimal: bool = False,
        min_trajectory: int = 1,
        upload_to: torch.device | None = None,
        batching: Batching | None = None,
        count: int = 0,
        normalize: Mapping[str, Callable[[Any], Any]] | None = None,
        at: int | None = None,
        during: str = "",
        league: League | None = None,
    ) -> None:
        """`normalize` and `at` are for evaluations: other statistics, and the step of training."""
        num, device = environments.num_envs, environments.device
        if count:
            steps = -(-_MOST_SHARES * count // num)
        self.version = 0
        """Updates of the weights so far."""
        self.recorder: Recorder | None = None
        """Writes what is collected into a log."""
        self.num_envs, self.action_space = num, environments.action_space
        self._steps, self._seed, self._min_trajectory = steps, seed, min_trajectory
        self._count, self.league = count, league
        self._keeps_next = next(iter(feeds.values())).wants_next
        self._vector, self._device = environments.vector, device
        self._place = (environments.first,) if environments.first else ()
        first = next(iter(feeds.values()))
        memory = any(module.initial_state(1) is not None for module in modules.values())
        batching = batching or Batching(force_sync=True)
        self.source: Any
        """The environments."""
        if isinstance(environments, AgentEnvironments):
            self.source = GameSource(environments, league=league, during=during)
        elif isinstance(self._vector, TensorVector):
            self.source = TensorSource(
                environments, self._vector, keep_finals=first.wants_next, memory=memory
            )
        elif isinstance(self._vector, WorkerVector):
            self.source = WorkerSource(
                environments,
                self._vector,
                in_step=batching.force_sync,
                keep_finals=first.wants_next,
                during=during,
            )
        else:
            self.source = VectorSource(
                environments, keep_finals=first.wants_next, with_memory=memory, during=during
            )
        self._is_games = isinstance(self.source, GameSource)
        self.actors: dict[str, Actor] = {}
        for module_id in self.source.rows:
            scaling = environments.modules[module_id].normalization
            observations = None if scaling is None else scaling.observations
            self.actors[module_id] = actor = Actor(
                modules[module_id],
                self.source.rows[module_id],
                self.source.checks_of(module_id) if self._is_games else self.source.checks,
                feed=feeds.get(module_id),
                steps=steps,
                random=self._random(environments, module_id),
                normalization=scaling,
                normalize=observations if normalize is None else normalize.get(module_id),
                run_steps=run_steps,
                at=at,
                optimal=optimal,
                device=device,
            )
            if self._is_games and actor.feed is not None:
                in_turn = not self.source.in_step
                actor.act.wants_log_prob = in_turn and actor.feed.on_policy
                actor.needs_log_prob = actor.act.wants_log_prob
        self._acting = list(self.actors.items())
        self._actor = next(iter(self.actors.values()))
        self._turns: Turns | None = None
        if isinstance(self.source, WorkerSource):
            self._actor.act.wants_log_prob = count > 0
            # Greedy actions are no draws from what is learned.
            self._actor.needs_log_prob = count > 0 and first.on_policy and not optimal
            ahead = count > 0 and not first.by_environment
            self._turns = Turns(self._actor.times, batching, steps=steps, count=count, ahead=ahead)
        self._is_single = steps == 1 and isinstance(self.source, VectorSource)
        self._over = numpy.zeros((steps, num), bool)
        """Where episodes of games ended."""
        self._views: StepViews | None = None
        self._uploads = Uploads(upload_to, steps) if upload_to is not None and steps > 1 else None
        self._frozen_weights = FrozenWeights()
        self._discarded = 0
        # Reused: for streams of single steps a new one costs more than filling it.
        self._experience = Experience(
            {},
            steps=1,
            num_envs=num,
            by_environment=first.by_environment,
            initial_state=self._actor.initial_state,
        )

    def start(self, seed: int | None = None) -> None:
        """Reset the environments, each from a seed of its own under `seed`, or the run's."""
        if self.recorder is not None:
            self.recorder.recording.start()
        self.source.reset(self._seed if seed is None else seed)
        for actor in self.actors.values():
            actor.start()
        if self._turns is not None:
            self._turns.start()

    def collect(self, timestep: int) -> Experience:
        """Take the next steps; what it returns is valid until the next call."""
        if self.recorder is not None:
            self.recorder.begin(self._actor)
        experience = self._step(timestep) if self._is_single else self._filled(timestep)
        return experience if self.recorder is None else self.recorder.record(experience)

    def _filled(self, timestep: int) -> Experience:
        if self.league is not None:
            self.league.refresh(timestep)
        for actor in self.actors.values():
            actor.begin()
        with self._frozen_weights:
            if self._turns is not None:
                self._fill_ready(timestep, self._turns)
            elif self.source.step_into is not None:
                self._fill_into(timestep)
            elif self._device is not None:
                seed = derive(self._seed, "acting", timestep, *self._place)
                self._actor.act.random.manual_seed(seed)
                with torch.no_grad():
                    self._fill(timestep)
            else:
                self._fill(timestep)
        if self._is_games:
            return self._of_modules(timestep)
        experience = self._actor.experience(timestep)
        assert experience is not None
        if self._uploads is not None:
            self._uploads.begin(self._actor.buffer.grids, self._steps)
            by_environment = experience.by_environment
            experience.uploaded = self._uploads.finish(by_environment=by_environment)
        if self._min_trajectory > 1:
            self._discarded += discard_short(experience, self._min_trajectory)
        return experience

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        for actor in self.actors.values():
            actor.absorb()

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes and of sampling since the last call."""
        own = {name: stats.take() for name, stats in self.stats_by_module.items()}
        metrics = metrics_of_modules(own)
        if self._turns is not None:
            metrics |= {**self._turns.take_metrics(), **self.source.take_metrics()}
        if self._device is not None:
            metrics |= self.source.take_metrics()
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
        trained = {} if self._device is not None else self.actors
        return {name: own.stats for name, own in trained.items() if own.feed is not None}

    @property
    def roster(self) -> Roster | None:
        """Who may play in the league, where there is one."""
        return None if self.league is None else self.league.roster

    def want_log_prob(self, wanted: bool) -> None:
        """Store the log-probability of actions by the weights that chose them."""
        for actor in self.actors.values():
            actor.act.wants_log_prob |= wanted and actor.feed is not None

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile, `act` and `step`, of acting and stepping."""
        source = self.source
        for actor in self.actors.values():
            actor.choose = record("act", actor.choose)
        source.recv = record("step", source.recv)
        if source.step_into is not None:
            source.step_into = record("step", source.step_into)

    def get_state(self, *, environments: bool = True) -> dict[str, Any]:
        """All that the next collection depends on; `not_saved` tells why without environments."""
        saved = SavedEnvironments(reason="checkpoint.save_environments is false")
        if environments:
            if self._turns is not None:
                self.source.drain()
            turns = None if self._turns is None else self._turns.get_state()
            episodes = {name: actor.get_episodes() for name, actor in self.actors.items()}
            saved = self.source.save((turns, episodes))
        return {
            "modules": {name: actor.get_state() for name, actor in self.actors.items()},
            "league": {} if self.league is None else self.league.get_state(),
            "device": {} if self._device is None else self.source.get_state(),
            "recorded": {} if self.recorder is None else self.recorder.get_state(),
            "environments": saved.pickled,
            "not_saved": saved.reason,
        }

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Restore a state; returns why environments were reset, from `seed`, or nothing."""
        for name, actor in self.actors.items():
            actor.set_state(saved["modules"][name])
        if self.league is not None and saved["league"]:
            self.league.set_state(saved["league"])
        if self.recorder is not None:
            self.recorder.set_state(saved["recorded"])
        reason = str(saved["not_saved"])
        if self._device is not None:
            reason = self.source.set_state(saved["device"]) or reason
        if reason or not saved["environments"]:
            self.start(seed)
            return reason
        turns, episodes = self.source.restore(saved["environments"])
        if self._turns is not None:
            self._turns.set_state(turns)
        for name, actor in self.actors.items():
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
        # A vector environment may write its next observations over the last.
        columns = {
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
        after = timestep + self.num_envs
        source.checks.check("a reward", rewards, after)
        if experience.finals is not None:
            source.checks.check_finals(experience, timestep)
        source.checks.check("an observation", rows.seen, after)
        return experience

    def _fill(self, timestep: int) -> None:
        """Let all rows act at once whose turn it is, and wait for all."""
        source = self.source
        for time in range(self._steps):
            now = source.timestep = timestep + time * self.num_envs
            if self._is_games:
                source.ready()
            for module_id, actor in self._acting:
                self._act(module_id, actor, actor.rows.turns, now)
            source.recv()
            for _, actor in self._acting:
                actor.store()
            if self._is_games:
                self._over[time] = source.over
            if self._uploads is not None:
                self._upload(time + 1)

    def _act(self, module_id: str, actor: Actor, which: Any, now: int) -> None:
        """Act for these rows with the module, and for those of others with their policies."""
        if which is None or len(which):
            if actor.state is not None and actor.feed is not None:
                actor.keep_states(which)
            acted = actor.turn(which, now)
            actor.keep(acted, which, in_step=self.source.in_step)
            self.source.send(module_id, which, acted.actions)
        for choose, others in actor.rows.others:
            acted = actor.turn(others, now, choose)
            self.source.send(module_id, others, acted.actions)

    def _of_modules(self, timestep: int) -> ModuleExperience:
        """The experience of each module, and of those whose agents did nothing."""
        by_module, idle = {}, {}
        for module_id, actor in self._acting:
            if actor.feed is not None:
                own = actor.experience(timestep)
                if own is None:
                    idle[module_id] = actor.idle()
                else:
                    by_module[module_id] = own
        return ModuleExperience(
            {},
            steps=self._steps,
            num_envs=self.num_envs,
            by_module=by_module,
            idle=idle,
            over=self._over,
        )

    def _random(self, environments: Environments, module_id: str) -> Any:
        """The generator of a module, which each process of a run has of its own."""
        if self._device is not None:
            return torch.Generator(self._device)
        if not self._is_games:
            return numpy.random.default_rng(environments.seed(self._seed, "acting"))
        return numpy.random.default_rng(derive(self._seed, "acting", module_id, *self._place))

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
            for lost, current in source.own.lost:
                actor.lose(lost, current)
                turns.lost(lost)

        def receive(seconds: float | None) -> None:
            source.recv(seconds)
            store()

        try:
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
        except RlplugError:
            raise
        except FAILURES as error:
            raise source.failed("step", error) from error
        turns.finish()

    def _fill_into(self, timestep: int) -> None:
        """Let environments of this process write into the buffer directly."""
        actor, source, views = self._actor, self.source, self._views
        rows, buffer, num, uploads = source.own, actor.buffer, self.num_envs, self._uploads
        if views is None:
            views = self._views = StepViews(buffer, num, rows.seen)
        tree_map(numpy.copyto, views.observations[0], rows.seen)
        rows.seen = views.observations[0]
        buffer.columns["terminated"].fill(False)
        buffer.columns["truncated"].fill(False)
        for time in range(self._steps):
            now = source.timestep = timestep + time * num
            if actor.state is not None:
                actor.times[:] = time
                actor.keep_states(None)
            acted, mask = actor.turn(None, now), rows.mask
            actions = acted.actions
            if type(actions) is not numpy.ndarray:
                actions = to_arrays(actions)
            if views.actions and mask is None and not acted.extras:
                views.actions[time][:] = actions
            else:
                columns = {"actions": actions, **acted.extras}
                buffer.write(time, columns if mask is None else {**columns, "action_mask": mask})
            seen, rewards = views.observations[time + 1], views.rewards[time]
            rows.terminated, rows.truncated = views.terminated[time], views.truncated[time]
            try:
                actions, began = source.clip(actions), perf_counter()
                infos = source.step_into(
                    actions, seen, rewards, rows.terminated, rows.truncated, INFOS_READ
                )
                source.step_seconds += perf_counter() - began
                if "final_obs" in infos and source.handles_ends:
                    source.handle_ends(seen, infos)
                    actor.times[:] = time
                    actor.end()
            except RlplugError:
                raise
            except FAILURES as error:
                raise source.failed("step", error) from error
            if infos or mask is not None:
                actor.stats.add_infos(infos)
                source.observe(seen, infos, now + num)
            else:
                rows.seen = seen
            if uploads is not None:
                self._upload(time + 1)
        actor.times[:] = self._steps
        grid = buffer.grids["actions"]
        if not views.actions and type(grid) is numpy.ndarray:
            views.actions = list(grid)

    def _upload(self, taken: int) -> None:
        """Begin to copy steps to the GPU, once there are enough."""
        if self._uploads is not None and taken % self._uploads.every == 0:
            self._uploads.begin(self._actor.buffer.grids, taken)


_NOTHING: Mapping[str, Any] = {}


def discard_short(experience: Experience, shortest: int) -> int:
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
