"""LinUCBModule: chooses arms by upper confidence bounds, and learns from rewards in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from rlplug import Acted, ActInput, Module
from rlplug.config.schedule import resolve
from rlplug_linucb.backend import NumpyBackend
from rlplug_linucb.checks import bad_values
from rlplug_linucb.choice import choose
from rlplug_linucb.config import LinUCBConfig
from rlplug_linucb.layout import Layout, Seen
from rlplug_linucb.lesson import Lesson, lesson_of_choices, lesson_of_params
from rlplug_linucb.models import Model, Rows, make_model

__all__ = ["LinUCBModule", "Scores"]


class Scores(NamedTuple):
    """What every arm is worth, each of shape (n, arms)."""

    pred_label: Any
    """The expected reward."""
    pred_sigma: Any
    """Its standard deviation, for noise of unit variance."""
    ucb: Any
    """`pred_label + alpha * pred_sigma`."""


class LinUCBModule(Module):
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
        self.register_buffer("alpha", torch.tensor(float(config.alpha), dtype=torch.float64))

    @property
    def on_cpu(self) -> bool:
        """Whether NumPy arrays are read without a copy."""
        return isinstance(self.model.regressions.backend, NumpyBackend)

    # -- acting --------------------------------------------------------------------------------

    def forward_exploration(self, act: ActInput) -> Acted:
        """The arms of the highest upper confidence bound; ties are broken by `act.random`."""
        seen = self.layout.read(act.observations, act.action_mask)
        scores = self._score(seen, self.alpha.item())
        arms = choose(scores.ucb, seen.mask, act.random)
        rows = 0 if len(arms) == 1 else numpy.arange(len(arms))
        extras = {
            "pred_label": scores.pred_label[rows, arms],
            "pred_sigma": scores.pred_sigma[rows, arms],
            "ucb": scores.ucb[rows, arms],
        }
        return _acted(seen, arms, extras)

    def forward_inference(self, act: ActInput) -> Acted:
        """The arms of the highest expected reward; of equal ones, the first."""
        seen = self.layout.read(act.observations, act.action_mask)
        scores = self._score(seen, 0.0)
        return _acted(seen, choose(scores.ucb, seen.mask, None), {})

    def choose(
        self, observations: Any, random: numpy.random.Generator, action_mask: Any = None
    ) -> Any:
        """The arms to try next, one per row: `forward_exploration` without its wrapping."""
        act = ActInput(observations, action_mask=action_mask, random=random)
        return self.forward_exploration(act).actions

    def score(self, observations: Any, alpha: float | None = None) -> Scores:
        """Expected reward, its deviation and upper bound for every arm of every row."""
        seen = self.layout.read(observations)
        scores = self._score(seen, self.alpha.item() if alpha is None else alpha)
        return Scores(*map(torch.from_numpy, scores)) if seen.as_tensors else scores

    def set_alpha(self, alpha: float) -> None:
        """Widen or narrow the bound from now on."""
        if self.alpha.item() != alpha:
            self.alpha.fill_(alpha)

    def _score(self, seen: Seen, alpha: float) -> Scores:
        model = self.model
        mean, spread = model.score(seen)
        sigma = spread**0.5
        to_numpy = model.regressions.backend.to_numpy
        mean, sigma = to_numpy(mean), to_numpy(sigma)
        ucb = mean + alpha * sigma
        # One sum finds a NaN or an infinity among the features of any arm.
        if not math.isfinite(numpy.add.reduce(ucb, axis=None)):
            raise bad_values({"context": seen.context, "arms": seen.arms})
        return Scores(mean, sigma, ucb)

    # -- learning ------------------------------------------------------------------------------

    def update(self, observations: Any, actions: Any, rewards: Any, weights: Any = None) -> None:
        """Learn what the chosen arms earned; a row of weight w counts as w such rows."""
        self._learn(self._lesson(observations, actions, rewards, weights))

    def update_params(
        self, x: Any, y: Any, weight: Any = None, arms: Any = None, z: Any = None
    ) -> None:
        """Learn rows of the regression itself: x (n, d), label y (n,), weight (n,).

        A disjoint model needs the arm of each row, a hybrid one also what arms share, z (n, k).
        """
        columns = {"x": x, "z": z, "y": y, "weight": weight}
        self._learn(lesson_of_params(self.model, Rows(x, arms, z), columns))

    def statistics(
        self, observations: Any, actions: Any, rewards: Any, weights: Any = None
    ) -> list[Tensor]:
        """The sums of these rows, to be added to those of other learners and absorbed."""
        sums = self._lesson(observations, actions, rewards, weights).sums()
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

    def _lesson(self, observations: Any, actions: Any, rewards: Any, weights: Any) -> Lesson:
        return lesson_of_choices(
            self.model, self.layout, self.layout.read(observations), actions, rewards, weights
        )

    def _learn(self, lesson: Lesson) -> None:
        if lesson.rows <= self.model.few:
            lesson.learn_rows()
        else:
            self.model.regressions.absorb(lesson.sums().arrays(), lesson.rows)


def _acted(seen: Seen, arms: Any, extras: dict[str, Any]) -> Acted:
    """Tensors for those who gave tensors."""
    if seen.as_tensors:
        arms = torch.from_numpy(arms)
        extras = {name: torch.from_numpy(one) for name, one in extras.items()}
    return Acted(arms, extras=extras)
