"""Returns and lengths of evaluation episodes, their metrics, and the best evaluation of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy

from rlplug.config.sections import EvaluationSection
from rlplug.quantities import format_number
from rlplug.review.comparison import interquartile_mean
from rlplug.review.record import OF_AGENT, rank

__all__ = ["BestTracker", "EpisodeScores", "EvaluationResult"]


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
    at_bounds: float | None = None
    """Share of continuous actions at a bound of their space; None if there is none."""
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
        if self.at_bounds is not None:
            metrics["eval/actions_at_bounds"] = self.at_bounds
        if self.cut:
            metrics["eval/episodes_cut"] = self.cut
        of_modules: dict[str, list[float]] = {}
        for place, (agent, module_id) in enumerate(self.agents.items()):
            mean = metrics[f"{OF_AGENT}{agent}/return_mean"] = self.agent_returns[:, place].mean()
            of_modules.setdefault(module_id, []).append(mean)
        for module_id, means in of_modules.items():
            metrics[f"eval/modules/{module_id}/return_mean"] = numpy.mean(means)
        return {name: float(value) for name, value in metrics.items()}


class EpisodeScores:
    """Adds up returns and lengths; each environment's number of episodes is fixed in advance."""

    def __init__(
        self, episodes: int, num_envs: int, max_steps: int, agents: Mapping[str, str]
    ) -> None:
        self._left = numpy.full(num_envs, episodes // num_envs)
        self._left[: episodes % num_envs] += 1
        self._max_steps, self._agents = max_steps, agents
        self._return = numpy.zeros((num_envs, max(len(agents), 1)))
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
        returns, lengths = zip(*itertools.chain(*self._episodes), strict=True)
        by_agent = numpy.array(returns)
        result = EvaluationResult(by_agent.mean(1), numpy.array(lengths), self._cut)
        if not self._agents:
            return result
        return attrs.evolve(result, agent_returns=by_agent, agents=self._agents)

    def _finish(self, row: int) -> None:
        self._episodes[row].append((self._return[row].copy(), int(self._length[row])))
        self.finished += 1
        self._return[row] = 0.0
        self._length[row] = 0


@attrs.define(eq=False)
class BestTracker:
    """The best evaluation so far, and the criteria that end a run early."""

    section: EvaluationSection
    best: float = -math.inf
    best_step: int = 0
    without_better: int = 0
    """Evaluations since the best one."""

    @property
    def best_evaluation(self) -> tuple[int, float] | None:
        """Step and mean return of the best evaluation; None before the first."""
        return (self.best_step, self.best) if self.best > -math.inf else None

    def update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Returns whether this evaluation is the best so far; NaN never is."""
        ranked = rank(metrics, step)
        best = rank({**metrics, "eval/return_mean": self.best}, self.best_step)
        if ranked[0] > -math.inf and ranked > best:
            self.best, self.best_step, self.without_better = ranked[0], step, 0
            return True
        self.without_better += 1
        return False

    def stop_reason(self, metrics: Mapping[str, float]) -> str:
        """Why the run should end after the last update; empty if it should go on."""
        value, wanted = metrics["eval/return_mean"], self.section.stop_at_return
        if value >= wanted:
            reached = f"mean return {format_number(value)} reached evaluation.stop_at_return"
            return f"{reached} = {format_number(wanted)}"
        patience = self.section.patience
        if patience and self.without_better >= patience:
            times = f"{patience} evaluations" if patience > 1 else "one evaluation"
            return (
                f"{times} without a better mean return than {format_number(self.best)} at step "
                f"{self.best_step:,} (evaluation.patience = {patience})"
            )
        return ""

    def get_state(self) -> dict[str, Any]:
        """State for checkpoints."""
        return {name: getattr(self, name) for name in ("best", "best_step", "without_better")}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.best, self.best_step = saved["best"], saved["best_step"]
        self.without_better = saved["without_better"]
