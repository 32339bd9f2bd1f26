"""A model of rewards for the direct method and doubly robust estimates: ridge regressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

from rlplug.ope.estimators import Floats

__all__ = ["RewardModel", "features", "mrdr_weights"]


def mrdr_weights(probabilities: Floats, propensities: Floats) -> Floats:
    """Weights of rows with which a model minimizes the variance of DR (Farajtabar et al. 2018)."""
    weights: Floats = probabilities * (1.0 - propensities) / propensities**2
    return weights


def features(columns: Mapping[str, Any], arms: NDArray[Any]) -> Floats:
    """Features (n, d) of these arms (n,) in their contexts, the constant 1 first."""
    n = len(arms)
    parts = [numpy.ones((n, 1))]
    context, featured = columns.get("context"), columns.get("arms")
    if context is not None:
        parts.append(numpy.asarray(context, numpy.float64).reshape(n, -1))
    if featured is not None:
        chosen = featured[numpy.arange(n), arms]
        parts.append(numpy.asarray(chosen, numpy.float64))
        if context is not None:
            flat = parts[1]
            parts.append((flat[:, :, None] * parts[2][:, None, :]).reshape(n, -1))
    return numpy.concatenate(parts, axis=1)


class RewardModel:
    """Ridge regressions of the reward, one per arm, or one for all arms that have features.

    Rows are predicted by a model of the other folds, so that an estimate does not judge a model
    by the rows that it was fitted to.
    """

    def __init__(self, num_arms: int, *, featured: bool, l2: float = 1.0, folds: int = 2) -> None:
        self._groups = 1 if featured else num_arms
        self._l2, self._folds = l2, folds
        self._sums: Any = None
        self._wanted: Any = None
        """Σ features of the arms that the policy wants, by fold and group."""
        self._theta: Any = None

    def add(
        self,
        columns: Mapping[str, Any],
        arms: NDArray[Any],
        rewards: Floats,
        folds: NDArray[Any],
        weights: Floats | None = None,
    ) -> None:
        """Add rows to the sums of their folds."""
        x = features(columns, arms)
        if self._sums is None:
            size = x.shape[1]
            self._sums = numpy.zeros((self._folds, self._groups, size, size + 1))
        rows = numpy.concatenate([x, rewards[:, None]], axis=1)
        weighted = x if weights is None else x * weights[:, None]
        for key, part in self._by_key(arms, folds):
            self._sums.reshape(-1, *self._sums.shape[2:])[key] += weighted[part].T @ rows[part]
        self._theta = None

    def predict(
        self, columns: Mapping[str, Any], arms: NDArray[Any], folds: NDArray[Any]
    ) -> Floats:
        """Rewards of these arms by the models of the other folds."""
        if self._theta is None:
            self._theta = self._solve()
        x = features(columns, arms)
        theta = self._theta[folds, arms if self._groups > 1 else 0]
        predicted: Floats = numpy.einsum("nd,nd->n", x, theta)
        return predicted

    def add_policy(
        self,
        columns: Mapping[str, Any],
        arms: NDArray[Any],
        folds: NDArray[Any],
        weights: Floats | None = None,
    ) -> None:
        """Add rows with the arms that the policy wants, for `influence`."""
        x = features(columns, arms)
        if weights is not None:
            x = x * weights[:, None]
        if self._wanted is None:
            self._wanted = numpy.zeros((self._folds, self._groups, x.shape[1]))
        for key, part in self._by_key(arms, folds):
            self._wanted.reshape(-1, x.shape[1])[key] += x[part].sum(0)

    def influence(
        self, columns: Mapping[str, Any], arms: NDArray[Any], rewards: Floats, folds: NDArray[Any]
    ) -> Floats:
        """How much each logged row moves the sum of predictions of the policy's arms.

        To first order: it is what a bootstrap of the rows does to the model.
        """
        if self._theta is None:
            self._theta = self._solve()
        x = features(columns, arms)
        groups = arms if self._groups > 1 else numpy.zeros(len(arms), int)
        pull = numpy.linalg.solve(self._penalized(), self._wanted[..., None])[..., 0]
        moved = numpy.zeros(len(arms))
        for fold in range(self._folds):
            trained = folds != fold if self._folds > 1 else numpy.ones(len(arms), bool)
            errors = rewards - numpy.einsum("nd,nd->n", x, self._theta[fold, groups])
            moved += trained * errors * numpy.einsum("nd,nd->n", x, pull[fold, groups])
        return moved

    def _by_key(self, arms: NDArray[Any], folds: NDArray[Any]) -> Iterator[tuple[int, Any]]:
        """Rows of each fold and group that there are."""
        keys = folds * self._groups + (arms if self._groups > 1 else 0)
        order = keys.argsort(kind="stable")
        present, starts = numpy.unique(keys[order], return_index=True)
        yield from zip(present.tolist(), numpy.split(order, starts[1:]), strict=True)

    def _kept(self) -> Any:
        """The sums that the model of each fold is fitted to: those of the others."""
        total = self._sums.sum(0)
        return total[None] - self._sums if self._folds > 1 else total[None]

    def _penalized(self) -> Any:
        size = self._sums.shape[2]
        # The constant is not shrunk: an arm whose rewards are all 5 is predicted to earn 5.
        penalty = self._l2 * numpy.eye(size)
        penalty[0, 0] = 1e-6
        return self._kept()[..., :size] + penalty

    def _solve(self) -> Any:
        size = self._sums.shape[2]
        return numpy.linalg.solve(self._penalized(), self._kept()[..., size:])[..., 0]
