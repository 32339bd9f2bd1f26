"""Tables that are generated: the same rows on every machine, and no file to read."""

from __future__ import annotations

import numpy

from rlplug.bandits.table import Table

__all__ = ["rings_table"]


def rings_table(
    rows: int = 2_000, classes: int = 4, noise: float = 0.15, *, seed: int = 0
) -> Table:
    """Points on rings around the origin, class i at a distance of about i + 1; equally many each.

    Every class is all around the origin: no straight line keeps one of them apart.
    """
    random = numpy.random.default_rng(seed)
    labels = numpy.arange(rows) % classes
    angles = random.uniform(0.0, 2.0 * numpy.pi, rows)
    distances = 1.0 + labels + noise * random.standard_normal(rows)
    points = distances[:, None] * numpy.stack([numpy.cos(angles), numpy.sin(angles)], axis=1)
    return Table.of(points, labels, name="rings", columns=("x", "y"))
