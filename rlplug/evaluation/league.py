"""Evaluates a run with a league also against random play."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy

from rlplug.envs import Environments
from rlplug.evaluation.agents import AgentModules, RandomModule
from rlplug.evaluation.evaluator import Evaluator
from rlplug.plugin import Module
from rlplug.sampling.league import Roster, scores_of

__all__ = ["LeagueEvaluator"]


class LeagueEvaluator(Evaluator):
    """Adds how often every side, played greedily, wins where the others act at random.

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
        """The metrics of `Evaluator`, `eval/random/win_rate` and `eval/random/not_lost`."""
        assert isinstance(module, AgentModules)
        began = time.perf_counter()
        metrics = super().evaluate(module, step, normalize)
        if self._by_agent is None:
            self._by_agent = self._make_by_agent(self._parallel)
        scores = self._against_random(self._by_agent, module, step, normalize or {})
        metrics["eval/random/win_rate"] = float(scores.mean())
        metrics["eval/random/not_lost"] = float((scores.min(1) > 0).mean())
        return {**metrics, "time/evaluation_seconds": time.perf_counter() - began}

    def close(self) -> None:
        """Close the environments, if there are any."""
        super().close()
        if self._by_agent is not None:
            self._by_agent.close()
            self._by_agent = None

    def _against_random(
        self,
        environments: Environments,
        module: AgentModules,
        step: int,
        normalize: Mapping[str, Any],
    ) -> Any:
        """Scores of every side that learns against each other side, shape (episodes, others)."""
        roster, names, scores = self._roster, list(environments.agents), []
        acting: dict[str, Module] = {}
        for number in roster.trained:
            for agent, own in environments.modules.items():
                is_own = agent in roster.sides[number]
                trained = module.by_id[roster.agents[agent]]
                acting[agent] = trained if is_own else RandomModule(own.action_space)
            scalings = {agent: normalize.get(roster.agents[agent]) for agent in names}
            episodes = -(-self._episodes // len(roster.trained))
            result = self.play(AgentModules(acting), environments, step, scalings, episodes)
            earned = [
                result.agent_returns[:, [names.index(agent) for agent in side]].mean(1)
                for side in roster.sides
            ]
            learned = earned.pop(number)
            scores.append(numpy.stack([scores_of(learned, other) for other in earned], 1))
        return numpy.concatenate(scores)
