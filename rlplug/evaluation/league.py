"""Evaluates a run with a league also against random play, and against the copies of its pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy

from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
from rlplug.evaluation.agents import AgentModules, Exploring, RandomModule
from rlplug.evaluation.evaluator import Evaluator, evaluate_policy
from rlplug.nn.modes import evaluating
from rlplug.plugin import Module
from rlplug.sampling.league import Roster, scores_of
from rlplug.seeding import forked

__all__ = ["LeagueEvaluator"]


class LeagueEvaluator(Evaluator):
    """Adds the win rates of every side, played greedily: `eval/random/…` and `eval/pool/…`.

    `make_by_agent` makes environments in which every agent has a module of its own.
    """

    def __init__(
        self,
        make: Callable[[int], Environments],
        make_by_agent: Callable[[int], Environments],
        roster: Roster,
        **options: Any,
    ) -> None:
        super().__init__(make, **options)
        self._roster, self._make_by_agent = roster, make_by_agent
        self._by_agent: AgentEnvironments | None = None

    def evaluate(self, module: Module, step: int, normalize: Any = None) -> dict[str, float]:
        """The metrics of `Evaluator`, and `eval/random/win_rate`, `eval/pool/win_rate` …"""
        assert isinstance(module, AgentModules)
        began = time.perf_counter()
        metrics = super().evaluate(module, step, normalize)
        with forked(self._seed), evaluating(module):
            metrics |= self._against_others(module, step, normalize or {})
        return {**metrics, "time/evaluation_seconds": time.perf_counter() - began}

    def close(self) -> None:
        """Close the environments, if there are any."""
        super().close()
        if self._by_agent is not None:
            self._by_agent.close()
            self._by_agent = None

    def _against_others(
        self, module: AgentModules, step: int, normalize: Mapping[str, Any]
    ) -> dict[str, float]:
        if self._by_agent is None:
            self._by_agent = cast(AgentEnvironments, self._make_by_agent(self._parallel))
        environments, roster = self._by_agent, self._roster
        spaces = environments.modules
        random: dict[str, Module] = {
            agent: RandomModule(spaces[agent].action_space) for agent in roster.agents
        }
        scores = self._scores_against([random], module, step, normalize)
        metrics = {
            "eval/random/win_rate": float(scores.mean()),
            "eval/random/not_lost": float((scores.min(1) > 0).mean()),
        }
        pool: list[dict[str, Module]] = [
            {
                agent: Exploring(copy.modules[module_id])
                for agent, module_id in roster.agents.items()
                if module_id in copy.modules
            }
            for copy in roster.copies
        ]
        if pool:
            scores = self._scores_against(pool, module, step, normalize)
            metrics["eval/pool/win_rate"] = float(scores.mean())
        return metrics

    def _scores_against(
        self,
        opponents: list[dict[str, Module]],
        module: AgentModules,
        step: int,
        normalize: Mapping[str, Any],
    ) -> Any:
        """Scores of every side that learns against each other side, shape (episodes, others)."""
        roster, environments = self._roster, self._by_agent
        assert environments is not None
        own, names = module.by_id, list(environments.agents)
        episodes = -(-self._episodes // (len(opponents) * len(roster.trained)))
        found = []
        for other in opponents:
            for number in roster.trained:
                side = roster.sides[number]
                acting = {agent: own[module_id] for agent, module_id in roster.agents.items()}
                acting |= {agent: one for agent, one in other.items() if agent not in side}
                result = evaluate_policy(
                    AgentModules(acting),
                    environments,
                    episodes=episodes,
                    seed=self._seed,
                    timestep=step,
                    normalize={
                        agent: normalize[module_id]
                        for agent, module_id in roster.agents.items()
                        if module_id in normalize
                    },
                    check=self._check,
                    max_steps=self._max_steps,
                    watch=self._watch,
                )
                earned = [
                    result.agent_returns[:, [names.index(agent) for agent in one]].mean(1)
                    for one in roster.sides
                ]
                others = [one for index, one in enumerate(earned) if index != number]
                found.append(numpy.stack([scores_of(earned[number], one) for one in others], 1))
        return numpy.concatenate(found)
