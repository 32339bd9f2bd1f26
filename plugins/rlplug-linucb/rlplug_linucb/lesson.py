"""Learn rows: few of them one by one, many by their sums; none if one of them is bad."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy

from rlplug.errors import RunFailedError
from rlplug_linucb.backend import Array, Backend
from rlplug_linucb.checks import misfit, negative_weight, unequal_rows
from rlplug_linucb.hybrid import HybridRidges, HybridSums
from rlplug_linucb.layout import Layout, Seen
from rlplug_linucb.models import DisjointModel, JointModel, Model, Rows
from rlplug_linucb.ridge import Ridges
from rlplug_linucb.sums import Sums

__all__ = [
    "checked_arms",
    "checked_params",
    "checked_rows",
    "checked_weights",
    "learn_one",
    "learn_rows",
    "sum_rows",
]

_CHUNK = 8192
"""Rows that are copied at a time while their sums are taken."""


def learn_rows(
    regressions: Ridges | HybridRidges, rows: Rows, labels: Array, weights: Array | None
) -> bool:
    """Learn rows one by one, in their order; False, and nothing learned, if one is not finite."""
    backend = regressions.backend
    x, arms, shared = backend.floats(rows.x), rows.arms, rows.z
    squares = backend.square(x) + backend.square(labels)
    if shared is not None:
        squares += backend.square(backend.floats(shared))
    if not math.isfinite(squares if weights is None else squares + float(weights.sum())):
        return False
    targets = labels[:, None] if shared is None else _targets(backend, labels, shared)
    for index in range(len(labels)):
        regressions.learn_row(
            0 if arms is None else int(arms[index]),
            x[index],
            targets[index],
            1.0 if weights is None else float(weights[index]),
        )
    return True


def learn_one(
    model: DisjointModel | JointModel, seen: Seen, arms: Array, labels: Array, weights: Array | None
) -> bool:
    """As `learn_rows`, of the only row that was seen: single updates must be quick."""
    group, x = model.row(seen, int(arms[0]))
    own = model.regressions.own
    label, weight = float(labels[0]), 1.0 if weights is None else float(weights[0])
    if not math.isfinite(own.backend.square(x) + label * label + weight):
        return False
    own.learn_row(group, x, labels, weight)
    return True


# What is not finite is found by its sums, and told in words.
@numpy.errstate(over="ignore", invalid="ignore")
def sum_rows(
    regressions: Ridges | HybridRidges,
    rows_of: Callable[[slice], Rows],
    labels: Array,
    weights: Array | None,
) -> Sums | HybridSums | None:
    """The sums of rows that are made in chunks, so that few are copied at a time.

    None if they are not finite.
    """
    backend = regressions.backend
    sums = regressions.new_sums()
    for start in range(0, len(labels), _CHUNK):
        part = slice(start, start + _CHUNK)
        rows = rows_of(part)
        targets = _targets(backend, labels[part], rows.z)
        sums.add(rows.x, targets, None if weights is None else weights[part], rows.arms)
    finite = math.isfinite(float(labels.sum())) and sums.finite()
    return sums if finite else None


def checked_rows(
    model: Model, layout: Layout, observations: Any, actions: Any, rewards: Any, weights: Any
) -> tuple[Seen, Array, Array, Array | None]:
    """What was seen, the arms, labels and weights of rows: as many of each, and of known arms."""
    backend = model.regressions.backend
    seen = layout.read(observations)
    labels = backend.column(rewards)
    rows = len(labels)
    if seen.rows != rows:
        raise unequal_rows(rows, observations=seen.rows)
    arms = checked_arms(backend, actions, rows, layout.num_arms)
    if weights is not None:
        weights = checked_weights(backend, weights, rows)
    return seen, arms, labels, weights


def checked_arms(backend: Backend, arms: Any, rows: int, count: int) -> Array:
    """The arm of each row, all of them known."""
    arms = backend.integers(arms)
    if len(arms) != rows:
        raise unequal_rows(rows, actions=len(arms))
    if rows == 1:
        known = 0 <= arms.item() < count
    else:
        known = not rows or (int(arms.min()) >= 0 and int(arms.max()) < count)
    if not known:
        bad = next(row for row, arm in enumerate(arms.tolist()) if not 0 <= arm < count)
        raise RunFailedError(
            f"rlplug-linucb: arm {int(arms[bad])} of row {bad} is none of 0 to {count - 1}.",
            "nothing was changed; try: number the arms from 0",
        )
    return arms


def checked_weights(backend: Backend, weights: Any, rows: int) -> Array | None:
    """The weight of each row, none below nought."""
    if weights is None:
        return None
    weights = backend.column(weights)
    if len(weights) != rows:
        raise unequal_rows(rows, weights=len(weights))
    if rows and float(weights.min()) < 0.0:
        raise negative_weight(weights)
    return weights


def checked_params(model: Model, x: Any, arms: Any, z: Any, rows: int) -> Rows:
    """Rows that the caller made, as wide as the model's."""
    backend = model.regressions.backend
    widths = model.widths
    for name, values, width in (("x", x, widths.x), ("z", z, widths.z)):
        wanted = None if width is None else (rows, width)
        found = None if values is None else tuple(values.shape)
        if found != wanted:
            raise misfit(name, found, wanted)
    if widths.arms is None:
        if arms is not None:
            raise misfit("arms", (len(arms),), None)
    elif arms is None:
        raise misfit("arms", None, (rows,))
    else:
        arms = checked_arms(backend, arms, rows, widths.arms)
    return Rows(backend.array(x), arms, None if z is None else backend.array(z))


def _targets(backend: Backend, labels: Array, shared: Array | None) -> Array:
    """What each row is to predict, (n, 1) or (n, 1 + k) with the features that arms share."""
    if shared is None:
        return labels[:, None]
    return backend.xp.concatenate([labels[:, None], backend.floats(shared)], -1)
