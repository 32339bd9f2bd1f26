"""Small environments of many spaces, to check that a plugin works in them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import attrs
import gymnasium
import numpy
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from rlplug.batch.nested import to_tensors, tree_map
from rlplug.plugin import ActInput, Module

RUN_STEPS = 4_000
"""Environment steps of the run that feeds and modules are told of."""

AnySpace = gymnasium.Space[Any]


class RandomEnv(gymnasium.Env[Any, Any]):
    """Observations sampled from a space with finite bounds, rewards uniform in [0, 1).

    Episodes terminate and are truncated in turn; those of `length` 1 all terminate. `masked` puts a
    random action mask into `info["action_mask"]`; choosing a masked action raises.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        observation_space: AnySpace,
        action_space: AnySpace,
        *,
        length: int = 5,
        masked: bool = False,
    ) -> None:
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = copy.deepcopy(action_space)
        self._length = length
        self._masked = masked
        self._steps = 0
        self._episodes = 0
        self._mask: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        self._episodes += 1
        return self._observe()

    def step(self, action: Any) -> Any:
        """A random reward and observation."""
        if numpy.shape(action) != (self.action_space.shape or ()):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        if self._mask is not None and not self._mask[action]:
            raise ValueError(f"action {action} is masked: {self._mask.astype(int)}")
        self._steps += 1
        ended = self._steps == self._length
        terminated = ended and (self._length == 1 or self._episodes % 2 == 0)
        observation, info = self._observe()
        # Exact in float32, too: the learner of a closed form keeps float64.
        reward = float(numpy.float32(self.np_random.random()))
        return observation, reward, terminated, ended and not terminated, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        observation, info = self.observation_space.sample(), {}
        if isinstance(observation, dict) and "action_mask" in observation:
            observation["action_mask"] = self._sample_mask()
        elif self._masked:
            info["action_mask"] = self._sample_mask()
        return observation, info

    def _sample_mask(self) -> Any:
        if not isinstance(self.action_space, spaces.Discrete):
            return None
        self._mask = self.np_random.random(int(self.action_space.n)) < 0.5
        self._mask[self.np_random.integers(len(self._mask))] = True
        return self._mask.astype(numpy.int8)


@attrs.frozen(kw_only=True, eq=False, slots=False)
class Case:
    """An environment to check a plugin in."""

    name: str
    make: Callable[[], gymnasium.Env[Any, Any]]
    one_step: bool = False
    masked: bool = False

    @cached_property
    def observation_space(self) -> AnySpace:
        """The space of a single environment."""
        return self.make().observation_space

    @cached_property
    def action_space(self) -> AnySpace:
        """The space of a single environment."""
        return self.make().action_space


def stack(space: AnySpace, values: Any) -> Any:
    """Values of a space along a new first axis."""
    empty: Any = create_empty_array(space, len(values))
    return concatenate(space, values, empty)


def act_input(
    module: Module, case: Case, n: int, *, seed: int = 0, at: int = 100, copies: int = 1
) -> ActInput:
    """The first observations of n episodes, each so often, and a generator, all from a seed."""
    environment = case.make()
    starts = [environment.reset(seed=None if index else seed) for index in range(n)]
    observations, infos = zip(*starts, strict=True)
    seen = stack(case.observation_space, observations)
    mask = seen.get("action_mask") if isinstance(seen, dict) else None
    if mask is None and "action_mask" in infos[0]:
        mask = numpy.stack([info["action_mask"] for info in infos])
    seen = tree_map(lambda leaf: numpy.repeat(leaf, copies, axis=0), seen)
    mask = None if mask is None else numpy.repeat(mask, copies, axis=0)
    state, random = module.initial_state(n * copies), numpy.random.default_rng(seed)
    return ActInput(seen, mask, state, at, random, RUN_STEPS)


def in_torch(act: ActInput) -> ActInput:
    """The same on tensors, as environments of tensors give it."""
    return ActInput(
        to_tensors(act.observations),
        None if act.action_mask is None else torch.as_tensor(act.action_mask),
        None if act.state is None else tree_map(torch.as_tensor, act.state),
        act.timestep,
        torch.Generator().manual_seed(int(act.random.integers(2**31))),
        act.steps,
        act.wants_log_prob,
        in_torch=True,
    )


def _box(*shape: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, shape, numpy.float32)


_ARMS = spaces.Dict(
    {
        "context": spaces.Box(-1.0, 1.0, (3,), numpy.float64),
        "arms": spaces.Box(-1.0, 1.0, (4, 2), numpy.float64),
        "action_mask": spaces.MultiBinary(4),
    }
)
_PLACE = spaces.Dict({"location": spaces.Discrete(3), "speed": _box(2)})
_MASKED_PLACE = spaces.Dict({"location": _box(3), "action_mask": spaces.MultiBinary(3)})
_THREE = spaces.Discrete(3)
_SPACES: dict[str, tuple[AnySpace, AnySpace]] = {
    "box, discrete": (_box(4), _THREE),
    "box, masked discrete": (_box(4), _THREE),
    "box of another size, discrete": (_box(2), spaces.Discrete(2)),
    "box, box": (_box(4), spaces.Box(-2.0, 2.0, (2,), numpy.float32)),
    "box, box of one number": (_box(3), spaces.Box(-1.0, 3.0, (1,), numpy.float32)),
    "box, multi-discrete": (_box(4), spaces.MultiDiscrete([2, 3])),
    "box, multi-binary": (_box(4), spaces.MultiBinary(2)),
    "discrete, discrete": (spaces.Discrete(5), _THREE),
    "dict, discrete": (_PLACE, _THREE),
    "dict with a mask, discrete": (_MASKED_PLACE, _THREE),
    "arms with features, discrete": (_ARMS, spaces.Discrete(4)),
    "image, discrete": (spaces.Box(0, 255, (3, 40, 40), numpy.uint8), _THREE),
}
_BANDITS: dict[str, tuple[AnySpace, AnySpace]] = {
    "a single observation, discrete": (spaces.Discrete(1), _THREE),
    "a single observation, masked": (spaces.Discrete(1), _THREE),
}
"""Without a context."""


def _case(name: str, observations: AnySpace, actions: AnySpace, *, length: int) -> Case:
    masked = "mask" in name or name.startswith("arms")
    # A mask that is observed is no other one in infos.
    told = masked and not isinstance(observations, spaces.Dict)
    make = partial(RandomEnv, observations, actions, length=length, masked=told)
    return Case(name=name, make=make, one_step=length == 1, masked=masked)


CASES = (
    *(_case(name, *pair, length=5) for name, pair in _SPACES.items()),
    *(_case(name, *pair, length=1) for name, pair in {**_SPACES, **_BANDITS}.items()),
)
"""The kit's environments, with episodes of several steps and of one step."""
