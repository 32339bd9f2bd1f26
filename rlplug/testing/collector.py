"""Collects batches with every column that a feed may give."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.episodes import Episode, batches_of
from rlplug.plugin import DEFAULT_MODULE, ActInput, Module
from rlplug.seeding import derive
from rlplug.testing.cases import Case

__all__ = ["Collector", "stack_observations", "stacked", "to_array"]


class Collector:
    """Steps several environments with a module; episodes continue from one batch to the next.

    Each batch has one fragment per environment and episode, and `next_observations`.
    """

    def __init__(self, case: Case, module: Module, *, seed: int, num_envs: int = 4) -> None:
        self._environments = [case.make() for _ in range(num_envs)]
        self._module = module
        self._random = numpy.random.default_rng(derive(seed, "acting"))
        first = self._environments[0]
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self._initial = _state_rows(module.initial_state(num_envs), num_envs)
        self._states = list(self._initial)
        resets = [
            one.reset(seed=derive(seed, "environment", index) % 2**31)
            for index, one in enumerate(self._environments)
        ]
        self._observations = [observation for observation, _ in resets]
        self._infos = [info for _, info in resets]
        self._fragments = [self._new_fragment(index) for index in range(num_envs)]
        self.timestep = 0
        self.rewards: list[float] = []
        """The reward of every step so far."""

    def collect(self, steps: int = 8, *, greedy: bool = False) -> Batch:
        """The next steps of all environments."""
        finished: list[Episode] = []
        for _ in range(steps):
            acted = self._act(greedy)
            actions = to_array(acted.actions)
            states = _state_rows(acted.state, len(actions))
            for index in range(len(self._environments)):
                self._states[index] = states[index]
                extras = {name: to_array(part)[index] for name, part in acted.extras.items()}
                self._step(index, actions[index], extras, finished)
            self.timestep += len(actions)
        for index, fragment in enumerate(self._fragments):
            if fragment["rewards"]:
                finished.append(_episode(fragment, self._observations[index]))
            self._fragments[index] = self._new_fragment(index)
        return batches_of(finished)[DEFAULT_MODULE]

    def copy_for(self, module: Module) -> Collector:
        """A copy in the same state that acts with another module."""
        return copy.deepcopy(self, {id(self._module): module})

    def _act(self, greedy: bool) -> Any:
        observations, mask = stack_observations(
            self.observation_space, self._observations, self._infos
        )
        state = None
        if self._states[0] is not None:
            state = {
                name: torch.stack([torch.as_tensor(row[name]) for row in self._states])
                for name in self._states[0]
            }
        act = ActInput(observations, mask, state, self.timestep, self._random)
        forward = self._module.forward_inference if greedy else self._module.forward_exploration
        return forward(act)

    def _step(self, index: int, action: Any, extras: Any, finished: list[Episode]) -> None:
        environment, fragment = self._environments[index], self._fragments[index]
        if isinstance(self.action_space, spaces.Discrete):
            action = int(action)
        fragment["observations"].append(self._observations[index])
        fragment["actions"].append(action)
        mask = self._infos[index].get("action_mask")
        fragment["extras"].append(extras if mask is None else {**extras, "action_mask": mask})
        observation, reward, terminated, truncated, info = environment.step(action)
        fragment["rewards"].append(float(reward))
        self.rewards.append(float(reward))
        if terminated or truncated:
            finished.append(_episode(fragment, observation, terminated, truncated))
            observation, info = environment.reset()
            self._states[index] = self._initial[index]
        self._observations[index], self._infos[index] = observation, info
        if terminated or truncated:
            self._fragments[index] = self._new_fragment(index)

    def _new_fragment(self, index: int) -> dict[str, Any]:
        columns: dict[str, Any] = {
            name: [] for name in ("observations", "actions", "rewards", "extras")
        }
        return {**columns, "state": self._states[index]}


def stack_observations(
    space: Any, observations: Sequence[Any], infos: Sequence[Mapping[str, Any]]
) -> Any:
    """The stacked observations and action masks of several environments."""
    empty: Any = create_empty_array(space, len(observations))
    stacked = concatenate(space, observations, empty)
    if isinstance(stacked, dict) and "action_mask" in stacked:
        return stacked, stacked["action_mask"]
    if "action_mask" not in infos[0]:
        return stacked, None
    return stacked, numpy.stack([info["action_mask"] for info in infos])


def to_array(value: Any) -> Any:
    """A tensor, array or sequence as a NumPy array."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else numpy.asarray(value)


def _state_rows(state: Any, n: int) -> list[Any]:
    if state is None:
        return [None] * n
    return [{name: part[index] for name, part in state.items()} for index in range(n)]


def _episode(
    fragment: Mapping[str, Any], final: Any, terminated: bool = False, truncated: bool = False
) -> Episode:
    rows = fragment["extras"]
    return Episode(
        observations=stacked(fragment["observations"]),
        final_observation=final,
        actions=numpy.stack(fragment["actions"]),
        rewards=numpy.array(fragment["rewards"], numpy.float32),
        terminated=bool(terminated),
        truncated=bool(truncated),
        extras={name: numpy.stack([row[name] for row in rows]) for name in rows[0]},
        state=fragment["state"],
    )


def stacked(parts: Sequence[Any]) -> Any:
    """Arrays, or mappings and tuples of arrays, along a new first axis."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: stacked([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked(column) for column in zip(*parts, strict=True))
    return numpy.stack(parts)
