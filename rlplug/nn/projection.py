"""Distributions of returns on fixed atoms: moved, then put back on the atoms."""

from __future__ import annotations

from torch import Tensor

__all__ = ["project"]


def project(probabilities: Tensor, positions: Tensor, support: Tensor) -> Tensor:
    """Put probability mass that lies at any positions on the evenly spaced atoms of a support.

    Shapes (n, m), (n, m), (atoms,) to (n, atoms). Mass between two atoms goes to both, the more to
    the nearer; mass beyond an end goes to the end. All mass stays, and where nothing lies beyond
    an end the mean does (Bellemare et al. 2017, also where a position is an atom).
    """
    atoms = support.shape[0]
    spacing = (support[-1] - support[0]) / (atoms - 1)
    places = ((positions - support[0]) / spacing).clamp(0, atoms - 1)
    # The lower neighbour of the last atom is the one before it: so the upper one always exists,
    # and a position on an atom gives all to it instead of nothing to both.
    below = places.floor().clamp(max=atoms - 2)
    to_above = probabilities * (places - below)
    index = below.long()
    projected = probabilities.new_zeros(probabilities.shape[0], atoms)
    projected = projected.scatter_add(1, index, probabilities - to_above)
    return projected.scatter_add(1, index + 1, to_above)
