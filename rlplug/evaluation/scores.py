"""The returns and lengths of episodes, and the metrics that sum them up."""

from __future__ import annotations

from typing import Any

import attrs
import numpy

__all__ = ["Played", "Scores", "interquartile_mean"]


@attrs.frozen(eq=False)
class Played:
    """Episodes that were played: environment by environment, in the order in which they came."""

    returns: Any
    lengths: Any
    cut: int = 0
    """How many found no end and were cut short."""

    def metrics(self) -> dict[str, float]:
        """`eval/return_mean` and its companions."""
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


class Scores:
    """Who still plays, and what was earned; the episodes are dealt out before the first step."""

    def __init__(self, episodes: int, num_envs: int, longest: int) -> None:
        self._left = numpy.full(num_envs, episodes // num_envs)
        self._left[: episodes % num_envs] += 1
        self._longest = longest
        self._return = numpy.zeros(num_envs)
        self._length = numpy.zeros(num_envs, dtype=numpy.int64)
        self._episodes: list[list[tuple[float, int]]] = [[] for _ in range(num_envs)]
        self._cut = 0

    @property
    def playing(self) -> Any:
        """True for environments that have episodes left."""
        return self._left > 0

    def add(self, stepped: Any, rewards: Any, ended: Any) -> None:
        """Take in one step of the vector; rows that only reset, or play no more, do not count."""
        counted = stepped & self.playing
        self._return[counted] += rewards[counted]
        self._length[counted] += 1
        for row in numpy.flatnonzero(counted & ended).tolist():
            self._note(row)
            self._left[row] -= 1
        for row in numpy.flatnonzero(self.playing & (self._length >= self._longest)).tolist():
            # Nothing but an end resets an environment: there is no next episode here.
            self._note(row)
            self._left[row] = 0
            self._cut += 1

    def played(self) -> Played:
        """All episodes so far."""
        returns, lengths = zip(*(one for row in self._episodes for one in row), strict=True)
        return Played(numpy.array(returns), numpy.array(lengths), self._cut)

    def _note(self, row: int) -> None:
        self._episodes[row].append((float(self._return[row]), int(self._length[row])))
        self._return[row] = 0.0
        self._length[row] = 0


def interquartile_mean(values: Any) -> float:
    """The mean without the lowest and the highest quarter, each rounded down to whole values."""
    ordered = numpy.sort(values)
    quarter = len(ordered) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())
