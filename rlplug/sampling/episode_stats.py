"""Episode statistics: mean rewards, returns, lengths, and regret where environments know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy

from rlplug.plugin import DEFAULT_MODULE

__all__ = ["EpisodeStats", "Lists", "metrics_of_modules"]

Lists: TypeAlias = Mapping[str, Any]
"""Arrays of what was added since the last report: rewards, regrets, returns, lengths."""

_MEANS = {
    "rewards": "rollout/reward_mean",
    "regrets": "rollout/regret_mean",
    "returns": "rollout/return_mean",
    "lengths": "rollout/length_mean",
}


class EpisodeStats:
    """Collects steps and computes the metrics of episodes when they are taken."""

    def __init__(self, num_envs: int) -> None:
        self._rewards: list[Any] = []
        self._regrets: list[Any] = []
        self._rollouts: list[tuple[Any, Any, Any]] = []
        """Rewards, ends and which steps are real, of rollouts that are not added up yet."""
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._running = numpy.zeros(num_envs)
        """Returns of the episodes in progress."""
        self._length = numpy.zeros(num_envs, dtype=numpy.int64)
        self._regret_total = 0.0
        self._one_step = True
        """Whether all episodes so far had one step: their returns are their rewards."""
        self.sum: Callable[[Sequence[float]], Sequence[float]] | None = None
        """Adds numbers up over the learners of a run, where there are several."""

    def add(
        self,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        infos: Mapping[str, Any],
        stepped: Any = None,
    ) -> None:
        """Add one step of the vector environment; `stepped` is False where it only reset."""
        self._rewards.append(rewards if stepped is None else rewards[stepped])
        if "regret" in infos or "final_info" in infos:
            self.add_infos(infos, stepped)
        # argmin finds the first False, many times as fast as all.
        if self._one_step and terminated[terminated.argmin()]:
            return
        self._one_step = False
        ended = terminated | truncated
        real = numpy.ones(len(ended), dtype=bool) if stepped is None else stepped
        self._running[real] += rewards[real]
        self._length[real] += 1
        for env in numpy.flatnonzero(ended & real):
            self._returns.append(float(self._running[env]))
            self._lengths.append(int(self._length[env]))
            self._running[env], self._length[env] = 0.0, 0

    def add_infos(self, infos: Mapping[str, Any], stepped: Any = None) -> None:
        """Add the regret that infos of one step report."""
        regret, final = infos.get("regret"), infos.get("final_info")
        told: Any = None
        which: Any = None
        if regret is not None:
            told = numpy.asarray(regret, dtype=numpy.float64)
            which = infos.get("_regret")
            if which is None:
                which = told == told
        if final is not None and isinstance(final, Mapping) and "regret" in final:
            # Environments that ended report their last step here.
            last = numpy.asarray(final["regret"], dtype=numpy.float64)
            ended = final.get("_regret", numpy.ones(len(last), bool))
            told = last if told is None else numpy.where(ended, last, told)
            which = ended if regret is None else which | ended
        if told is not None:
            self._regrets.append(told[which if stepped is None else which & stepped])

    def add_rollout(
        self, rewards: Any, terminated: Any, truncated: Any, stepped: Any = None
    ) -> None:
        """Add several steps, shape (steps, num_envs); infos are added separately."""
        self._one_step = False
        real = None if stepped is None else stepped.copy()
        self._rollouts.append((rewards.copy(), terminated | truncated, real))

    def _add_up(self) -> None:
        """Find the episodes that ended: once per report, as short rollouts are many."""
        if not self._rollouts:
            return
        all_rewards, all_ended, all_real = zip(*self._rollouts, strict=True)
        rewards, ended = numpy.concatenate(all_rewards), numpy.concatenate(all_ended)
        real = numpy.ones(rewards.shape, bool)
        if any(part is not None for part in all_real):
            sizes = numpy.cumsum([len(part) for part in all_rewards])[:-1]
            for whole, part in zip(numpy.split(real, sizes), all_real, strict=True):
                whole[:] = True if part is None else part
        self._rollouts = []
        self._rewards.append(rewards[real])
        returns = self._running + numpy.cumsum(rewards * real, axis=0, dtype=numpy.float64)
        lengths = self._length + numpy.cumsum(real, axis=0)
        self._running, self._length = returns[-1], lengths[-1]
        started: dict[int, tuple[float, int]] = {}
        for time, env in numpy.argwhere(ended & real).tolist():
            before, steps = started.get(env, (0.0, 0))
            total, count = float(returns[time, env]), int(lengths[time, env])
            self._returns.append(total - before)
            self._lengths.append(count - steps)
            started[env] = total, count
        for env, (total, count) in started.items():
            self._running[env] -= total
            self._length[env] -= count

    def forget_episodes(self) -> None:
        """Start the episodes over, after all environments were reset."""
        self._add_up()
        self._running[:] = 0.0
        self._length[:] = 0

    def take(self) -> dict[str, float]:
        """Returns the metrics since the last call."""
        return self.metrics([self.take_lists()])

    def take_lists(self) -> Lists:
        """What the metrics since the last call are of."""
        self._add_up()
        kept = self._lists()
        self._rewards, self._regrets, self._returns, self._lengths = [], [], [], []
        return kept

    def metrics(self, parts: Sequence[Lists]) -> dict[str, float]:
        """The metrics of these lists, which may be those of several processes."""
        joined = [numpy.concatenate([own[name] for own in parts]) for name in _MEANS]
        told = [number for one in joined for number in (len(one), float(one.sum()))]
        sums = iter(told if self.sum is None else self.sum(told))
        metrics = {}
        for name, count, total in zip(_MEANS, sums, sums, strict=True):
            if count:
                metrics[_MEANS[name]] = total / count
            if count and name == "regrets":
                self._regret_total += total
                metrics["rollout/regret_total"] = self._regret_total
        return metrics

    def get_state(self) -> dict[str, Any]:
        """What was added since the last report, and the episodes in progress."""
        return {
            **self._lists(),
            "rollouts": list(self._rollouts),
            "running": self._running.copy(),
            "length": self._length.copy(),
            "regret_total": self._regret_total,
            "one_step": self._one_step,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state, or raise what of it has a shape that nothing can be added to."""
        shapes = {name: (len(saved[name]),) for name in _MEANS}
        shapes |= dict.fromkeys(("running", "length"), self._running.shape)
        for name, shape in shapes.items():
            if numpy.shape(saved[name]) != shape:
                actual = numpy.shape(saved[name])
                raise ValueError(f"episode_stats/{name}: expected {shape}, found {actual}")
        self._rewards, self._regrets = [saved["rewards"]], [saved["regrets"]]
        self._returns, self._lengths = saved["returns"].tolist(), saved["lengths"].tolist()
        self._running, self._length = saved["running"].copy(), saved["length"].copy()
        self._rollouts = list(saved["rollouts"])
        self._regret_total, self._one_step = saved["regret_total"], saved["one_step"]

    def _lists(self) -> dict[str, Any]:
        return {
            "rewards": numpy.concatenate([(), *self._rewards]),
            "regrets": numpy.concatenate([(), *self._regrets]),
            "returns": numpy.array(self._returns, numpy.float64),
            "lengths": numpy.array(self._lengths, numpy.int64),
        }


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
