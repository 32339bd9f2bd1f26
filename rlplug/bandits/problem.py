"""Bandit problems: their interface, and hidden parameters that may drift."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.config.strict import structure
from rlplug.errors import ConfigError

__all__ = [
    "DriftingParameters",
    "Floats",
    "Problem",
    "Rounds",
    "Source",
    "problem_from_options",
    "unit_rows",
]

Floats: TypeAlias = NDArray[numpy.float64]
ProblemT = TypeVar("ProblemT", bound="Problem")


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


def problem_from_options(kind: type[ProblemT], name: str, options: Mapping[str, Any]) -> ProblemT:
    """The problem with these options; everything wrong with them is one error."""
    problem, problems = structure(kind, options, "env")
    if problem is None:
        raise ConfigError(f"the options of {name}", problems)
    return problem


class DriftingParameters:
    """Parameter vectors of norm 1, the rows of a matrix, on a random walk over the sphere.

    They move `drift` per environment step, by a generator of their own: environments with the same
    problem seed have the same parameters at the same step.
    """

    def __init__(self, count: int, dim: int, *, drift: float, seed: int) -> None:
        self._random = numpy.random.default_rng(seed)
        self._scale = drift / math.sqrt(dim)
        self.rows = unit_rows(self._random.standard_normal((count, dim)))

    def products(self, inputs: Floats) -> Floats:
        """`inputs @ rows.T`, (steps, n, dim) to (steps, n, count); rows drift after each step."""
        steps, n, dim = inputs.shape
        if not self._scale:
            flat: Floats = inputs.reshape(steps * n, dim) @ self.rows.T
            return flat.reshape(steps, n, -1)
        products = numpy.empty((steps, n, len(self.rows)))
        for step, given in enumerate(inputs):
            numpy.matmul(given, self.rows.T, out=products[step])
            self._drift(n)
        return products

    def _drift(self, steps: int) -> None:
        # Variances of a random walk add up: n steps are one step √n times as long.
        noise = self._random.standard_normal(self.rows.shape)
        self.rows = unit_rows(self.rows + self._scale * math.sqrt(steps) * noise)


def unit_rows(vectors: Floats) -> Floats:
    """The vectors along the last axis, scaled to norm 1."""
    norms = numpy.sqrt(numpy.einsum("...i,...i->...", vectors, vectors))
    scaled: Floats = vectors / norms[..., None]
    return scaled
