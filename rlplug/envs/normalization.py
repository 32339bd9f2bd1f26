"""Observations and rewards brought to a common scale by statistics of what was seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.batch.nested import to_arrays
from rlplug.config.sections import EnvSection
from rlplug.errors import RequestError
from rlplug.spaces import without_action_mask

__all__ = ["Moments", "Normalization"]

_TINY = 1e-8

_OBSERVED = ("observations", "next_observations", "final_observations")


class Moments:
    """Mean and variance of all rows absorbed so far; 0 and 1 before the first."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.mean = numpy.zeros(shape)
        self.variance = numpy.ones(shape)

    def absorb(self, rows: Any) -> None:
        """Take in rows, shape (n, …)."""
        n = len(rows)
        if n == 0:
            return
        mean = rows.mean(0, dtype=numpy.float64)
        variance = rows.var(0, dtype=numpy.float64)
        total = self.count + n
        away = mean - self.mean
        squares = self.variance * self.count + variance * n
        squares = squares + away**2 * (self.count * n / total)
        self.mean = self.mean + away * (n / total)
        self.variance = squares / total
        self.count = total


class Normalization:
    """Scales observations and rewards, and learns how from experience when it is told to.

    Between two calls of `absorb` nothing changes: what a policy acted on and what it learns from
    are the same numbers. Without `absorb` (evaluation, serving) it is frozen.
    """

    def __init__(
        self, section: EnvSection, observation_space: gymnasium.Space[Any], num_envs: int
    ) -> None:
        self._section = section
        self._moments: dict[tuple[Any, ...], Moments] = {}
        if section.normalize_observation:
            seen = without_action_mask(observation_space)
            self._moments = {path: Moments(box.shape) for path, box in _boxes(seen, ())}
            if not self._moments:
                raise RequestError(
                    f"env.normalize_observation: there are no numbers in {observation_space}.",
                    "try: --set env.normalize_observation=false",
                )
        self._returns = Moments(())
        self._running = numpy.zeros(num_envs)
        self._scales: dict[tuple[Any, ...], Any] = {}
        self._settle()

    @property
    def changes_observations(self) -> bool:
        """Whether `observations` does anything."""
        return bool(self._moments)

    def space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """The space of normalised observations."""
        normalised: gymnasium.Space[Any] = self._space(space, ())
        return normalised

    def observations(self, observations: Any) -> Any:
        """Observations of any leading shape on the common scale."""
        return self._scaled(observations, ()) if self._moments else observations

    def rewards(self, rewards: Any) -> Any:
        """Rewards divided by the spread of returns, and clipped, as the options say."""
        section = self._section
        if section.normalize_reward:
            rewards = rewards / numpy.sqrt(self._returns.variance + _TINY)
            rewards = _clipped(rewards, section.normalize_clip)
        return _clipped(rewards, section.reward_clip)

    def apply(self, columns: dict[str, Any]) -> None:
        """Replace the observations and rewards among the columns of a batch."""
        if self._moments:
            for name in _OBSERVED:
                if name in columns:
                    columns[name] = self.observations(to_arrays(columns[name]))
        columns["rewards"] = self.rewards(columns["rewards"])

    def absorb(self, observations: Any, rewards: Any, ended: Any, stepped: Any = None) -> None:
        """Take in experience as it was seen: rows of observations, the others by time.

        `stepped` is False, shape (steps, num_envs), where an environment only reset.
        """
        for path, moments in self._moments.items():
            moments.absorb(numpy.asarray(_at(observations, path)))
        if self._section.normalize_reward:
            self._returns.absorb(self._discounted(rewards, ended, stepped))
        self._settle()

    def get_state(self) -> dict[str, Any]:
        """The statistics."""
        every = [*self._moments.values(), self._returns]
        return {
            "moments": [[one.count, one.mean, one.variance] for one in every],
            "running": self._running.copy(),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Go on with these statistics; the returns of running episodes only if as many run."""
        every = [*self._moments.values(), self._returns]
        fits = [numpy.shape(mean) for _, mean, _ in saved["moments"]]
        if fits != [one.mean.shape for one in every]:
            raise RequestError(
                f"the saved statistics of observations have shapes {fits}, "
                f"here they are {[one.mean.shape for one in every]}.",
                "use the [env] options of the run that saved them",
            )
        for one, (count, mean, variance) in zip(every, saved["moments"], strict=True):
            one.count, one.mean, one.variance = count, numpy.array(mean), numpy.array(variance)
        if numpy.shape(saved["running"]) == self._running.shape:
            self._running = numpy.array(saved["running"])
        self._settle()

    def forget_episodes(self) -> None:
        """All environments were reset: returns begin at zero."""
        self._running[:] = 0.0

    def _discounted(self, rewards: Any, ended: Any, stepped: Any) -> NDArray[numpy.float64]:
        gamma = self._section.normalize_gamma
        running = self._running
        seen = numpy.empty(numpy.shape(rewards))
        going = ~numpy.asarray(ended)
        for time, earned in enumerate(rewards):
            running = running * gamma + earned
            seen[time] = running
            running = running * going[time]
        self._running = running
        return seen.reshape(-1) if stepped is None else seen[stepped]

    def _settle(self) -> None:
        """What every step needs, in the format of the networks."""
        self._scales = {
            path: (
                one.mean.astype(numpy.float32),
                (1.0 / numpy.sqrt(one.variance + _TINY)).astype(numpy.float32),
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


def _boxes(space: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], spaces.Box]]:
    """The parts of a space that hold numbers rather than pictures or choices."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _boxes(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _boxes(part, (*path, index))
    elif isinstance(space, spaces.Box) and space.dtype != numpy.uint8:
        yield path, space


def _at(observations: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        observations = observations[key]
    return observations


def _clipped(values: Any, bound: float) -> Any:
    return numpy.minimum(numpy.maximum(values, -bound), bound) if bound else values
