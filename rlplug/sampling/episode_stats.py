"""Episode statistics: mean rewards, returns, lengths, and regret where environments know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy

from rlplug.plugin import DEFAULT_MODULE

__all__ = ["EpisodeStats", "Lists", "metrics_of_modules"]

Lists: TypeAlias = tuple[list[Any], list[Any], list[float], list[int]]


class EpisodeStats:
    """Collects steps and computes the metrics of episodes when they are taken."""

    def __init__(self, num_envs: int) -> None:
        self._rewards: list[Any] = []
        self._steps: list[tuple[Any, Any, Any]] = []
        self._regrets: list[Any] = []
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._running = numpy.zeros(num_envs)
        self._length = numpy.zeros(num_envs, dtype=numpy.int64)
        self._regret_total = 0.0
        self._one_step = True
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
        if self._steps:
            self._add_up()
        self._rewards.append(rewards if stepped is None else rewards[stepped])
        if "regret" in infos or "final_info" in infos:
            self.add_infos(infos, stepped)
        # argmin finds the first False, many times as fast as all.
        if self._one_step and terminated[terminated.argmin()]:
            return
        self._add_step(rewards, terminated | truncated, stepped)

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
        self,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        stepped: Any = None,
        lost: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Add several steps, shape (steps, num_envs); infos are added separately.

        Episodes that end at the `lost` times and environments are left out: they were cut off by a
        failure.
        """
        self._one_step = False
        real = None if stepped is None else stepped.copy()
        if lost and self._steps:
            self._add_up()
        self._steps.append((rewards.copy(), terminated | truncated, real))
        if lost:
            self._add_up(frozenset(lost))

    def forget_episode(self, env: int) -> None:
        """Start the episode of one environment over: it was cut off by a failure."""
        if self._steps:
            self._add_up()
        self._running[env] = 0.0
        self._length[env] = 0

    def take(self) -> dict[str, float]:
        """Returns the metrics since the last call."""
        return self.metrics(self.take_lists())

    def take_lists(self) -> Lists:
        """What the metrics since the last call are of: rewards, regrets, returns, lengths."""
        if self._steps:
            self._add_up()
        kept = self._rewards, self._regrets, self._returns, self._lengths
        self._rewards, self._regrets, self._returns, self._lengths = [], [], [], []
        return kept

    def metrics(self, lists: Lists) -> dict[str, float]:
        """The metrics of these lists, which may be those of several processes."""
        metrics: dict[str, float] = {}
        all_rewards, all_regrets, returns, lengths = lists
        if self.sum is not None:
            return self._metrics_of_all(lists, self.sum)
        if all_rewards:
            rewards = numpy.concatenate(all_rewards)
            if rewards.size:
                metrics["rollout/reward_mean"] = float(rewards.mean())
        if all_regrets:
            regrets = numpy.concatenate(all_regrets)
            self._regret_total += float(regrets.sum())
            metrics["rollout/regret_mean"] = float(regrets.mean())
            metrics["rollout/regret_total"] = self._regret_total
        if returns:
            metrics["rollout/return_mean"] = float(numpy.mean(returns))
            metrics["rollout/length_mean"] = float(numpy.mean(lengths))
        return metrics

    def _metrics_of_all(
        self, lists: Lists, add_up: Callable[[Sequence[float]], Sequence[float]]
    ) -> dict[str, float]:
        """The same over all learners."""
        rewards, regrets, returns, lengths = lists
        columns = (_joined(rewards), _joined(regrets), returns, lengths)
        local = [number for one in columns for number in (len(one), float(numpy.sum(one)))]
        told = iter(add_up(local))
        metrics = {}
        for name, count, total in zip(_MEANS, told, told, strict=True):
            if count:
                metrics[name] = total / count
            if name == "rollout/regret_mean" and count:
                self._regret_total += total
                metrics["rollout/regret_total"] = self._regret_total
        return metrics

    def get_state(self) -> dict[str, Any]:
        """All steps since the last report; nothing is added up, which would round differently."""
        steps: Any = None
        if self._steps:
            rewards, ended, real = zip(*self._steps, strict=True)
            stepped = None
            if any(one is not None for one in real):
                stepped = numpy.concatenate(_without_gaps(ended, real))
            steps = [numpy.concatenate(rewards), numpy.concatenate(ended), stepped]
        return {
            "rewards": numpy.concatenate(self._rewards) if self._rewards else None,
            "steps": steps,
            "regrets": numpy.concatenate(self._regrets) if self._regrets else None,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "running": self._running.copy(),
            "length": self._length.copy(),
            "regret_total": self._regret_total,
            "one_step": self._one_step,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state, or raise what of it has a shape that nothing can be added to."""
        num_envs = len(self._running)
        for name in ("rewards", "regrets"):
            if saved[name] is not None:
                _check_shape(name, saved[name], (len(saved[name]),))
        for name in ("running", "length"):
            _check_shape(name, saved[name], (num_envs,))
        for part in saved["steps"] or ():
            if part is not None:
                _check_shape("steps", part, (len(saved["steps"][0]), num_envs))
        self._rewards = [] if saved["rewards"] is None else [saved["rewards"]]
        self._steps = [] if saved["steps"] is None else [tuple(saved["steps"])]
        self._regrets = [] if saved["regrets"] is None else [saved["regrets"]]
        self._returns, self._lengths = list(saved["returns"]), list(saved["lengths"])
        self._running, self._length = saved["running"].copy(), saved["length"].copy()
        self._regret_total, self._one_step = saved["regret_total"], saved["one_step"]

    def forget_episodes(self) -> None:
        """Start the episodes over, after all environments were reset."""
        if self._steps:
            self._add_up()
        self._running[:] = 0.0
        self._length[:] = 0

    def _add_up(self, lost: frozenset[tuple[int, int]] = frozenset()) -> None:
        """Find the returns and lengths of episodes that ended in the rollouts added."""
        rewards = numpy.concatenate([one for one, _, _ in self._steps])
        ended = numpy.concatenate([ends for _, ends, _ in self._steps])
        real = numpy.ones(rewards.shape, dtype=bool)
        if any(stepped is not None for _, _, stepped in self._steps):
            _, ends, stepped = zip(*self._steps, strict=True)
            real = numpy.concatenate(_without_gaps(ends, stepped))
        self._steps.clear()
        self._rewards.append(rewards[real])
        returns = self._running + numpy.cumsum(rewards * real, axis=0, dtype=numpy.float64)
        lengths = self._length + numpy.cumsum(real, axis=0)
        started: dict[int, tuple[float, int]] = {}
        for time, env in numpy.argwhere(ended & real).tolist():
            before, steps = started.get(env, (0.0, 0))
            total, count = float(returns[time, env]), int(lengths[time, env])
            if (time, env) not in lost:
                self._returns.append(total - before)
                self._lengths.append(count - steps)
            started[env] = (total, count)
        self._running, self._length = returns[-1], lengths[-1]
        for env, (total, count) in started.items():
            self._running[env] -= total
            self._length[env] -= count

    def _add_step(self, rewards: Any, ended: Any, stepped: Any) -> None:
        # Episodes of several steps: each step must be added up from now on.
        self._one_step = False
        real = numpy.ones(len(ended), dtype=bool) if stepped is None else stepped
        self._running[real] += rewards[real]
        self._length[real] += 1
        for index in numpy.flatnonzero(ended & real):
            self._returns.append(float(self._running[index]))
            self._lengths.append(int(self._length[index]))
            self._running[index] = 0.0
            self._length[index] = 0


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


_MEANS = (
    "rollout/reward_mean",
    "rollout/regret_mean",
    "rollout/return_mean",
    "rollout/length_mean",
)


def _check_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    if numpy.shape(array) != shape:
        raise ValueError(f"episode_stats/{name}: expected {shape}, found {numpy.shape(array)}")


def _joined(arrays: Sequence[Any]) -> Any:
    return numpy.concatenate(arrays) if arrays else ()


def _without_gaps(ended: Sequence[Any], stepped: Sequence[Any]) -> list[Any]:
    """`stepped` of each rollout, all True where it is None."""
    return [
        numpy.ones_like(ends) if one is None else one
        for ends, one in zip(ended, stepped, strict=True)
    ]
