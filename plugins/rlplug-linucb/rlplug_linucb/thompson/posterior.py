"""Draw what arms are worth from the posterior N(theta, v² A⁻¹), for each decision anew."""

from __future__ import annotations

from typing import Any

import numpy

from rlplug_linucb.backend import Array, Backend
from rlplug_linucb.layout import Seen
from rlplug_linucb.models import DisjointModel, JointModel, Model
from rlplug_linucb.ridge import Ridges

__all__ = ["draw"]


def draw(model: Model, seen: Seen, random: numpy.random.Generator) -> tuple[Array, Array, Array]:
    """Means and variances, and how far one draw of the parameters is from the means at v = 1.

    All are (n, arms), or (arms,) for one observation; every observation has a draw of its own.
    """
    if isinstance(model, DisjointModel):
        mean, spread = model.score(seen)
        return mean, spread, _apart(model.regressions.backend, spread, random)
    if isinstance(model, JointModel):
        rows = model.design(seen)
        means, spread = model.regressions.predict(rows)
        return means[..., 0], spread, _together(model.regressions, rows, random)
    # Given what arms share, they are independent: one draw of that, and one for each arm.
    arms_mean, arms_spread, rest = model.regressions.by_arm(*model.design(seen))
    rows = rest if rest.ndim == 3 else rest[None]
    means, spread = model.regressions.shared.predict(rows)
    away = _together(model.regressions.shared, rows, random)
    away = away + _apart(model.regressions.backend, arms_spread, random)
    return arms_mean + means[..., 0], arms_spread + spread, away


def _apart(backend: Backend, spread: Array, random: numpy.random.Generator) -> Array:
    """A draw for regressions that know nothing of each other, from their variances."""
    return backend.xp.sqrt(spread) * backend.floats(random.standard_normal(spread.shape))


def _together(ridges: Ridges, rows: Array, random: numpy.random.Generator) -> Array:
    """A draw of one regression's coefficients for each of rows (n, arms, d), times those rows."""
    backend = ridges.backend
    noise = backend.floats(random.standard_normal((len(rows), ridges.dim)))
    coefficients = noise @ _root(backend, ridges.own.inverse[0]).T
    if len(rows) == 1:
        return rows[0] @ coefficients[0]
    return (rows @ coefficients[:, :, None])[..., 0]


def _root(backend: Backend, covariance: Array) -> Array:
    """A matrix whose product with its own transpose is the covariance."""
    linalg: Any = backend.xp.linalg
    try:
        return linalg.cholesky(covariance)
    except (numpy.linalg.LinAlgError, RuntimeError):
        # Rounding may leave a variance of nought a trifle below it.
        values, vectors = linalg.eigh(covariance)
        return vectors * backend.xp.sqrt(abs(values))
