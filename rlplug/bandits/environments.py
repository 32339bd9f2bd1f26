"""Bandit environments, single and vectorized: a problem is drawn ahead of time, and stepped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import attrs
import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlplug.config.strict import structure
from rlplug.errors import ConfigError, RequestError
from rlplug.seeding import derive

__all__ = [
    "BanditEnv",
    "BanditSimulator",
    "BanditVectorEnv",
    "Floats",
    "Problem",
    "Rounds",
    "Source",
]

Floats: TypeAlias = NDArray[numpy.float64]
ProblemT = TypeVar("ProblemT", bound="Problem")

_BLOCK = 2**15
"""Numbers to draw at once: few NumPy calls, and still within the CPU cache."""

_MAX_STEPS = 256


@attrs.frozen(kw_only=True, eq=False)
class Rounds:
    """Contexts and the rewards of all arms, drawn ahead: arrays of shape (steps, n, …)."""

    observations: Any
    """An array, or a mapping of arrays for a Dict space."""
    rewards: Floats
    """The reward of each arm, noise included, (steps, n, arms)."""
    expected: Floats
    """The same without noise."""
    best: Floats
    """The expected reward of the best arm that is present, (steps, n)."""
    present: NDArray[numpy.bool_] | None = None
    """Which arms are present, (steps, n, arms); None if all always are."""


class Source(Protocol):
    """Draws the rounds of a problem, and holds its hidden parameters."""

    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        """The next `steps` rounds of `n` contexts each."""


class Problem(Protocol):
    """The description of a bandit problem: a frozen attrs class of options."""

    @property
    def problem_seed(self) -> int | None:
        """Seed of the hidden parameters; None: the seed given to `reset`."""

    @property
    def num_arms(self) -> int:
        """The number of arms."""

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space of one context."""

    def start(self, seed: int) -> Source:
        """Start the problem, its hidden parameters drawn from this seed."""


class BanditSimulator:
    """Contexts and rewards of n environments, drawn many steps at a time.

    A step only reads at an index. Arrays that were returned are never written again.
    """

    def __init__(self, problem: Problem, name: str, n: int) -> None:
        self.problem, self._name, self._n = problem, name, n
        self._offsets = numpy.arange(n) * problem.num_arms
        width = spaces.flatdim(problem.observation_space) + 2 * problem.num_arms
        self._steps = min(max(_BLOCK // (n * width), 1), _MAX_STEPS)
        self._random = numpy.random.default_rng()
        self.source: Source | None = None
        """Draws the rounds, once it was reset."""
        self._rounds: Rounds | None = None
        self._at = 0
        self.problem_seed = 0

    def reset(self, random: numpy.random.Generator, seed: int | None) -> None:
        """Start the problem over; contexts and noise are drawn from `random`."""
        own = self.problem.problem_seed
        if own is None:
            own = int(random.integers(2**62)) if seed is None else derive(seed, "problem")
        self.problem_seed = own
        self.source, self._random, self._rounds = self.problem.start(own), random, None

    def next_contexts(self) -> Any:
        """Advance to the next n contexts and return their observations."""
        self._at += 1
        if self._rounds is None or self._at == self._steps:
            if self.source is None:
                raise self._not_reset()
            self._rounds = self.source.draw(self._random, self._steps, self._n)
            self._at = 0
        observations, at = self._rounds.observations, self._at
        if isinstance(observations, dict):
            return {name: part[at] for name, part in observations.items()}
        return observations[at]

    def pull(self, actions: Any) -> tuple[Floats, dict[str, NDArray[Any]]]:
        """The rewards of these arms in the current contexts, and infos with their regret."""
        rounds, at = self._rounds, self._at
        if rounds is None:
            raise self._not_reset()
        index = self._checked(actions) + self._offsets
        expected = rounds.expected[at].take(index)
        best = rounds.best[at]
        regret = best - expected
        infos = {"best_reward": best, "expected_reward": expected, "regret": regret}
        if rounds.present is not None:
            infos["absent_arm"] = ~rounds.present[at].take(index)
            # An absent arm earns 0: more than the best if all present arms lose.
            numpy.maximum(regret, 0.0, out=regret)
        return rounds.rewards[at].take(index), infos

    def _checked(self, actions: Any) -> NDArray[Any]:
        arms, num_arms = numpy.asarray(actions), self.problem.num_arms
        if arms.shape != (self._n,) or arms.dtype.kind not in "iu":
            raise RequestError(
                f"{self._name}: actions must be whole numbers of shape {(self._n,)}, "
                f"found {arms.dtype} of shape {arms.shape}."
            )
        arms = arms.astype(numpy.int64, copy=False)
        if self._n == 1 and 0 <= arms.item() < num_arms:
            return arms
        # Negative numbers are huge as unsigned ones: one comparison checks both bounds.
        fits = arms.view(numpy.uint64) < num_arms
        if not fits.all():
            row = int(fits.argmin())
            raise RequestError(
                f"{self._name}: action {arms[row]} in row {row} is no arm: "
                f"there are {num_arms}, counted from 0."
            )
        return arms

    def _not_reset(self) -> ResetNeeded:
        return ResetNeeded(f"{self._name}: call reset before step")


class _Bandits:
    """What both forms of an environment share."""

    kind: ClassVar[type[Any]]
    """The class of the problem."""

    np_random: numpy.random.Generator

    def _prepare(self, n: int, render_mode: str | None, options: Mapping[str, Any]) -> None:
        name = type(self).__name__
        if render_mode is not None:
            raise RequestError(
                f"{name} has nothing to draw: render_mode must be left out, got {render_mode!r}."
            )
        problem, problems = structure(self.kind, options, "env")
        if problem is None:
            raise ConfigError(f"the options of {name}", problems)
        self.problem: Problem = problem
        self._simulator = BanditSimulator(problem, name, n)

    @property
    def problem_seed(self) -> int:
        """As the option `problem_seed` it gives another environment the same hidden parameters."""
        return self._simulator.problem_seed


class BanditEnv(_Bandits, gymnasium.Env[Any, Any]):
    """A bandit with episodes of one step: `reset` returns a context, `step` the reward of an arm.

    `step` returns the same context again; `info` has `best_reward`, `expected_reward` and `regret`.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        self._prepare(1, render_mode, options)
        self.observation_space = self.problem.observation_space
        self.action_space = spaces.Discrete(self.problem.num_arms)
        self._seen: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the next context; a seed starts the problem over."""
        super().reset(seed=seed)
        simulator = self._simulator
        if seed is not None or simulator.source is None:
            simulator.reset(self.np_random, seed)
        seen = simulator.next_contexts()
        if isinstance(seen, dict):
            self._seen = {name: part[0] for name, part in seen.items()}
        else:
            self._seen = seen[0]
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Returns the reward of the arm; the episode terminates."""
        rewards, infos = self._simulator.pull(numpy.asarray(action).reshape(1))
        info = {name: values[0].item() for name, values in infos.items()}
        seen = self._seen
        if isinstance(seen, dict):
            seen = {name: part.copy() for name, part in seen.items()}
        else:
            seen = seen.copy()
        return seen, rewards[0].item(), True, False, info


class BanditVectorEnv(_Bandits, VectorEnv[Any, Any, NDArray[Any]]):
    """n bandits of one problem, their contexts drawn from one generator.

    Each step terminates all episodes and returns the next contexts. Infos have `best_reward`,
    `expected_reward` and `regret`, arrays of n, but no `final_obs`: nothing follows the only step.
    """

    metadata: dict[str, Any] = {
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": [],
    }

    def __init__(
        self, num_envs: int = 1, *, render_mode: str | None = None, **options: Any
    ) -> None:
        self._prepare(num_envs, render_mode, options)
        self.num_envs = num_envs
        self.single_observation_space = self.problem.observation_space
        self.single_action_space = spaces.Discrete(self.problem.num_arms)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._all = numpy.ones(num_envs, dtype=numpy.bool_)
        self._present: dict[str, Any] = {}
        """Which environments have the infos of a step: all."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the next n contexts; a seed starts the problem over."""
        super().reset(seed=seed)
        if seed is not None or self._simulator.source is None:
            self._simulator.reset(self.np_random, seed)
        return self._simulator.next_contexts(), {}

    def step(self, actions: Any) -> tuple[Any, Floats, NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Returns the next n contexts and the rewards of the arms."""
        rewards, infos = self._simulator.pull(actions)
        if len(self._present) < len(infos):
            self._present = {f"_{name}": self._all for name in infos}
        infos |= self._present
        truncated = numpy.zeros(self.num_envs, numpy.bool_)
        return self._simulator.next_contexts(), rewards, self._all.copy(), truncated, infos
