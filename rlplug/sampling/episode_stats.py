"""Episode statistics: mean rewards, returns, lengths, and regret where environments know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from rlplug.plugin import DEFAULT_MODULE

__all__ = ["EpisodeStats", "metrics_of_modules"]

_REWARDS, _REGRETS, _RETURNS, _LENGTHS = range(4)

_MEANS = (
    "rollout/reward_mean",
    "rollout/regret_mean",
    "rollout/return_mean",
    "rollout/length_mean",
)


class EpisodeStats:
    """Keeps the steps since the last report, and finds the episodes among them for the next one."""

    def __init__(self, num_envs: int) -> None:
        self.steps: list[tuple[Any, Any, Any, Any]] = []
        """Rewards, `terminated`, `truncated`, and which rows stepped (None: all), in flat arrays.

        Single steps are appended here by the collector."""
        self.sum: Callable[[Sequence[float]], Sequence[float]] | None = None
        """Adds numbers up over the learners of a run, where there are several."""
        self._num_envs = num_envs
        self._sums = numpy.zeros((4, 2))
        """How many rewards, regrets, returns and lengths there were, and their sums."""
        self._running = numpy.zeros((2, num_envs))
        """Returns and lengths of the episodes in progress, before `steps`."""
        self._regrets: list[Any] = []
        self._regret_total = 0.0
        self._one_step = True
        """Whether all episodes so far had one step: their returns are their rewards."""

    def add_rollout(
        self, rewards: Any, terminated: Any, truncated: Any, stepped: Any = None
    ) -> None:
        """Add copies of several steps, shape (steps, num_envs)."""
        self._one_step = False
        stepped = None if stepped is None else stepped.flatten()
        self.steps.append((rewards.flatten(), terminated.flatten(), truncated.flatten(), stepped))

    def add_regret(self, infos: Mapping[str, Any]) -> None:
        """Add the regret that infos of one step report; the last step of an episode has its own."""
        for reported in (infos, infos.get("final_info", _NOTHING)):
            regret = reported.get("regret")
            if regret is not None:
                known = reported.get("_regret")
                self._regrets.append(regret if known is None else regret[known])

    def forget_episodes(self) -> None:
        """Start the episodes over, after all environments were reset."""
        self._add_up()
        self._running[:] = 0.0

    def take(self) -> dict[str, float]:
        """Returns the metrics since the last call."""
        return self.metrics(self.take_sums())

    def take_sums(self) -> Any:
        """What the metrics since the last call are computed from: counts and sums."""
        self._add_up()
        sums, self._sums = self._sums, numpy.zeros((4, 2))
        return sums

    def metrics(self, sums: Any) -> dict[str, float]:
        """The metrics of `take_sums`, which may be added up over several processes."""
        if self.sum is not None:
            sums = numpy.reshape(self.sum(sums.ravel().tolist()), (4, 2))
        metrics = {}
        for name, (count, total) in zip(_MEANS, sums.tolist(), strict=True):
            if count:
                metrics[name] = total / count
        if sums[_REGRETS, 0]:
            self._regret_total += float(sums[_REGRETS, 1])
            metrics["rollout/regret_total"] = self._regret_total
        return metrics

    def get_state(self) -> dict[str, Any]:
        """What was added since the last report, and the episodes in progress."""
        return {
            "steps": self._joined(),
            "sums": self._sums.copy(),
            "regrets": numpy.concatenate([(), *self._regrets]),
            "running": self._running.copy(),
            "regret_total": self._regret_total,
            "one_step": self._one_step,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.steps, self._regrets = [tuple(saved["steps"])], [saved["regrets"]]
        self._sums[:], self._running[:] = saved["sums"], saved["running"]
        self._regret_total, self._one_step = saved["regret_total"], saved["one_step"]

    def _joined(self) -> tuple[Any, Any, Any, Any]:
        """All steps since the last report as one."""
        empty = numpy.zeros(0), numpy.zeros(0, bool), numpy.zeros(0, bool), None
        columns = list(zip(empty, *self.steps, strict=True))
        rewards, terminated, truncated = (numpy.concatenate(column) for column in columns[:3])
        if {*map(type, columns[3])} == {type(None)}:
            return rewards, terminated, truncated, None
        parts = zip(columns[0], columns[3], strict=True)
        stepped = [numpy.ones(len(x), bool) if part is None else part for x, part in parts]
        return rewards, terminated, truncated, numpy.concatenate(stepped)

    def _add_up(self) -> None:
        """Find the episodes that ended."""
        regrets = numpy.concatenate([(), *self._regrets])
        self._sums[_REGRETS] += len(regrets), numpy.nansum(regrets)
        self._regrets = []
        if not self.steps:
            return
        rewards, terminated, truncated, stepped = self._joined()
        self.steps = []
        real = numpy.ones(len(rewards), bool) if stepped is None else stepped
        ended = (terminated | truncated) & real
        rewards = numpy.where(real, rewards, 0.0)
        self._sums[_REWARDS] += real.sum(), rewards.sum()
        self._one_step = self._one_step and bool(ended[real].all())
        if self._one_step:
            return
        shape = (-1, self._num_envs)
        for number, column in enumerate((rewards, real)):
            totals, self._running[number] = _by_episode(
                self._running[number], column.reshape(shape), ended.reshape(shape)
            )
            self._sums[_RETURNS + number] += len(totals), totals.sum()


def _by_episode(before: Any, column: Any, ended: Any) -> tuple[Any, Any]:
    """The sums of a column over episodes, and those over the episodes in progress.

    `before` are the sums of the episodes that began earlier; shape (steps, num_envs).
    """
    # Environment by environment: what was before, the steps, and an episode that may begin last.
    values = numpy.pad(column.T.astype(float), ((0, 0), (1, 1)))
    values[:, 0] = before
    begins = numpy.zeros(values.shape, bool)
    begins[:, 0], begins[:, 2:] = True, ended.T
    sums = numpy.add.reduceat(values.ravel(), numpy.flatnonzero(begins))
    last = begins.sum(1).cumsum() - 1
    return numpy.delete(sums, last), sums[last]


def metrics_of_modules(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The metrics of each module, and their means over modules; of the default alone, its own."""
    if list(found) == [DEFAULT_MODULE]:
        return dict(found[DEFAULT_MODULE])
    metrics: dict[str, float] = {}
    for module_id, own in found.items():
        for name, value in own.items():
            section, _, rest = name.partition("/")
            metrics[f"{section}/{module_id}/{rest}"] = value
    for name in sorted({name for own in found.values() for name in own}):
        metrics[name] = float(numpy.mean([own[name] for own in found.values() if name in own]))
    return metrics


_NOTHING: Mapping[str, Any] = {}
