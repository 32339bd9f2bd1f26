"""What a bandit problem is: contexts, and what each arm would pay in each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.config.strict import structure
from rlplug.errors import ConfigError

__all__ = ["Floats", "Problem", "Rounds", "Source", "described"]

Floats: TypeAlias = NDArray[numpy.float64]
ProblemT = TypeVar("ProblemT", bound="Problem")


@attrs.frozen(kw_only=True, eq=False)
class Rounds:
    """Contexts drawn ahead, and what each arm would pay: arrays that begin (steps, n, …)."""

    observations: Any
    """An array, or a mapping of arrays for a Dict space."""
    rewards: Floats
    """What each arm pays if it is chosen, noise included, (steps, n, arms)."""
    expected: Floats
    """The same without noise."""
    best: Floats
    """The expected reward of the best arm that is present, (steps, n)."""
    present: NDArray[numpy.bool_] | None = None
    """Which arms are present, (steps, n, arms); None if all always are."""


class Source(Protocol):
    """A problem under way, with its hidden parameters."""

    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        """The next `steps` rounds of `n` contexts each."""


class Problem(Protocol):
    """The description of a bandit problem: a frozen attrs class of options."""

    @property
    def problem_seed(self) -> int | None:
        """What the hidden parameters grow from; None: from the seed given to `reset`."""

    @property
    def num_arms(self) -> int:
        """How many arms an action chooses from."""

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space of one context."""

    def start(self, seed: int) -> Source:
        """The problem from its beginning, its hidden parameters drawn from this seed."""


def described(kind: type[ProblemT], name: str, options: Mapping[str, Any]) -> ProblemT:
    """The problem that these options describe; all that is wrong with them is one error."""
    problem, problems = structure(kind, options, "env")
    if problem is None:
        raise ConfigError(f"the options of {name}", problems)
    return problem
