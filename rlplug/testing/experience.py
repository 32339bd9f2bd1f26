"""Experience of a few environments as a batch with every column that a feed may give."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor

from rlplug.batch.episodes import Episode, batches_of
from rlplug.plugin import DEFAULT_MODULE, ActInput
from rlplug.seeding import derive

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.plugin import Module
    from rlplug.testing.cases import Case

__all__ = ["Player", "as_arrays", "see"]


class Player:
    """Acts with a module in some environments; episodes go on from one batch to the next.

    Each batch holds whole pieces of episodes, one fragment each, beside `next_observations`.
    """

    def __init__(self, case: Case, module: Module, *, seed: int, num_envs: int = 4) -> None:
        self._environments = [case.make() for _ in range(num_envs)]
        self._module = module
        self._random = numpy.random.default_rng(derive(seed, "acting"))
        first = self._environments[0]
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self._initial = _rows_of_state(module.initial_state(num_envs), num_envs)
        self._states = list(self._initial)
        seen = [
            one.reset(seed=derive(seed, "environment", index) % 2**31)
            for index, one in enumerate(self._environments)
        ]
        self._observations = [observation for observation, _ in seen]
        self._infos = [info for _, info in seen]
        self._pieces = [self._new_piece(index) for index in range(num_envs)]
        self.timestep = 0
        self.rewards: list[float] = []
        """What every step so far earned."""

    def batch(self, steps: int = 8, *, greedy: bool = False) -> Batch:
        """What the next steps of all environments bring."""
        finished: list[Episode] = []
        for _ in range(steps):
            acted = self._act(greedy)
            actions = as_arrays(acted.actions)
            states = _rows_of_state(acted.state, len(actions))
            for index in range(len(self._environments)):
                self._states[index] = states[index]
                extras = {name: as_arrays(part)[index] for name, part in acted.extras.items()}
                self._step(index, actions[index], extras, finished)
            self.timestep += len(actions)
        for index, piece in enumerate(self._pieces):
            if piece["rewards"]:
                finished.append(_closed(piece, self._observations[index]))
            self._pieces[index] = self._new_piece(index)
        return batches_of(finished)[DEFAULT_MODULE]

    def twin(self, module: Module) -> Player:
        """A player in the same place that acts with another module."""
        return copy.deepcopy(self, {id(self._module): module})

    def _act(self, greedy: bool) -> Any:
        observations, mask = see(self.observation_space, self._observations, self._infos)
        state = None
        if self._states[0] is not None:
            state = {
                name: torch.stack([torch.as_tensor(row[name]) for row in self._states])
                for name in self._states[0]
            }
        act = ActInput(observations, mask, state, self.timestep, self._random)
        act_with = self._module.forward_inference if greedy else self._module.forward_exploration
        return act_with(act)

    def _step(self, index: int, action: Any, extras: Any, finished: list[Episode]) -> None:
        environment, piece = self._environments[index], self._pieces[index]
        if isinstance(self.action_space, spaces.Discrete):
            action = int(action)
        piece["observations"].append(self._observations[index])
        piece["actions"].append(action)
        mask = self._infos[index].get("action_mask")
        piece["extras"].append(extras if mask is None else {**extras, "action_mask": mask})
        observation, reward, terminated, truncated, info = environment.step(action)
        piece["rewards"].append(float(reward))
        self.rewards.append(float(reward))
        if terminated or truncated:
            finished.append(_closed(piece, observation, terminated, truncated))
            observation, info = environment.reset()
            self._states[index] = self._initial[index]
        self._observations[index], self._infos[index] = observation, info
        if terminated or truncated:
            self._pieces[index] = self._new_piece(index)

    def _new_piece(self, index: int) -> dict[str, Any]:
        columns: dict[str, Any] = {
            name: [] for name in ("observations", "actions", "rewards", "extras")
        }
        return {**columns, "state": self._states[index]}


def see(space: Any, observations: Sequence[Any], infos: Sequence[Mapping[str, Any]]) -> Any:
    """The observations of several environments, stacked, and their action masks."""
    empty: Any = create_empty_array(space, len(observations))
    stacked = concatenate(space, observations, empty)
    if isinstance(stacked, dict) and "action_mask" in stacked:
        return stacked, stacked["action_mask"]
    if "action_mask" not in infos[0]:
        return stacked, None
    return stacked, numpy.stack([info["action_mask"] for info in infos])


def as_arrays(value: Any) -> Any:
    """Tensors as NumPy."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else numpy.asarray(value)


def _rows_of_state(state: Any, n: int) -> list[Any]:
    if state is None:
        return [None] * n
    return [{name: part[index] for name, part in state.items()} for index in range(n)]


def _closed(
    piece: Mapping[str, Any], final: Any, terminated: bool = False, truncated: bool = False
) -> Episode:
    rows = piece["extras"]
    return Episode(
        observations=_stacked(piece["observations"]),
        final_observation=final,
        actions=numpy.stack(piece["actions"]),
        rewards=numpy.array(piece["rewards"], numpy.float32),
        terminated=bool(terminated),
        truncated=bool(truncated),
        extras={name: numpy.stack([row[name] for row in rows]) for name in rows[0]},
        state=piece["state"],
    )


def _stacked(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _stacked([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stacked(column) for column in zip(*parts, strict=True))
    return numpy.stack(parts)
