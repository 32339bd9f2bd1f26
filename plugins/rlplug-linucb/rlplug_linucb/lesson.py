"""Rows to learn, checked as a whole before anything is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from rlplug.errors import RunFailedError
from rlplug_linucb.backend import Array, Backend
from rlplug_linucb.checks import bad_values, misfit, negative_weight, unequal_rows
from rlplug_linucb.hybrid import HybridSums
from rlplug_linucb.layout import Layout, Seen
from rlplug_linucb.models import Model, Rows
from rlplug_linucb.sums import Sums

__all__ = ["Lesson", "lesson_of_choices", "lesson_of_params"]

_CHUNK = 8192
"""Rows that are copied at a time while their sums are taken."""


@attrs.frozen
class Lesson:
    """Rows with labels (n,) and weights (n,), and how to make any part of the rows."""

    model: Model
    rows_of: Callable[[slice | None], Rows]
    labels: Array
    weights: Array | None
    columns: Mapping[str, Any]
    """What the rows are made of, by the names the caller knows."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.labels)

    def learn_rows(self) -> None:
        """Learn them one by one, in their order."""
        regressions = self.model.regressions
        rows = self.rows_of(None)
        x = regressions.backend.floats(rows.x)
        targets = _targets(regressions.backend, self.labels, rows.z)
        weights = self.weights
        squares = _square(x) + _square(targets)
        if not math.isfinite(squares if weights is None else squares + float(weights.sum())):
            raise bad_values(self.columns)
        for index in range(self.rows):
            regressions.learn_row(
                0 if rows.arms is None else int(rows.arms[index]),
                x[index],
                targets[index],
                1.0 if weights is None else float(weights[index]),
            )

    def sums(self) -> Sums | HybridSums:
        """Their sums, taken in chunks: no row is copied more than a few thousand at a time."""
        weights = self.weights
        backend = self.model.regressions.backend
        if not math.isfinite(float(self.labels.sum())):
            raise bad_values(self.columns)
        sums = self.model.regressions.new_sums()
        for start in range(0, self.rows, _CHUNK):
            part = slice(start, start + _CHUNK)
            rows = self.rows_of(part)
            targets = _targets(backend, self.labels[part], rows.z)
            sums.add(rows.x, targets, None if weights is None else weights[part], rows.arms)
        if not sums.finite():
            raise bad_values(self.columns)
        return sums


def lesson_of_choices(
    model: Model, layout: Layout, seen: Seen, actions: Any, rewards: Any, weights: Any
) -> Lesson:
    """The rows of chosen arms."""
    backend = model.regressions.backend
    labels = backend.floats(rewards).reshape(-1)
    arms = backend.integers(actions)
    first = seen.arms if seen.context is None else seen.context
    if not len(labels) == len(arms) == len(first):
        raise unequal_rows(len(labels), actions=len(arms), observations=len(first))
    _refuse_unknown(arms, layout.num_arms)
    chosen = model.chosen

    def rows_of(part: slice | None) -> Rows:
        return chosen(seen, arms) if part is None else chosen(seen.part(part), arms[part])

    columns = {"context": seen.context, "arms": seen.arms, "rewards": rewards, "weights": weights}
    return Lesson(model, rows_of, labels, _checked(backend, weights, len(labels)), columns)


def lesson_of_params(model: Model, given: Rows, columns: Mapping[str, Any]) -> Lesson:
    """Rows that the caller made, with the columns `y` and `weight`."""
    backend = model.regressions.backend
    labels = backend.floats(columns["y"]).reshape(-1)
    widths = model.widths
    for name, values, width in (("x", given.x, widths.x), ("z", given.z, widths.z)):
        shape = None if values is None else tuple(values.shape)
        if shape != (None if width is None else (len(labels), width)):
            raise misfit(name, shape, None if width is None else (len(labels), width))
    arms = None if given.arms is None else backend.integers(given.arms)
    if (None if arms is None else len(arms)) != (None if widths.arms is None else len(labels)):
        found = None if arms is None else (len(arms),)
        raise misfit("arms", found, None if widths.arms is None else (len(labels),))
    if arms is not None and widths.arms is not None:
        _refuse_unknown(arms, widths.arms)
    rows = Rows(backend.array(given.x), arms, None if given.z is None else backend.array(given.z))
    weights = _checked(backend, columns["weight"], len(labels))
    return Lesson(
        model, lambda part: rows if part is None else rows.part(part), labels, weights, columns
    )


def _checked(backend: Backend, weights: Any, rows: int) -> Array | None:
    if weights is None:
        return None
    weights = backend.floats(weights).reshape(-1)
    if len(weights) != rows:
        raise unequal_rows(rows, weights=len(weights))
    if rows and float(weights.min()) < 0.0:
        raise negative_weight(weights)
    return weights


def _refuse_unknown(arms: Array, count: int) -> None:
    if len(arms) and not 0 <= int(arms.min()) <= int(arms.max()) < count:
        bad = next(row for row, arm in enumerate(arms.tolist()) if not 0 <= arm < count)
        raise RunFailedError(
            f"linucb: arm {int(arms[bad])} of row {bad} is none of 0 to {count - 1}.",
            "nothing was changed; try: number the arms from 0",
        )


def _targets(backend: Backend, labels: Array, shared: Array | None) -> Array:
    """What each row is to predict, (n, 1) or (n, 1 + k) with the features that arms share."""
    if shared is None:
        return labels[:, None]
    return backend.xp.concatenate([labels[:, None], backend.floats(shared)], -1)


def _square(values: Array) -> float:
    """The sum of squares: not finite if any value is not."""
    flat = values.reshape(-1)
    return float(flat @ flat)
