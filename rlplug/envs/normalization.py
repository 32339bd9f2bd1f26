"""Running normalisation of observations and rewards, in NumPy or in torch on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.batch.nested import first_leaf, to_arrays
from rlplug.config.sections import EnvSection
from rlplug.errors import RequestError
from rlplug.spaces import ACTION_MASK, present_arms, without_action_mask

__all__ = ["EPSILON", "Normalization", "RunningMoments"]

EPSILON = 1e-8
"""Added to variances."""

Gather: TypeAlias = Callable[[Any], Sequence[Any]]
"""Takes what one learner has, and returns what all of a run have, in their order."""

Path: TypeAlias = tuple[Any, ...]


class RunningMoments:
    """Running mean and variance of rows, arrays or tensors; 0 and 1 before the first row."""

    def __init__(self, shape: tuple[int, ...], device: torch.device | None = None) -> None:
        self.device = device
        """Where they are tensors; None: they are arrays."""
        self.put(0, numpy.zeros(shape), numpy.ones(shape))

    def put(self, *arrays: Any) -> None:
        """Go on with a count, a mean and a variance; the count may differ from part to part."""
        self.count, self.mean, self.variance = (_stored(array, self.device) for array in arrays)

    def arrays(self) -> list[Any]:
        """Count, mean and variance as arrays; this waits for the device."""
        return [_stored(to_arrays(part), None) for part in (self.count, self.mean, self.variance)]

    def absorb(self, rows: Any, gather: Gather | None = None, present: Any = None) -> None:
        """Add rows (n, …), or those (n,) or parts of them (n, k) that are `present`.

        With `gather`, those of all learners.
        """
        own = _moments_of(rows, present)
        for count, mean, variance in [own] if gather is None else gather(own):
            if mean is not None:
                self._add(count, mean, variance)

    def _add(self, count: Any, mean: Any, variance: Any) -> None:
        total = self.count + count
        some = total.clip(1)
        away = mean - self.mean
        squares = self.variance * self.count + variance * count
        squares = squares + away**2 * (self.count * count / some)
        self.mean = self.mean + away * (count / some)
        # Of what never came, it stays as it was.
        self.variance = _library(mean).where(total > 0, squares / some, self.variance)
        self.count = total


class Normalization:
    """Normalises observations by their mean and variance, rewards by the variance of returns.

    Statistics change only in `absorb`, so that a policy learns from the same numbers as it acted
    on. Evaluation and serving do not call it. With a `device` the statistics are tensors there,
    and tensors are absorbed; arrays, as evaluations have them, are scaled by a copy.
    """

    observed = ("observations", "next_observations", "final_observations")
    """The columns of batches that are normalised as observations."""

    def __init__(
        self,
        section: EnvSection,
        observation_space: gymnasium.Space[Any],
        num_envs: int,
        device: torch.device | None = None,
    ) -> None:
        self._section, self._num_envs, self._device = section, num_envs, device
        self._running: Any
        self._scales: dict[Path, tuple[Any, Any]]
        """Mean and factor of each normalised part of observations, in float32."""
        self._array_scales: Any = None
        self._observation_space = observation_space
        self._moments: dict[Path, RunningMoments] = {}
        if section.normalize_observation:
            for path, box in _boxes(without_action_mask(observation_space), ()):
                self._moments[path] = RunningMoments(box.shape, device)
            if not self._moments:
                raise RequestError(
                    f"env.normalize_observation: there are no numbers in {observation_space}.",
                    "try: --set env.normalize_observation=false",
                )
        self._returns = RunningMoments((), device)
        self.gather: Gather | None = None
        """Where several learners of a run share the statistics."""
        self.forget_episodes()
        self._update_scales()

    def of_arrays(self) -> Normalization:
        """The same options for arrays, without statistics."""
        return Normalization(self._section, self._observation_space, self._num_envs)

    @property
    def changes_observations(self) -> bool:
        """Whether observations are normalised."""
        return bool(self._moments)

    @property
    def scales(self) -> Any:
        """Mean and factor of each normalised part of observations, by its path, as arrays."""
        if self._array_scales is None:
            self._array_scales = to_arrays(self._scales)
        return self._array_scales

    @property
    def clip(self) -> float:
        """The bound of normalised observations; 0: none."""
        return self._section.normalize_clip

    def space(self, space: gymnasium.Space[Any], path: Path = ()) -> gymnasium.Space[Any]:
        """The space of normalised observations."""
        parts = {key: self.space(part, (*path, key)) for key, part in _parts(space)}
        if parts:
            nested = isinstance(space, spaces.Dict)
            return spaces.Dict(parts) if nested else spaces.Tuple(tuple(parts.values()))
        if path not in self._moments:
            return space
        bound = self.clip or numpy.inf
        return spaces.Box(-bound, bound, space.shape, numpy.float32)

    def observations(self, observations: Any) -> Any:
        """Normalised observations, of any leading shape."""
        if not self._moments:
            return observations
        on_device = isinstance(first_leaf(observations), Tensor)
        return self._scaled(observations, (), self._scales if on_device else self.scales)

    def rewards(self, rewards: Any) -> Any:
        """Rewards divided by the standard deviation of returns, and clipped."""
        section = self._section
        if section.normalize_reward:
            variance = self._returns.variance
            if isinstance(rewards, Tensor):
                rewards = (rewards / (variance + EPSILON).sqrt()).to(rewards.dtype)
            else:
                rewards = rewards / numpy.sqrt(float(variance) + EPSILON)
            rewards = _clipped(rewards, section.normalize_clip)
        return _clipped(rewards, section.reward_clip)

    def apply(self, columns: dict[str, Any]) -> None:
        """Normalise the columns of a batch in place."""
        for name in self._moments and self.observed:
            if name in columns:
                column = columns[name]
                column = to_arrays(column) if self._device is None else column
                columns[name] = self.observations(column)
        columns["rewards"] = self.rewards(columns["rewards"])

    def absorb(self, observations: Any, rewards: Any, ended: Any, stepped: Any = None) -> None:
        """Update the statistics by columns of shape (steps, num_envs, …); observations that are
        arrays come as rows.

        `stepped` is False where an environment only reset; observations that are arrays lack these.
        """
        weights = None if stepped is None else stepped.reshape(-1)
        for path, moments in self._moments.items():
            rows = _at(observations, path)
            if isinstance(rows, Tensor):
                moments.absorb(rows.flatten(0, 1), self.gather, weights)
            else:
                moments.absorb(rows, self.gather, _present_arms(observations, path, rows))
        if self._section.normalize_reward:
            returns = self._discounted(rewards, ended, stepped)
            if weights is not None and not isinstance(returns, Tensor):
                returns, weights = returns[stepped], None
            self._returns.absorb(returns.reshape(-1), self.gather, weights)
        self._update_scales()

    def absorb_nothing(self) -> None:
        """Take part in an update of the statistics to which only other learners bring rows."""
        if self.gather is not None:
            returns = [self._returns] if self._section.normalize_reward else []
            for moments in (*self._moments.values(), *returns):
                moments.absorb(numpy.empty((0, *moments.mean.shape)), self.gather)
            self._update_scales()

    def get_state(self) -> dict[str, Any]:
        """The statistics."""
        return {
            "moments": [moments.arrays() for moments in self._all()],
            "running": _stored(to_arrays(self._running), None),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state; running returns only for the same number of environments."""
        here = [tuple(moments.mean.shape) for moments in self._all() for _ in range(2)]
        there = [numpy.shape(part) for _, *parts in saved["moments"] for part in parts]
        if there != here:
            raise RequestError(
                f"the saved statistics of observations have shapes {there}, here {here}.",
                "use the [env] options of the run that saved them",
            )
        for moments, arrays in zip(self._all(), saved["moments"], strict=True):
            moments.put(*arrays)
        if numpy.shape(saved["running"]) == self._running.shape:
            self._running = _stored(saved["running"], self._device)
        self._update_scales()

    def forget_episodes(self) -> None:
        """Reset the running returns, after all environments were reset."""
        self._running = _stored(numpy.zeros(self._num_envs), self._device)

    def _all(self) -> list[RunningMoments]:
        return [*self._moments.values(), self._returns]

    def _discounted(self, rewards: Any, ended: Any, stepped: Any) -> Any:
        """The discounted sum of rewards since the start of the episode, at each step."""
        gamma, running, where = self._section.normalize_gamma, self._running, _library(ended).where
        returns = []
        for time, earned in enumerate(rewards):
            later = running * gamma + earned
            running = later if stepped is None else where(stepped[time], later, running)
            returns.append(running)
            running = running * ~ended[time]
        self._running = running
        return _library(ended).stack(returns)

    def _update_scales(self) -> None:
        """Compute what every step uses."""
        self._scales, self._array_scales = {}, None
        for path, moments in self._moments.items():
            mean, variance = moments.mean, moments.variance + EPSILON
            if isinstance(mean, Tensor):
                self._scales[path] = mean.float(), torch.rsqrt(variance).float()
            else:
                factor = (1.0 / numpy.sqrt(variance)).astype(numpy.float32)
                self._scales[path] = mean.astype(numpy.float32), factor

    def _scaled(self, part: Any, path: Path, scales: Mapping[Path, tuple[Any, Any]]) -> Any:
        if isinstance(part, Mapping):
            return {key: self._scaled(own, (*path, key), scales) for key, own in part.items()}
        if isinstance(part, tuple):
            return tuple(self._scaled(own, (*path, key), scales) for key, own in enumerate(part))
        if path not in scales:
            return part
        mean, factor = scales[path]
        if isinstance(part, Tensor):
            return _clipped(((part - mean) * factor).float(), self.clip)
        scaled = numpy.subtract(part, mean, dtype=numpy.float32)
        scaled *= factor
        return _clipped(scaled, self.clip)


def _moments_of(rows: Any, present: Any) -> tuple[Any, Any, Any]:
    """Number, mean and variance of rows (n, …), or of those parts that are present."""
    if not len(rows):
        return 0, None, None
    rows = _double(rows)
    if present is None or (not isinstance(present, Tensor) and present.all()):
        mean = rows.mean(0)
        return len(rows), mean, ((rows - mean) ** 2).mean(0)
    present = present.reshape(*present.shape, *(1,) * (rows.ndim - present.ndim))
    count, where = _double(present.sum(0)), _library(rows).where
    mean = where(present, rows, 0.0).sum(0) / count.clip(1)
    return count, mean, where(present, (rows - mean) ** 2, 0.0).sum(0) / count.clip(1)


def _library(values: Any) -> Any:
    """NumPy or torch, whichever the values are of."""
    return torch if isinstance(values, Tensor) else numpy


def _double(values: Any) -> Any:
    return values.double() if isinstance(values, Tensor) else numpy.asarray(values, float)


def _stored(values: Any, device: torch.device | None) -> Any:
    """A copy in double precision, as an array or as a tensor on the device."""
    array = numpy.array(values, float)
    return array if device is None else torch.as_tensor(array, device=device)


def _parts(space: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and spaces of the parts of a Dict or a Tuple; others have none."""
    if isinstance(space, spaces.Dict):
        return space.spaces.items()
    return enumerate(space.spaces) if isinstance(space, spaces.Tuple) else ()


def _boxes(space: Any, path: Path) -> Iterator[tuple[Path, spaces.Box]]:
    """The Boxes in a space and their paths, without images."""
    for key, part in _parts(space):
        yield from _boxes(part, (*path, key))
    if isinstance(space, spaces.Box) and space.dtype != numpy.uint8:
        yield path, space


def _present_arms(observations: Any, path: Path, arms: Any) -> Any:
    """Which arms are there, (n, arms), if a bandit's mask tells; else None."""
    if not path or path[-1] != "arms":
        return None
    return present_arms(arms, _at(observations, path[:-1]).get(ACTION_MASK))


def _at(observations: Any, path: Path) -> Any:
    for key in path:
        observations = observations[key]
    return observations


def _clipped(values: Any, bound: float) -> Any:
    return values.clip(-bound, bound) if bound else values
