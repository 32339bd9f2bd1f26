"""Evaluates a run with a league also against random play, and against the copies of its pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from rlplug.envs import Environments
from rlplug.evaluation.agents import AgentModules, Exploring, RandomModule
from rlplug.evaluation.evaluator import Evaluator
from rlplug.plugin import Module
from rlplug.sampling.league import Roster, scores_of

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
        self._by_agent: Environments | None = None

    def evaluate(self, module: Module, step: int, normalize: Any = None) -> dict[str, float]:
        """The metrics of `Evaluator`, and `eval/random/win_rate`, `eval/pool/win_rate` …"""
        assert isinstance(module, AgentModules)
        began = time.perf_counter()
        metrics = super().evaluate(module, step, normalize)
        if self._by_agent is None:
            self._by_agent = self._make_by_agent(self._parallel)
        roster, of_agents = self._roster, self._by_agent.modules
        random = {agent: RandomModule(of_agents[agent].action_space) for agent in roster.agents}
        scores = self._scores_against([random], module, step, normalize or {})
        metrics["eval/random/win_rate"] = float(scores.mean())
        metrics["eval/random/not_lost"] = float((scores.min(1) > 0).mean())
        pool = [
            {
                agent: Exploring(copy.modules[module_id])
                for agent, module_id in roster.agents.items()
                if module_id in copy.modules
            }
            for copy in roster.copies
        ]
        if pool:
            scores = self._scores_against(pool, module, step, normalize or {})
            metrics["eval/pool/win_rate"] = float(scores.mean())
        return {**metrics, "time/evaluation_seconds": time.perf_counter() - began}

    def close(self) -> None:
        """Close the environments, if there are any."""
        super().close()
        if self._by_agent is not None:
            self._by_agent.close()
            self._by_agent = None

    def _scores_against(
        self,
        opponents: Sequence[Mapping[str, Module]],
        module: AgentModules,
        step: int,
        normalize: Mapping[str, Any],
    ) -> Any:
        """Scores of every side that learns against each other side, shape (episodes, others)."""
        roster, environments = self._roster, self._by_agent
        assert environments is not None
        names, scores = list(environments.agents), []
        own = {agent: module.by_id[module_id] for agent, module_id in roster.agents.items()}
        scalings = {
            agent: normalize[module_id]
            for agent, module_id in roster.agents.items()
            if module_id in normalize
        }
        episodes = -(-self._episodes // (len(opponents) * len(roster.trained)))
        for other in opponents:
            for number in roster.trained:
                side = roster.sides[number]
                away = {agent: one for agent, one in other.items() if agent not in side}
                acting = AgentModules({**own, **away})
                result = self.play(acting, environments, step, scalings, episodes=episodes)
                earned = [
                    result.agent_returns[:, [names.index(agent) for agent in each]].mean(1)
                    for each in roster.sides
                ]
                others = [each for index, each in enumerate(earned) if index != number]
                scores.append(numpy.stack([scores_of(earned[number], each) for each in others], 1))
        return numpy.concatenate(scores)
