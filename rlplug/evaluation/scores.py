"""Returns and lengths of evaluation episodes, and their metrics."""

from __future__ import annotations

from typing import Any

import attrs
import numpy

from rlplug.review.statistics import interquartile_mean

__all__ = ["EpisodeScores", "EvaluationResult"]


@attrs.frozen(eq=False)
class EvaluationResult:
    """Returns and lengths of episodes, environment by environment, in the order of time."""

    returns: Any
    lengths: Any
    cut: int = 0
    """How many episodes did not end and were cut off."""

    def metrics(self) -> dict[str, float]:
        """Returns `eval/return_mean` and the others."""
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
        return {name: float(value) for name, value in metrics.items()}


class EpisodeScores:
    """Adds up returns and lengths; each environment's number of episodes is fixed in advance."""

    def __init__(self, episodes: int, num_envs: int, max_steps: int) -> None:
        self._left = numpy.full(num_envs, episodes // num_envs)
        self._left[: episodes % num_envs] += 1
        self._max_steps = max_steps
        self._return = numpy.zeros(num_envs)
        self._length = numpy.zeros(num_envs, dtype=numpy.int64)
        self._episodes: list[list[tuple[float, int]]] = [[] for _ in range(num_envs)]
        self._cut = 0
        self.finished = 0
        """Episodes so far."""

    @property
    def active(self) -> Any:
        """Which environments have episodes left."""
        return self._left > 0

    def add(self, stepped: Any, rewards: Any, ended: Any) -> None:
        """Add one step of the vector environment; steps that only reset do not count."""
        counted = stepped & self.active
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
        return EvaluationResult(numpy.array(returns), numpy.array(lengths), self._cut)

    def _finish(self, row: int) -> None:
        self._episodes[row].append((float(self._return[row]), int(self._length[row])))
        self.finished += 1
        self._return[row] = 0.0
        self._length[row] = 0
