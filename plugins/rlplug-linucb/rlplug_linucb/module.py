"""LinUCBModule: chooses arms by upper confidence bounds, and learns from rewards in closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from rlplug import Acted, ActInput, Module
from rlplug.config.schedule import resolve
from rlplug_linucb.backend import Array, NumpyBackend
from rlplug_linucb.checks import bad_values
from rlplug_linucb.choice import choose, choose_one
from rlplug_linucb.config import LinUCBConfig
from rlplug_linucb.hybrid import HybridSums
from rlplug_linucb.layout import Layout, Seen
from rlplug_linucb.lesson import (
    checked_params,
    checked_rows,
    checked_weights,
    learn_one,
    learn_rows,
    sum_rows,
)
from rlplug_linucb.models import HybridModel, Model, Rows, make_model
from rlplug_linucb.movable import Movable
from rlplug_linucb.sums import Sums

__all__ = ["LinUCBModule", "Scores"]


class Scores(NamedTuple):
    """What every arm is worth, each of shape (n, arms)."""

    pred_label: Any
    """The expected reward."""
    pred_sigma: Any
    """Its standard deviation, for noise of unit variance."""
    ucb: Any
    """`pred_label + alpha * pred_sigma`."""


class LinUCBModule(Movable, Module):
    """A linear bandit: score, choose, update; it needs nothing but itself.

    Observations are an array of contexts (n, d), or a mapping with `context`, `arms` (n, arms, f)
    and `action_mask`, as the layout says. All that it learned is in its `state_dict`.
    """

    alpha: Tensor

    def __init__(self, layout: Layout, config: LinUCBConfig | None = None) -> None:
        super().__init__()
        config = resolve(LinUCBConfig() if config is None else config, 0)
        self.layout = layout
        self.model: Model = make_model(layout, config)
        # Submodules are slow to look up: the model, which is none, knows its regressions too.
        self.regressions = self.model.regressions
        self.register_buffer("alpha", torch.tensor([float(config.alpha)], dtype=torch.float64))
        self.reopen()

    def reopen(self) -> None:
        """Take hold of alpha where it is now: a buffer takes longer to look up than to read."""
        alpha = self.alpha
        self.own = alpha.numpy() if alpha.device.type == "cpu" else alpha

    @property
    def on_cpu(self) -> bool:
        """Whether NumPy arrays are read without a copy."""
        return isinstance(self.model.regressions.backend, NumpyBackend)

    # -- acting --------------------------------------------------------------------------------

    def forward_exploration(self, act: ActInput) -> Acted:
        """The arms of the highest upper confidence bound; ties are broken by `act.random`."""
        seen = self.layout.read(act.observations, act.action_mask)
        return self.pick(seen, _scored(self.model, seen, float(self.own[0])), act.random)

    def forward_inference(self, act: ActInput) -> Acted:
        """The arms of the highest expected reward; of equal ones, the first."""
        seen = self.layout.read(act.observations, act.action_mask)
        return Acted(self.pick(seen, _scored(self.model, seen, 0.0), None).actions)

    def choose(
        self, observations: Any, random: numpy.random.Generator, action_mask: Any = None
    ) -> Any:
        """The arms to try next, one per row: `forward_exploration` without its wrapping."""
        seen = self.layout.read(observations, action_mask)
        _, _, ucb = _scored(self.model, seen, float(self.own[0]))
        arms = _best(seen, ucb, random)
        return torch.from_numpy(arms) if seen.as_tensors else arms

    def score(self, observations: Any, alpha: float | None = None) -> Scores:
        """Expected reward, its deviation and upper bound for every arm of every row."""
        seen = self.layout.read(observations)
        scores = _scored(self.model, seen, float(self.own[0]) if alpha is None else alpha)
        scores = Scores(*(one.reshape(seen.rows, -1) for one in scores))
        if not numpy.isfinite(scores.ucb).all():
            raise bad_values({"context": seen.context, "arms": seen.arms})
        return Scores(*map(torch.from_numpy, scores)) if seen.as_tensors else scores

    def set_alpha(self, alpha: float) -> None:
        """Widen or narrow the bound from now on."""
        if float(self.own[0]) != alpha:
            self.own[0] = alpha

    def pick(
        self,
        seen: Seen,
        scores: Sequence[Any],
        random: numpy.random.Generator | None,
        by: str = "ucb",
    ) -> Acted:
        """The arms of the highest third score, and their three scores; the third is told as `by`.

        For one observation scores are of shape (arms,).
        """
        mean, sigma, worth = scores
        arms = _best(seen, worth, random)
        chosen: Any
        if worth.ndim == 1:
            arm = int(arms[0])
            chosen = slice(arm, arm + 1)
        else:
            chosen = numpy.arange(len(arms)), arms
        extras = {"pred_label": mean[chosen], "pred_sigma": sigma[chosen], by: worth[chosen]}
        if seen.as_tensors:
            tensors = {name: torch.from_numpy(values) for name, values in extras.items()}
            return Acted(torch.from_numpy(arms), extras=tensors)
        return Acted(arms, extras=extras)

    # -- learning ------------------------------------------------------------------------------

    def update(self, observations: Any, actions: Any, rewards: Any, weights: Any = None) -> None:
        """Learn what the chosen arms earned; a row of weight w counts as w such rows."""
        model = self.model
        columns = (observations, actions, rewards, weights)
        seen, arms, labels, weights = checked_rows(model, self.layout, *columns)
        rows = len(labels)
        if rows == 1 and not isinstance(model, HybridModel):
            learned = learn_one(model, seen, arms, labels, weights)
        elif rows <= model.few:
            learned = learn_rows(model.regressions, model.chosen(seen, arms), labels, weights)
        else:
            sums = self._sums(seen, arms, labels, weights)
            model.regressions.absorb(sums.arrays(), rows)
            return
        if not learned:
            raise bad_values(_columns(seen, labels, weights))

    def update_params(
        self, x: Any, y: Any, weight: Any = None, arms: Any = None, z: Any = None
    ) -> None:
        """Learn rows of the regression itself: x (n, d), label y (n,), weight (n,).

        A disjoint model needs the arm of each row, a hybrid one also what arms share, z (n, k).
        """
        regressions = self.model.regressions
        labels = regressions.backend.column(y)
        rows = checked_params(self.model, x, arms, z, len(labels))
        weights = checked_weights(regressions.backend, weight, len(labels))
        if len(labels) > self.model.few:
            sums = sum_rows(regressions, rows.part, labels, weights)
            if sums is not None:
                regressions.absorb(sums.arrays(), len(labels))
                return
        elif learn_rows(regressions, rows, labels, weights):
            return
        raise bad_values({"x": x, "z": z, "y": y, "weight": weight})

    def statistics(
        self, observations: Any, actions: Any, rewards: Any, weights: Any = None
    ) -> list[Tensor]:
        """The sums of these rows, to be added to those of other learners and absorbed."""
        columns = (observations, actions, rewards, weights)
        sums = self._sums(*checked_rows(self.model, self.layout, *columns))
        return [self.model.regressions.backend.tensor(one) for one in sums.arrays()]

    def absorb(self, statistics: Sequence[Tensor], rows: int) -> None:
        """Learn from `statistics`; `rows` is how many rows each learner took in, one by one."""
        regressions = self.model.regressions
        regressions.absorb([regressions.backend.array(one) for one in statistics], rows)

    def discount_(self, gamma: float) -> None:
        """Let all that was learned so far weigh `gamma` times as much."""
        self.model.regressions.discount_(gamma)

    def fallbacks(self) -> Mapping[str, int]:
        """How often inverses were solved anew, and how often that took jitter or more."""
        return self.model.regressions.fallbacks()

    def _sums(
        self, seen: Seen, arms: Array, labels: Array, weights: Array | None
    ) -> Sums | HybridSums:
        def rows_of(part: slice) -> Rows:
            return self.model.chosen(seen.part(part), arms[part])

        sums = sum_rows(self.model.regressions, rows_of, labels, weights)
        if sums is None:
            raise bad_values(_columns(seen, labels, weights))
        return sums


def _columns(seen: Seen, labels: Array, weights: Array | None) -> Mapping[str, Any]:
    """What rows are made of, by the names that complaints use."""
    return {"context": seen.context, "arms": seen.arms, "rewards": labels, "weights": weights}


# What is not finite is found by its results, and told in words.
@numpy.errstate(over="ignore", invalid="ignore")
def _scored(model: Model, seen: Seen, alpha: float) -> tuple[Any, Any, Any]:
    """As `score`, but (arms,) for one observation: single decisions must be quick."""
    mean, spread = model.score(seen)
    if type(mean) is not numpy.ndarray:
        mean, spread = mean.cpu().numpy(), spread.cpu().numpy()
    sigma = numpy.sqrt(spread)
    # Where features are not finite, neither is the deviation, nor nought times it.
    return mean, sigma, mean + alpha * sigma


def _best(seen: Seen, worth: Any, random: numpy.random.Generator | None) -> Any:
    """The arms that are worth most."""
    try:
        if worth.ndim == 1:
            return numpy.array([choose_one(worth, seen.mask, random)])
        return choose(worth, seen.mask, random)
    except FloatingPointError:
        raise bad_values({"context": seen.context, "arms": seen.arms}) from None
