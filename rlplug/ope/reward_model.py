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
    """Features (n, d) of these arms (n,) in their contexts, the constant 1 first.

    Of featured arms, `arms` may be the probability of each, (n, arms): the features are expected.
    """
    n = len(arms)
    parts = [numpy.ones((n, 1))]
    context, featured = columns.get("context"), columns.get("arms")
    if context is not None:
        parts.append(numpy.asarray(context, numpy.float64).reshape(n, -1))
    if featured is not None:
        parts.append(_of_arms(featured, arms))
        if context is not None:
            flat = parts[1]
            parts.append((flat[:, :, None] * parts[2][:, None, :]).reshape(n, -1))
    return numpy.concatenate(parts, axis=1)


def _of_arms(featured: Any, arms: NDArray[Any]) -> Floats:
    if arms.ndim == 1:
        return numpy.asarray(featured[numpy.arange(len(arms)), arms], numpy.float64)
    # What absent arms hold may be NaN.
    held = numpy.where(arms[:, :, None] > 0, featured, 0.0)
    expected: Floats = numpy.einsum("na,naf->nf", arms, held)
    return expected


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
        """Σ π(a|x) x, by fold and group."""
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
        x, theta = features(columns, arms), self._solved()
        predicted: Floats = numpy.einsum(
            "nd,nd->n", x, theta[folds, arms if self._groups > 1 else 0]
        )
        return predicted

    def predict_policy(
        self, columns: Mapping[str, Any], shares: Floats, folds: NDArray[Any]
    ) -> Floats:
        """Expected rewards of a policy that chooses arms with probabilities (n, arms)."""
        theta = self._solved()
        if self._groups == 1:
            of_one: Floats = numpy.einsum("nd,nd->n", features(columns, shares), theta[folds, 0])
            return of_one
        x = features(columns, numpy.zeros(len(shares), int))
        predicted = numpy.empty(len(shares))
        for fold in range(self._folds):
            part = folds == fold
            predicted[part] = (shares[part] * (x[part] @ theta[fold].T)).sum(1)
        return predicted

    def add_policy(
        self,
        columns: Mapping[str, Any],
        shares: Floats,
        folds: NDArray[Any],
        weights: Floats | None = None,
    ) -> None:
        """Add rows with the probabilities (n, arms) of the policy, for `influence`."""
        x = features(columns, shares if self._groups == 1 else numpy.zeros(len(shares), int))
        wanted = numpy.ones((len(x), 1)) if self._groups == 1 else shares
        if weights is not None:
            x = x * weights[:, None]
        if self._wanted is None:
            self._wanted = numpy.zeros((self._folds, self._groups, x.shape[1]))
        for fold in range(self._folds):
            part = folds == fold
            self._wanted[fold] += wanted[part].T @ x[part]

    def influence(
        self, columns: Mapping[str, Any], arms: NDArray[Any], rewards: Floats, folds: NDArray[Any]
    ) -> Floats:
        """How much each logged row moves the sum of predictions of the policy's arms.

        To first order: it is what a bootstrap of the rows does to the model.
        """
        theta = self._solved()
        x = features(columns, arms)
        groups = arms if self._groups > 1 else numpy.zeros(len(arms), int)
        pull = numpy.linalg.solve(self._penalized(), self._wanted[..., None])[..., 0]
        moved = numpy.zeros(len(arms))
        for fold in range(self._folds):
            trained = folds != fold if self._folds > 1 else numpy.ones(len(arms), bool)
            errors = rewards - numpy.einsum("nd,nd->n", x, theta[fold, groups])
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

    def _solved(self) -> Any:
        if self._theta is None:
            size = self._sums.shape[2]
            self._theta = numpy.linalg.solve(self._penalized(), self._kept()[..., size:])[..., 0]
        return self._theta
