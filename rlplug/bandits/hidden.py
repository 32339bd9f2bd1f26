"""Hidden parameters of a bandit problem, which may drift."""

from __future__ import annotations

import math

import numpy

from rlplug.bandits.problem import Floats

__all__ = ["Hidden", "unit_rows"]


class Hidden:
    """Parameter vectors of norm 1, the rows of a matrix, that wander over the sphere.

    They move `drift` per step, whatever the number of environments, and by a generator of their
    own: environments of one problem seed see the same parameters at the same step.
    """

    def __init__(self, count: int, dim: int, *, drift: float, seed: int) -> None:
        self._random = numpy.random.default_rng(seed)
        self._scale = drift / math.sqrt(dim)
        self.rows = unit_rows(self._random.standard_normal((count, dim)))

    def products(self, inputs: Floats) -> Floats:
        """`inputs @ rows.T`, (steps, n, dim) to (steps, n, count); rows move after each step."""
        steps, n, dim = inputs.shape
        if not self._scale:
            flat: Floats = inputs.reshape(steps * n, dim) @ self.rows.T
            return flat.reshape(steps, n, -1)
        products = numpy.empty((steps, n, len(self.rows)))
        for step, given in enumerate(inputs):
            numpy.matmul(given, self.rows.T, out=products[step])
            self._move(n)
        return products

    def _move(self, steps: int) -> None:
        # The variances of a random walk add up, so n steps at once are one that is √n longer.
        wander = self._random.standard_normal(self.rows.shape)
        self.rows = unit_rows(self.rows + self._scale * math.sqrt(steps) * wander)


def unit_rows(vectors: Floats) -> Floats:
    """The vectors along the last axis, scaled to norm 1."""
    norms = numpy.sqrt(numpy.einsum("...i,...i->...", vectors, vectors))
    scaled: Floats = vectors / norms[..., None]
    return scaled
