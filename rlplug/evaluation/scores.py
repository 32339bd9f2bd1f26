"""Returns and lengths of evaluation episodes, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy

from rlplug.review.record import OF_AGENT
from rlplug.review.statistics import interquartile_mean

__all__ = ["EpisodeScores", "EvaluationResult"]


@attrs.frozen(eq=False)
class EvaluationResult:
    """Returns and lengths of episodes, environment by environment, in the order of time.

    Of several agents, `returns` are their means over agents.
    """

    returns: Any
    lengths: Any
    cut: int = 0
    """How many episodes did not end and were cut off."""
    agent_returns: Any = None
    """Of several agents, shape (episodes, agents)."""
    agents: Mapping[str, str] = attrs.field(factory=dict)
    """Agent → module id, in the order of `agent_returns`."""

    def metrics(self) -> dict[str, float]:
        """Returns `eval/return_mean` and the others, and those of each agent and each module."""
        returns = self.returns
        metrics = {
            "eval/return_mean": returns.mean(),
            "eval/return_std": returns.std(),
            "eval/return_min": returns.min(),
            "eval/return_max": returns.max(),
            "eval/return_iqm": interquartile_mean(returns),
            "eval/length_mean": self.lengths.mean(),
            "eval/episodes": len(returns),
        }
        if self.cut:
            metrics["eval/episodes_cut"] = self.cut
        if self.agents:
            means = dict(zip(self.agents, self.agent_returns.mean(0), strict=True))
            for agent, mean in means.items():
                metrics[f"{OF_AGENT}{agent}/return_mean"] = mean
            for module_id in dict.fromkeys(self.agents.values()):
                own = [means[agent] for agent, its in self.agents.items() if its == module_id]
                metrics[f"eval/modules/{module_id}/return_mean"] = numpy.mean(own)
        return {name: float(value) for name, value in metrics.items()}


class EpisodeScores:
    """Adds up returns and lengths; each environment's number of episodes is fixed in advance."""

    def __init__(
        self, episodes: int, num_envs: int, max_steps: int, agents: Mapping[str, str] | None = None
    ) -> None:
        self._left = numpy.full(num_envs, episodes // num_envs)
        self._left[: episodes % num_envs] += 1
        self._max_steps, self._agents = max_steps, agents or {}
        self._return = numpy.zeros((num_envs, max(len(self._agents), 1)))
        self._length = numpy.zeros(num_envs, dtype=numpy.int64)
        self._episodes: list[list[tuple[Any, int]]] = [[] for _ in range(num_envs)]
        self._cut = 0
        self.finished = 0
        """Episodes so far."""

    @property
    def active(self) -> Any:
        """Which environments have episodes left."""
        return self._left > 0

    def add(self, stepped: Any, rewards: Any, ended: Any) -> None:
        """Add one step, with rewards of shape (num_envs, agents); resets do not count."""
        counted = self.active if stepped is None else stepped & self.active
        self._return[counted] += rewards[counted]
        self._length[counted] += 1
        for row in numpy.flatnonzero(counted & ended).tolist():
            self._finish(row)
            self._left[row] -= 1
        for row in numpy.flatnonzero(self.active & (self._length >= self._max_steps)).tolist():
            # It cannot be reset before its end: the environment's other episodes are dropped.
            self._finish(row)
            self._left[row] = 0
            self._cut += 1

    def result(self) -> EvaluationResult:
        """Returns all episodes so far."""
        returns, lengths = zip(*(one for row in self._episodes for one in row), strict=True)
        by_agent = numpy.array(returns)
        means = by_agent.mean(1)
        if not self._agents:
            return EvaluationResult(means, numpy.array(lengths), self._cut)
        return EvaluationResult(means, numpy.array(lengths), self._cut, by_agent, self._agents)

    def _finish(self, row: int) -> None:
        self._episodes[row].append((self._return[row].copy(), int(self._length[row])))
        self.finished += 1
        self._return[row] = 0.0
        self._length[row] = 0
