"""Samples from environments with several agents, acting with the modules of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy

from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import FAILURES, RlplugError
from rlplug.feeds import Experience, ModuleExperience, ModuleFeeds
from rlplug.nn.arrays import FrozenWeights
from rlplug.plugin import Module
from rlplug.sampling.agent_collector import AgentCollector
from rlplug.sampling.agent_inputs import AgentInputs
from rlplug.sampling.episode_stats import EpisodeStats, metrics_of_modules
from rlplug.sampling.league import League
from rlplug.sampling.league_roster import Roster
from rlplug.seeding import derive

__all__ = ["AgentSampler", "agent_inputs"]


def agent_inputs(
    environments: AgentEnvironments,
    modules: Mapping[str, Module],
    *,
    seed: int,
    normalize: Mapping[str, Callable[[Any], Any]],
    run_steps: int = 0,
    during: str = "",
) -> dict[str, AgentInputs]:
    """The input of each module."""
    # Each process of a run has draws of its own.
    place = (environments.first,) if environments.first else ()
    return {
        module_id: AgentInputs(
            rows,
            environments.modules[module_id],
            modules[module_id],
            random=numpy.random.default_rng(derive(seed, "acting", module_id, *place)),
            normalize=normalize.get(module_id),
            run_steps=run_steps,
            during=during,
        )
        for module_id, rows in environments.games.rows.items()
    }


class AgentSampler:
    """Steps environments with several agents, some steps per collection.

    In each step, every module acts once for all its agents whose turn it is, in all environments.
    Modules without a feed act and collect nothing.
    """

    def __init__(
        self,
        environments: AgentEnvironments,
        modules: Mapping[str, Module],
        feeds: ModuleFeeds,
        *,
        seed: int,
        steps: int,
        run_steps: int = 0,
        optimal: bool = False,
        league: League | None = None,
    ) -> None:
        self.version = 0
        """Updates of the weights so far."""
        self.step_seconds = 0.0
        """Seconds that the environments took for their steps."""
        self._environments, self._games = environments, environments.games
        self._seed, self._steps = seed, steps
        self.league = league
        """Lets copies act for some agents, where there is one."""
        normalize = {
            module_id: own.normalization.observations
            for module_id, own in environments.modules.items()
            if own.normalization is not None
        }
        self._inputs = agent_inputs(
            environments, modules, seed=seed, normalize=normalize, run_steps=run_steps
        )
        self._collectors = {
            module_id: AgentCollector(
                inputs,
                environments.stored[module_id],
                feeds.by_module[module_id],
                steps=steps,
                in_turn=self._games.in_turn,
                team=environments.teams.get(module_id),
            )
            for module_id, inputs in self._inputs.items()
            if module_id in feeds.by_module
        }
        self._choose = {
            module_id: module.forward_inference if optimal else module.forward_exploration
            for module_id, module in modules.items()
        }
        self._step_agents: Callable[[Any], None] = self._games.step_agents
        self._frozen_weights = FrozenWeights()
        self._over = numpy.zeros((steps, environments.num_envs), bool)

    def start(self, seed: int | None = None) -> None:
        """Reset the environments, each from a seed of its own under `seed`, or the run's."""
        try:
            self._environments.reset_games(self._seed if seed is None else seed)
        except RlplugError:
            raise
        except FAILURES as error:
            raise self._failed(0, error) from error
        if self.league is not None:
            self.league.start()
        for module_id, inputs in self._inputs.items():
            if module_id in self._collectors:
                self._collectors[module_id].start()
            else:
                inputs.reset()

    def collect(self, timestep: int) -> Experience:
        """Take the next steps; what it returns is valid until the next call."""
        games, num_envs = self._games, self._environments.num_envs
        league, own_inputs = self.league, self._inputs
        if league is not None:
            league.refresh(timestep)
        acting = [
            (self._choose[module_id], self._collectors.get(module_id), inputs)
            for module_id, inputs in self._inputs.items()
        ]
        for one in self._collectors.values():
            one.begin()
        with self._frozen_weights:
            for time in range(self._steps):
                now = timestep + time * num_envs
                if league is not None:
                    league.hide()
                for choose, collector, inputs in acting:
                    if collector is None:
                        inputs.choose(choose, now)
                    else:
                        collector.choose(choose, now)
                if league is not None:
                    league.act(own_inputs, now)
                games.timestep = now
                began = perf_counter()
                try:
                    self._step_agents([inputs.chosen for _, _, inputs in acting])
                except RlplugError:
                    raise
                except FAILURES as error:
                    raise self._failed(now, error) from error
                self.step_seconds += perf_counter() - began
                self._over[time] = games.over
                if league is not None:
                    league.stepped(own_inputs)
                for _, collector, inputs in acting:
                    if collector is None:
                        inputs.restart([row for row, _ in inputs.rows.finals])
                    else:
                        collector.store()
        by_module, idle = {}, {}
        for module_id, one in self._collectors.items():
            own = one.experience(timestep)
            if own is None:
                idle[module_id] = one.idle()
            else:
                by_module[module_id] = own
        return ModuleExperience(
            {},
            steps=self._steps,
            num_envs=num_envs,
            by_module=by_module,
            idle=idle,
            over=self._over,
        )

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        for collector in self._collectors.values():
            collector.absorb()

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes since the last call: of each module, and their mean over modules."""
        metrics = metrics_of_modules(
            {name: one.take() for name, one in self.stats_by_module.items()}
        )
        if self.league is None:
            return metrics
        self.league.roster.settle()
        return {**metrics, **self.league.roster.pool.metrics()}

    @property
    def roster(self) -> Roster | None:
        """Who may play in the league, where there is one."""
        return None if self.league is None else self.league.roster

    @property
    def stats_by_module(self) -> Mapping[str, EpisodeStats]:
        """The episodes of each module that is trained."""
        return {name: one.episode_stats for name, one in self._collectors.items()}

    def want_log_prob(self, wanted: bool) -> None:
        """Store the log-probability of actions by the weights that chose them."""
        for module_id in self._collectors:
            self._inputs[module_id].act.wants_log_prob |= wanted

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile, `act` and `step`, of acting and stepping."""
        self._choose = {name: record("act", one) for name, one in self._choose.items()}
        self._step_agents = record("step", self._step_agents)

    def get_state(self, *, environments: bool = True) -> dict[str, Any]:
        """All that the next collection depends on; `not_saved` tells why without environments."""
        pickled, reason = b"", "checkpoint.save_environments is false"
        if environments:
            beside = {
                "vector": self._games.get_state(),
                "waiting": {name: one.get_waiting() for name, one in self._collectors.items()},
                "inputs": {name: one.get_state() for name, one in self._inputs.items()},
                "opponents": None if self.league is None else self.league.get_episodes(),
            }
            pickled, reason = self._games.save(beside)
        random = {
            name: [one.act.random.bit_generator.state, list(one.act.drawn)]
            for name, one in self._inputs.items()
        }
        return {
            "modules": {name: one.get_state() for name, one in self._collectors.items()},
            "random": random,
            "league": {} if self.league is None else self.league.get_state(),
            "environments": pickled,
            "not_saved": reason,
        }

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Restore a state; returns why environments were reset, from `seed`, or nothing."""
        for name, (state, drawn) in saved["random"].items():
            act = self._inputs[name].act
            act.random.bit_generator.state, act.drawn[:] = state, drawn
        for name, one in self._collectors.items():
            one.set_state(saved["modules"][name])
        league = self.league
        if league is not None and saved.get("league"):
            league.set_state(saved["league"])
        if not saved["environments"]:
            self.start(seed)
            return str(saved["not_saved"])
        beside = self._games.restore(saved["environments"])
        self._games.set_state(beside["vector"])
        if league is not None:
            league.set_episodes(beside.get("opponents"))
        for name, inputs in self._inputs.items():
            inputs.set_state(beside["inputs"][name])
        for name, collector in self._collectors.items():
            collector.set_waiting(beside["waiting"][name])
        return ""

    def close(self) -> None:
        """Close the environments."""
        self._games.close()

    def _failed(self, timestep: int, error: BaseException) -> Exception:
        return next(iter(self._inputs.values())).checks.failed_in(self._games, timestep, error)
