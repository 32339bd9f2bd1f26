"""Tables that are generated: the same rows on every machine, and no file to read."""

from __future__ import annotations

import numpy

from rlplug.bandits.table import Table

__all__ = ["rings_table"]


def rings_table(
    rows: int = 2_000, rings: int = 6, classes: int = 3, noise: float = 0.15, *, seed: int = 0
) -> Table:
    """Points on rings around the origin, ring i at a distance of about i + 1, of class i % classes.

    Every class is all around the origin, and outside and inside of every other one: neither a
    straight line nor a single distance tells one of them from the rest.
    """
    random = numpy.random.default_rng(seed)
    ring = numpy.arange(rows) % rings
    angles = random.uniform(0.0, 2.0 * numpy.pi, rows)
    distances = 1.0 + ring + noise * random.standard_normal(rows)
    points = distances[:, None] * numpy.stack([numpy.cos(angles), numpy.sin(angles)], axis=1)
    return Table.of(points, ring % classes, name="rings", columns=("x", "y"))
