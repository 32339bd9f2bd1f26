"""What regressions know, in the symbols of Li et al. (2010), as arrays that cannot be written."""

from __future__ import annotations

from typing import NamedTuple

import numpy

from rlplug_linucb.arrays import Array

__all__ = ["Estimates", "HasEstimates", "read_only"]


class Estimates(NamedTuple):
    """The sums and the solution of ridge regressions on d features, for each arm or for all."""

    A: Array
    """Σ w x xᵀ without the penalty, (arms, d, d)."""
    b: Array
    """Σ w r x, (arms, d)."""
    A_inv: Array
    """(A + λI)⁻¹, or D-LinUCB's matrix with `squared_discount`, (arms, d, d)."""
    theta: Array
    """Coefficients, (arms, d)."""


class HasEstimates:
    """The estimates as attributes. A joint model has no axis of arms: (d, d) and (d,).

    They are copies of the moment, and cannot be set or written.
    """

    def estimates(self) -> Estimates:
        """All of them at once."""
        raise TypeError(f"{type(self).__name__} must define estimates")

    @property
    def A(self) -> Array:  # noqa: N802 # the paper's name
        """Σ w x xᵀ of each arm, without the penalty."""
        return self.estimates().A

    @property
    def b(self) -> Array:
        """Σ w r x of each arm."""
        return self.estimates().b

    @property
    def A_inv(self) -> Array:  # noqa: N802 # the paper's name
        """(A + λI)⁻¹ of each arm."""
        return self.estimates().A_inv

    @property
    def theta(self) -> Array:
        """The coefficients of each arm's regression."""
        return self.estimates().theta


def read_only(array: Array) -> Array:
    """A copy; one in NumPy cannot be written."""
    if not isinstance(array, numpy.ndarray):
        return array.clone()
    copied = array.copy()
    copied.setflags(write=False)
    return copied
