"""Running normalisation of observations and rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.batch.nested import to_arrays
from rlplug.config.sections import EnvSection
from rlplug.errors import RequestError
from rlplug.spaces import ACTION_MASK, present_arms, without_action_mask

__all__ = ["EPSILON", "Normalization", "RunningMoments"]

EPSILON = 1e-8
"""Added to variances."""

Gather: TypeAlias = Callable[[Any], Sequence[Any]]
"""Takes what one learner has, and returns what all of a run have, in their order."""


class RunningMoments:
    """Running mean and variance; 0 and 1 before the first row."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count: Any = 0
        """Rows so far; an array where parts of rows were left out."""
        self.mean = numpy.zeros(shape)
        self.variance = numpy.ones(shape)

    def absorb(self, rows: Any, gather: Gather | None = None, present: Any = None) -> None:
        """Add rows (n, …), or those parts that are `present`; with `gather`, of all learners."""
        if gather is not None:
            for n, mean, variance in gather(_moments_of(rows, present)):
                self._add(n, mean, variance)
        elif len(rows):
            self._add(*_moments_of(rows, present))

    def _add(self, n: Any, mean: Any, variance: Any) -> None:
        if mean is None:
            return
        counted = total = self.count + n
        by_part = not isinstance(counted, int)
        if by_part:
            total = numpy.maximum(counted, 1)
        away = mean - self.mean
        squares = self.variance * self.count + variance * n
        squares = squares + away**2 * (self.count * n / total)
        self.mean = self.mean + away * (n / total)
        self.variance = squares / total
        if by_part:
            # Of what never came it stays as it was.
            self.variance = numpy.where(counted == 0, 1.0, self.variance)
        self.count = counted


class Normalization:
    """Normalises observations by their mean and variance, rewards by the variance of returns.

    Statistics change only in `absorb`, so that a policy learns from the same numbers as it acted
    on. Evaluation and serving do not call it.
    """

    observed = ("observations", "next_observations", "final_observations")
    """The columns of batches that are normalised as observations."""

    def __init__(
        self, section: EnvSection, observation_space: gymnasium.Space[Any], num_envs: int
    ) -> None:
        self._section = section
        self._moments: dict[tuple[Any, ...], RunningMoments] = {}
        if section.normalize_observation:
            seen = without_action_mask(observation_space)
            self._moments = {path: RunningMoments(box.shape) for path, box in _boxes(seen, ())}
            if not self._moments:
                raise RequestError(
                    f"env.normalize_observation: there are no numbers in {observation_space}.",
                    "try: --set env.normalize_observation=false",
                )
        self._returns = RunningMoments(())
        self._running = numpy.zeros(num_envs)
        self._scales: dict[tuple[Any, ...], Any] = {}
        self.gather: Gather | None = None
        """Where several learners of a run share the statistics."""
        self._update_scales()

    @property
    def changes_observations(self) -> bool:
        """Whether observations are normalised."""
        return bool(self._moments)

    @property
    def scales(self) -> Mapping[tuple[Any, ...], tuple[Any, Any]]:
        """Mean and factor of each normalised part of observations, by its path."""
        return self._scales

    @property
    def clip(self) -> float:
        """The bound of normalised observations; 0: none."""
        return self._section.normalize_clip

    def space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """The space of normalised observations."""
        normalised: gymnasium.Space[Any] = self._space(space, ())
        return normalised

    def observations(self, observations: Any) -> Any:
        """Normalised observations, of any leading shape."""
        return self._scaled(observations, ()) if self._moments else observations

    def rewards(self, rewards: Any) -> Any:
        """Rewards divided by the standard deviation of returns, and clipped."""
        section = self._section
        if section.normalize_reward:
            rewards = rewards / numpy.sqrt(self._returns.variance + EPSILON)
            rewards = _clipped(rewards, section.normalize_clip)
        return _clipped(rewards, section.reward_clip)

    def apply(self, columns: dict[str, Any]) -> None:
        """Normalise the columns of a batch in place."""
        if self._moments:
            for name in self.observed:
                if name in columns:
                    columns[name] = self.observations(to_arrays(columns[name]))
        columns["rewards"] = self.rewards(columns["rewards"])

    def absorb(self, observations: Any, rewards: Any, ended: Any, stepped: Any = None) -> None:
        """Update the statistics: observations by rows, all others of shape (steps, num_envs).

        `stepped` is False where an environment only reset.
        """
        for path, moments in self._moments.items():
            rows = numpy.asarray(_at(observations, path))
            moments.absorb(rows, self.gather, _present_arms(observations, path, rows))
        if self._section.normalize_reward:
            self._returns.absorb(self._discounted(rewards, ended, stepped), self.gather)
        self._update_scales()

    def absorb_nothing(self) -> None:
        """Take part in an update of the statistics to which only other learners bring rows."""
        if self.gather is None:
            return
        absorbed = [*self._moments.values()]
        if self._section.normalize_reward:
            absorbed.append(self._returns)
        for one in absorbed:
            one.absorb(numpy.empty((0, *one.mean.shape)), self.gather)
        self._update_scales()

    def get_state(self) -> dict[str, Any]:
        """The statistics."""
        every = [*self._moments.values(), self._returns]
        return {
            "moments": [[one.count, one.mean, one.variance] for one in every],
            "running": self._running.copy(),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state; running returns only for the same number of environments."""
        every = [*self._moments.values(), self._returns]
        here = [one.mean.shape for one in every]
        there = [numpy.shape(mean) for _, mean, _ in saved["moments"]]
        variances = [numpy.shape(variance) for _, _, variance in saved["moments"]]
        if there != here or variances != here:
            raise RequestError(
                f"the saved statistics of observations have shapes {there} and {variances}, "
                f"here they are {here}.",
                "use the [env] options of the run that saved them",
            )
        for one, (count, mean, variance) in zip(every, saved["moments"], strict=True):
            one.count = count if isinstance(count, int) else numpy.asarray(count)
            one.mean, one.variance = numpy.array(mean), numpy.array(variance)
        if numpy.shape(saved["running"]) == self._running.shape:
            self._running = numpy.array(saved["running"])
        self._update_scales()

    def forget_episodes(self) -> None:
        """Reset the running returns, after all environments were reset."""
        self._running[:] = 0.0

    def _discounted(self, rewards: Any, ended: Any, stepped: Any) -> NDArray[numpy.float64]:
        gamma = self._section.normalize_gamma
        running = self._running
        seen = numpy.empty(numpy.shape(rewards))
        going = ~numpy.asarray(ended)
        for time, earned in enumerate(rewards):
            later = running * gamma + earned
            running = later if stepped is None else numpy.where(stepped[time], later, running)
            seen[time] = running
            running = running * going[time]
        self._running = running
        return seen.reshape(-1) if stepped is None else seen[stepped]

    def _update_scales(self) -> None:
        """Compute the float32 mean and factor that every step uses."""
        self._scales = {
            path: (
                one.mean.astype(numpy.float32),
                (1.0 / numpy.sqrt(one.variance + EPSILON)).astype(numpy.float32),
            )
            for path, one in self._moments.items()
        }

    def _scaled(self, part: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(part, Mapping):
            return {key: self._scaled(one, (*path, key)) for key, one in part.items()}
        if isinstance(part, tuple):
            return tuple(self._scaled(one, (*path, key)) for key, one in enumerate(part))
        found = self._scales.get(path)
        if found is None:
            return part
        mean, factor = found
        scaled = numpy.subtract(part, mean, dtype=numpy.float32)
        scaled *= factor
        return _clipped(scaled, self._section.normalize_clip)

    def _space(self, space: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(space, spaces.Dict):
            parts = {key: self._space(one, (*path, key)) for key, one in space.spaces.items()}
            return spaces.Dict(parts)
        if isinstance(space, spaces.Tuple):
            return spaces.Tuple(
                tuple(self._space(one, (*path, key)) for key, one in enumerate(space.spaces))
            )
        if path not in self._moments:
            return space
        bound = self._section.normalize_clip or numpy.inf
        return spaces.Box(-bound, bound, space.shape, numpy.float32)


def _moments_of(rows: Any, present: Any = None) -> tuple[Any, Any, Any]:
    """Number, mean and variance of rows, (n, …), or of those parts (n, k, …) that are present."""
    if not len(rows):
        return 0, None, None
    if present is not None and not present.all():
        present = present[..., None]
        n = present.sum(0)
        some = numpy.maximum(n, 1)
        mean = numpy.where(present, rows, 0.0).sum(0, dtype=numpy.float64) / some
        away = numpy.where(present, rows - mean, 0.0)
        return n, mean, (away * away).sum(0) / some
    return len(rows), rows.mean(0, dtype=numpy.float64), rows.var(0, dtype=numpy.float64)


def _boxes(space: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], spaces.Box]]:
    """The Boxes in a space and their paths, without images."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _boxes(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _boxes(part, (*path, index))
    elif isinstance(space, spaces.Box) and space.dtype != numpy.uint8:
        yield path, space


def _present_arms(observations: Any, path: tuple[Any, ...], arms: Any) -> Any:
    """Which arms are there, (n, arms), if a bandit's mask tells; else None."""
    if not path or path[-1] != "arms":
        return None
    return present_arms(arms, _at(observations, path[:-1]).get(ACTION_MASK))


def _at(observations: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        observations = observations[key]
    return observations


def _clipped(values: Any, bound: float) -> Any:
    return numpy.minimum(numpy.maximum(values, -bound), bound) if bound else values
