"""Small environments of many spaces: to try whether a plugin works there, not how well."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import gymnasium
import numpy
from gymnasium import spaces

from rlplug.feeds import Stream

if TYPE_CHECKING:
    from rlplug.testing.subject import Subject

__all__ = ["CASES", "Case", "DrawnEnv", "refusals", "supported"]

AnySpace = gymnasium.Space[Any]


class DrawnEnv(gymnasium.Env[Any, Any]):
    """Observations drawn from a space, rewards between 0 and 1.

    Every second episode is terminated, the others are cut by a time limit; with `length` 1 all are
    terminated. `masked` forbids some actions in `info["action_mask"]`; choosing one raises.
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
        self._at = 0
        self._episodes = 0
        self._mask: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation of the next episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._at = 0
        self._episodes += 1
        return self._seen()

    def step(self, action: Any) -> Any:
        """A reward that depends on nothing, and the next observation."""
        if numpy.shape(action) != (self.action_space.shape or ()):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        if self._mask is not None and not self._mask[action]:
            raise ValueError(f"action {action} is masked: {self._mask.astype(int)}")
        self._at += 1
        ended = self._at == self._length
        terminated = ended and (self._length == 1 or self._episodes % 2 == 0)
        observation, info = self._seen()
        return observation, self.np_random.random(), terminated, ended and not terminated, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        observation, info = self.observation_space.sample(), {}
        if isinstance(observation, dict) and "action_mask" in observation:
            observation["action_mask"] = self._draw_mask()
        elif self._masked:
            info["action_mask"] = self._draw_mask()
        return observation, info

    def _draw_mask(self) -> Any:
        if not isinstance(self.action_space, spaces.Discrete):
            return None
        self._mask = self.np_random.random(int(self.action_space.n)) < 0.5
        self._mask[self.np_random.integers(len(self._mask))] = True
        return self._mask.astype(numpy.int8)


@attrs.frozen(kw_only=True)
class Case:
    """One environment to try a plugin in."""

    name: str
    make: Callable[[], gymnasium.Env[Any, Any]]
    one_step: bool = False
    masked: bool = False

    @property
    def observation_space(self) -> AnySpace:
        """Of one environment."""
        return self.make().observation_space

    @property
    def action_space(self) -> AnySpace:
        """Of one environment."""
        return self.make().action_space


def _box(*shape: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, shape, numpy.float32)


_ARMS = spaces.Dict(
    {
        "context": spaces.Box(-1.0, 1.0, (3,), numpy.float64),
        "arms": spaces.Box(-1.0, 1.0, (4, 2), numpy.float64),
        "action_mask": spaces.MultiBinary(4),
    }
)
_SPACES: dict[str, tuple[AnySpace, AnySpace]] = {
    "box, discrete": (_box(4), spaces.Discrete(3)),
    "box of another size, discrete": (_box(2), spaces.Discrete(2)),
    "box, box": (_box(4), spaces.Box(-2.0, 2.0, (2,), numpy.float32)),
    "box, multi-discrete": (_box(4), spaces.MultiDiscrete([2, 3])),
    "box, multi-binary": (_box(4), spaces.MultiBinary(2)),
    "discrete, discrete": (spaces.Discrete(5), spaces.Discrete(3)),
    "dict, discrete": (
        spaces.Dict({"place": spaces.Discrete(3), "speed": _box(2)}),
        spaces.Discrete(3),
    ),
    "dict with a mask, discrete": (
        spaces.Dict({"place": _box(3), "action_mask": spaces.MultiBinary(3)}),
        spaces.Discrete(3),
    ),
    "arms with features, discrete": (_ARMS, spaces.Discrete(4)),
    "image, discrete": (
        spaces.Box(0, 255, (3, 40, 40), numpy.uint8),
        spaces.Discrete(3),
    ),
}
_NO_INFO_MASK = ("dict with a mask, discrete", "arms with features, discrete")


def _cases(one_step: bool) -> Iterator[Case]:
    for name, (observed, acted) in _SPACES.items():
        length = 1 if one_step else 5
        own_mask = name in _NO_INFO_MASK
        make = partial(DrawnEnv, observed, acted, length=length)
        yield Case(name=name, make=make, one_step=one_step, masked=own_mask)
        if name == "box, discrete":
            make = partial(DrawnEnv, observed, acted, length=length, masked=True)
            yield Case(name="box, masked discrete", make=make, one_step=one_step, masked=True)


CASES = (*_cases(one_step=False), *_cases(one_step=True))
"""All of the kit's small environments, with long episodes and with episodes of one step."""


def supported(subject: Subject) -> Iterator[Case]:
    """Those in which an algorithm can be run, its own first; for an add-on those of its hosts."""
    if subject.environment is not None:
        yield Case(name="its own environment", make=subject.environment)
    plugin = subject.participant().plugin
    bandit = False
    if not subject.is_addon:
        feed = plugin.feed()
        bandit = isinstance(feed, Stream) and feed.one_step_episodes
    for case in CASES:
        if case.one_step != bandit:
            continue
        if subject.is_addon:
            if case.name.startswith("box") and isinstance(case.action_space, spaces.Discrete):
                yield case
        elif plugin.supports(case.observation_space, case.action_space) is None:
            yield case


def refusals(subject: Subject) -> Iterator[tuple[Case, str]]:
    """The cases that an algorithm refuses for their spaces, with its reasons."""
    plugin = subject.participant().plugin
    for case in CASES:
        if not case.one_step:
            reason = plugin.supports(case.observation_space, case.action_space)
            if reason is not None:
                yield case, reason
