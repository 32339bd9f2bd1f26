"""Collects batches as a run does: steps of environments, handed to the plugin's own feed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import gymnasium
import numpy
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import first_leaf, to_arrays, tree_map
from rlplug.feeds import Experience, Feed, FeedSetting, FinalObservations, Stream, Work
from rlplug.plugin import Acted, ActInput, Module
from rlplug.seeding import derive
from rlplug.testing.cases import Case

__all__ = [
    "RUN_STEPS",
    "Collector",
    "RandomActions",
    "first_observations",
    "stack_observations",
    "stacked",
    "to_array",
]

RUN_STEPS = 4_000
"""Environment steps of the run that feeds and modules are told of."""
_PATIENCE = 200
"""Collections without a batch after which a feed counts as one that gives none."""


class RandomActions(Module):
    """Draws actions of a space: those of several agents at once, which no module gives."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self._space = space

    def forward_exploration(self, act: ActInput) -> Acted:
        """One for each observation."""
        rows = len(first_leaf(act.observations))
        self._space.seed(int(act.random.integers(2**31)))
        return Acted(numpy.stack([self._space.sample() for _ in range(rows)]))


class Collector:
    """Steps several environments with a module; episodes continue from one batch to the next."""

    def __init__(
        self,
        case: Case,
        module: Module,
        *,
        seed: int,
        num_envs: int = 4,
        feed: Feed | None = None,
        double: bool = False,
    ) -> None:
        self._environments = [case.make() for _ in range(num_envs)]
        self._module = module
        self._random = numpy.random.default_rng(derive(seed, "acting"))
        first = self._environments[0]
        self.observation_space, self.action_space = first.observation_space, first.action_space
        initial = module.initial_state(1)
        self._initial = None if initial is None else to_arrays(initial)
        setting = FeedSetting(
            observation_space=self.observation_space,
            action_space=self.action_space,
            num_envs=num_envs,
            steps=RUN_STEPS,
            seed=seed,
            double=double,
            has_memory=initial is not None,
        )
        self.feed = (feed or Stream()).open(setting)
        self._state = _repeated(self._initial, num_envs)
        resets = [
            one.reset(seed=derive(seed, "environment", index) % 2**31)
            for index, one in enumerate(self._environments)
        ]
        self._observations = [observation for observation, _ in resets]
        self._infos = [info for _, info in resets]
        self.timestep = 0
        self.rewards: list[float] = []
        """The reward of every step so far."""

    def collect(self, steps: int = 8, *, greedy: bool = False) -> Batch:
        """The first batch that the feed makes of the next steps of all environments."""
        return self.work(steps, greedy=greedy).batch

    def work(self, steps: int = 8, *, greedy: bool = False) -> Work:
        """The first update that the feed asks for, after as many collections as it takes."""
        for _ in range(_PATIENCE):
            experience = self._step_all(steps, greedy)
            for work in self.feed.take(experience, self.timestep):
                return work
        raise RuntimeError(f"the feed gave no batch in {self.timestep:,} steps")

    def act_with(self, module: Module) -> None:
        """Act with another module from now on."""
        self._module = module

    def copy_for(self, module: Module) -> Collector:
        """A copy in the same state that acts with another module."""
        return copy.deepcopy(self, {id(self._module): module})

    def _step_all(self, steps: int, greedy: bool) -> Experience:
        rows: list[dict[str, Any]] = []
        finals: list[tuple[int, Any, Any]] = []
        states: list[Any] = []
        interval = self.feed.state_interval or steps
        count = len(self._environments)
        for time in range(steps):
            if self._state is not None and time % interval == 0:
                states.append(copy.deepcopy(self._state))
            observations, mask = self._current()
            acted = self._act(observations, mask, greedy)
            if self._state is not None:
                self._state = to_arrays(acted.state)
            actions = to_array(acted.actions)
            row: dict[str, Any] = {"observations": observations, "actions": actions}
            if mask is not None:
                row["action_mask"] = numpy.asarray(mask)
            row.update((name, to_array(part)) for name, part in acted.extras.items())
            row.update(self._step(time * count, actions, finals))
            rows.append(row)
            self.timestep += count
        following, mask = self._current()
        after = {"observations": following}
        if mask is not None:
            after["action_mask"] = mask
        by_environment = self.feed.by_environment
        return Experience(
            {name: _grid([row[name] for row in rows], by_environment) for name in rows[0]},
            steps=steps,
            num_envs=count,
            by_environment=by_environment,
            following=after,
            finals=self._finals(finals),
            states=states,
            initial_state=self._initial,
        )

    def _current(self) -> Any:
        return stack_observations(self.observation_space, self._observations, self._infos)

    def _act(self, observations: Any, mask: Any, greedy: bool) -> Any:
        state = None
        if self._state is not None:
            state = tree_map(torch.as_tensor, self._state)
        act = ActInput(observations, mask, state, self.timestep, self._random, RUN_STEPS)
        forward = self._module.forward_inference if greedy else self._module.forward_exploration
        return forward(act)

    def _step(
        self, first_row: int, actions: Any, finals: list[tuple[int, Any, Any]]
    ) -> dict[str, Any]:
        """Step every environment; those whose episode ended are reset."""
        count = len(self._environments)
        rewards = numpy.zeros(count, numpy.float32)
        terminated, truncated = numpy.zeros(count, bool), numpy.zeros(count, bool)
        for index, environment in enumerate(self._environments):
            action = actions[index]
            if isinstance(self.action_space, spaces.Discrete):
                action = int(action)
            elif (
                isinstance(self.action_space, spaces.Box)
                and numpy.shape(action) == self.action_space.shape
            ):
                # As in a run: what a plugin stores may lie beyond the bounds.
                action = numpy.clip(action, self.action_space.low, self.action_space.high)
            observation, reward, terminated[index], truncated[index], info = environment.step(
                action
            )
            rewards[index] = reward
            self.rewards.append(float(reward))
            if terminated[index] or truncated[index]:
                finals.append((first_row + index, observation, info))
                observation, info = environment.reset()
                if self._state is not None:
                    self._restart(index)
            self._observations[index], self._infos[index] = observation, info
        return {"rewards": rewards, "terminated": terminated, "truncated": truncated}

    def _restart(self, index: int) -> None:
        def put(leaf: Any, first: Any) -> Any:
            leaf = numpy.array(leaf)
            leaf[index] = first[0]
            return leaf

        self._state = tree_map(put, self._state, self._initial)

    def _finals(self, finals: Sequence[tuple[int, Any, Any]]) -> FinalObservations | None:
        if not finals:
            return None
        rows, observations, infos = zip(*finals, strict=True)
        stack, mask = stack_observations(self.observation_space, observations, infos)
        columns = {"observations": stack}
        if mask is not None:
            columns["action_mask"] = mask
        return FinalObservations(numpy.array(rows, numpy.int64), columns)


def stack_observations(
    space: Any, observations: Sequence[Any], infos: Sequence[Mapping[str, Any]]
) -> Any:
    """The stacked observations and action masks of several environments."""
    empty: Any = create_empty_array(space, len(observations))
    together = concatenate(space, observations, empty)
    if isinstance(together, dict) and "action_mask" in together:
        return together, together["action_mask"]
    if "action_mask" not in infos[0]:
        return together, None
    return together, numpy.stack([info["action_mask"] for info in infos])


def first_observations(case: Case, n: int, seed: int = 0) -> Any:
    """The stacked observations and action masks at the start of n episodes, always the same."""
    return copy.deepcopy(_first_observations(case, n, seed))


@lru_cache(maxsize=256)
def _first_observations(case: Case, n: int, seed: int) -> Any:
    environment = case.make()
    resets = [environment.reset(seed=1000 * seed + index) for index in range(n)]
    observations, infos = zip(*resets, strict=True)
    return stack_observations(case.observation_space, observations, infos)


def to_array(value: Any) -> Any:
    """A tensor, array or sequence as a NumPy array."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else numpy.asarray(value)


def stacked(parts: Sequence[Any]) -> Any:
    """Arrays, or mappings and tuples of arrays, along a new first axis."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: stacked([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked(column) for column in zip(*parts, strict=True))
    return numpy.stack(parts)


def _grid(parts: Sequence[Any], by_environment: bool) -> Any:
    """Columns of single steps as one column, its rows ordered by time or by environment."""

    def flat(leaf: Any) -> Any:
        ordered = leaf.swapaxes(0, 1) if by_environment else leaf
        return numpy.ascontiguousarray(ordered).reshape(-1, *leaf.shape[2:])

    return tree_map(flat, stacked(parts))


def _repeated(state: Any, n: int) -> Any:
    if state is None:
        return None
    return tree_map(lambda leaf: numpy.repeat(leaf, n, axis=0), state)
