"""Probabilities of arms being chosen, which off-policy estimates and stale weights need."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlplug.errors import RunFailedError

__all__ = [
    "allowed_arms",
    "beta_best",
    "gaussian_best",
    "greedy_probabilities",
]

Floats: TypeAlias = NDArray[numpy.float64]

_POINTS = numpy.linspace(-8.0, 8.0, 161)
"""Where distribution functions are evaluated, in standard deviations around each arm's mean."""


def allowed_arms(mask: Any, shape: tuple[int, ...]) -> NDArray[numpy.bool_]:
    """The mask as booleans of this shape; all are allowed without one, and at least one with it."""
    if mask is None:
        return numpy.ones(shape, bool)
    array = mask.cpu().numpy() if isinstance(mask, Tensor) else numpy.asarray(mask)
    if array.shape != shape:
        raise RunFailedError(
            f"the action mask must have the shape {shape}, one row per choice, "
            f"found {array.shape}.",
            "try: the mask of the observations that are chosen for",
        )
    allowed: NDArray[numpy.bool_] = array != 0
    if array.dtype != bool and not (array == allowed).all():
        row, arm = numpy.argwhere(array != allowed)[0].tolist()
        raise RunFailedError(
            f"the action mask of row {row} has {array[row].tolist()[arm]!r} for arm {arm}, "
            "not a boolean.",
            "try: True, or 1, for each arm that may be chosen; False, or 0, for others",
        )
    empty = numpy.flatnonzero(~allowed.any(-1))
    if len(empty):
        raise RunFailedError(
            f"the action mask of row {empty[0]} allows no arm.",
            "try: an environment that always has an arm to choose",
        )
    return allowed


def greedy_probabilities(values: Any, mask: Any = None, tolerance: float = 0.0) -> Floats:
    """Of the highest value in each row (n, arms), with ties broken uniformly at random.

    Values that differ by less than `tolerance`, relative to the best or to 1, are tied.
    """
    values = numpy.where(allowed_arms(mask, values.shape), values, -numpy.inf)
    top = values.max(1, keepdims=True)
    slack = tolerance * numpy.maximum(1.0, abs(top)) if tolerance else 0.0
    tied = values >= top - slack
    shares: Floats = tied / tied.sum(1, keepdims=True)
    return shares


def gaussian_best(mean: Any, deviation: Any, mask: Any = None) -> Floats:
    """Probability of each arm's draw being the highest: independent Gaussians, (n, arms)."""
    mean, deviation = numpy.broadcast_arrays(numpy.float64(mean), numpy.float64(deviation))
    if not deviation.any():
        return greedy_probabilities(mean, mask)
    # A deviation of 0 is a step.
    deviation = numpy.maximum(deviation, 1e-9 * max(deviation.max(), 1e-300))
    points = _around(mean, deviation)
    places = (points[:, None, :] - mean[:, :, None]) / deviation[:, :, None]
    functions = torch.special.ndtr(torch.from_numpy(places)).numpy()
    return _best(functions, allowed_arms(mask, mean.shape))


def beta_best(a: Any, b: Any, mask: Any = None) -> Floats:
    """The same for Beta(a, b) with a, b ≥ 1."""
    a, b = numpy.broadcast_arrays(numpy.float64(a), numpy.float64(b))
    mean = a / (a + b)
    deviation = numpy.sqrt(mean * (1 - mean) / (a + b + 1))
    inside = numpy.linspace(0.0, 1.0, _POINTS.size)[None].repeat(len(mean), 0)
    points = numpy.concatenate([_around(mean, deviation).clip(0.0, 1.0), inside], 1)
    points.sort(1)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        logs = numpy.where(a[:, :, None] > 1, (a[:, :, None] - 1) * numpy.log(points)[:, None], 0.0)
        rest = (b[:, :, None] - 1) * numpy.log1p(-points)[:, None]
        logs = logs + numpy.where(b[:, :, None] > 1, rest, 0.0)
    density = numpy.exp(logs - logs.max(2, keepdims=True))
    areas = (density[:, :, 1:] + density[:, :, :-1]) / 2 * numpy.diff(points)[:, None]
    functions = numpy.zeros_like(density)
    functions[:, :, 1:] = areas.cumsum(2)
    functions /= functions[:, :, -1:]
    return _best(functions, allowed_arms(mask, mean.shape))


def _around(mean: Floats, deviation: Floats) -> Floats:
    """Points (n, points), close to each other where any arm's distribution function rises."""
    points: Floats = mean[:, :, None] + deviation[:, :, None] * _POINTS
    points = points.reshape(len(mean), -1)
    points.sort(1)
    return points


def _best(functions: Floats, allowed: NDArray[numpy.bool_]) -> Floats:
    """∫ Π F_j dF_a over all others j, from distribution functions (n, arms, points)."""
    functions = numpy.where(allowed[:, :, None], functions, 1.0)
    # Products over the arms before and after each one: of all others without dividing, as 0 / 0 is
    # none.
    none = numpy.ones_like(functions[:, :1])
    before = numpy.concatenate([none, functions[:, :-1]], 1).cumprod(1)
    after = numpy.concatenate([none, functions[:, :0:-1]], 1).cumprod(1)[:, ::-1]
    others = before * after
    heights = (others[:, :, 1:] + others[:, :, :-1]) / 2
    found = (heights * numpy.diff(functions)).sum(2)
    found = numpy.where(allowed, numpy.maximum(found, 0.0), 0.0)
    shares: Floats = found / found.sum(1, keepdims=True)
    return shares
