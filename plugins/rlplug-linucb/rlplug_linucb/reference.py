"""LinUCB computed plainly from all rows at once, for `rlplug plugins check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from rlplug_linucb.config import LinearOptions

__all__ = ["ridge"]


def ridge(
    config: LinearOptions, rows: Mapping[str, Any], observations: Any, count: int
) -> Mapping[str, Any] | None:
    """Means and deviations of every arm of disjoint models; None for all other models.

    With `squared_discount` they are D-LinUCB's: (A + λI)⁻¹ (A₂ + λI) (A + λI)⁻¹, where A₂ is
    discounted by the square.
    """
    if not isinstance(observations, numpy.ndarray) or observations.ndim != 2:
        return None
    if config.model not in ("auto", "disjoint") or not config.l2_lambda:
        return None
    x, chosen = rows["observations"].astype(float), rows["actions"].astype(int)
    ages = numpy.arange(len(x))[::-1]
    weights = rows["weights"] * config.discount**ages
    squared = rows["weights"] * config.discount ** (2 * ages)
    penalty = config.l2_lambda * numpy.eye(x.shape[1])
    means, deviations = [], []
    for arm in range(count):
        of_arm = chosen == arm
        features, rewards = x[of_arm], rows["rewards"][of_arm]
        A = (features * weights[of_arm, None]).T @ features + penalty
        A_inv = numpy.linalg.inv(A)
        theta = A_inv @ ((features * weights[of_arm, None]).T @ rewards)
        if config.squared_discount:
            A2 = (features * squared[of_arm, None]).T @ features + penalty
            A_inv = A_inv @ A2 @ A_inv
        means.append(observations @ theta)
        deviations.append(numpy.sqrt(((observations @ A_inv) * observations).sum(1)))
    return {"pred_label": numpy.stack(means, 1), "pred_sigma": numpy.stack(deviations, 1)}
