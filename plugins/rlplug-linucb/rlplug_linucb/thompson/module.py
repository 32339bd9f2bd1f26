"""LinTSModule: chooses arms by a draw from the posterior, and learns in closed form."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs
import numpy
import torch

from rlplug import Acted, ActInput, Module
from rlplug.config.schedule import resolve
from rlplug_linucb.config import LinearOptions, LinUCBConfig
from rlplug_linucb.layout import Layout, Seen
from rlplug_linucb.module import LinUCBModule
from rlplug_linucb.thompson.config import LinTSConfig
from rlplug_linucb.thompson.posterior import draw

__all__ = ["Draws", "LinTSModule"]


class Draws(NamedTuple):
    """What every arm is worth, each of shape (n, arms)."""

    pred_label: Any
    """The expected reward."""
    pred_sigma: Any
    """Its standard deviation, for noise of unit variance."""
    sampled: Any
    """The expected reward under drawn parameters."""


class LinTSModule(Module):
    """A linear bandit that chooses by Thompson sampling: score, choose, update."""

    def __init__(self, layout: Layout, config: LinTSConfig | None = None) -> None:
        super().__init__()
        config = resolve(LinTSConfig() if config is None else config, 0)
        common = {field.name: getattr(config, field.name) for field in attrs.fields(LinearOptions)}
        # How wide it explores is what alpha is, in the same unit.
        self.bandit = LinUCBModule(layout, LinUCBConfig(alpha=config.v, **common))

    def forward_exploration(self, act: ActInput) -> Acted:
        """The best arms under parameters drawn from the posterior, by `act.random`."""
        bandit = self.bandit
        seen = bandit.layout.read(act.observations, act.action_mask)
        return bandit.pick(seen, self._draw(seen, act.random), act.random, "sampled")

    def forward_inference(self, act: ActInput) -> Acted:
        """The arms of the highest expected reward; of equal ones, the first."""
        return self.bandit.forward_inference(act)

    def choose(
        self, observations: Any, random: numpy.random.Generator, action_mask: Any = None
    ) -> Any:
        """The arms to try next, one per row: `forward_exploration` without its wrapping."""
        act = ActInput(observations, action_mask=action_mask, random=random)
        return self.forward_exploration(act).actions

    def score(self, observations: Any, random: numpy.random.Generator) -> Draws:
        """Expected reward, its deviation and a draw of it for every arm of every row."""
        seen = self.bandit.layout.read(observations)
        draws = Draws(*(one.reshape(seen.rows, -1) for one in self._draw(seen, random)))
        return Draws(*map(torch.from_numpy, draws)) if seen.as_tensors else draws

    def update(self, observations: Any, actions: Any, rewards: Any, weights: Any = None) -> None:
        """Learn what the chosen arms earned; a row of weight w counts as w such rows."""
        self.bandit.update(observations, actions, rewards, weights)

    # What is not finite is found by its results, and told in words.
    @numpy.errstate(over="ignore", invalid="ignore")
    def _draw(self, seen: Seen, random: numpy.random.Generator) -> Draws:
        bandit = self.bandit
        model, v = bandit.model, float(bandit.own[0])
        backend = model.regressions.backend
        if v == 0.0:
            mean, spread = model.score(seen)
            away = 0.0 * spread
        else:
            mean, spread, away = draw(model, seen, random)
        sigma = backend.xp.sqrt(spread)
        return Draws(*map(backend.to_numpy, (mean, sigma, mean + v * away)))
