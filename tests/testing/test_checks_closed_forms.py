"""Checks of what is learned in closed form, by a small algorithm and wrong ones of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy
import torch
from torch import Tensor

from rlplug import Acted, ActInput, Algorithm, Batch, Module, option
from rlplug.feeds import Feed, Stream
from tests.faulty import passed_by, passes


@attrs.frozen(kw_only=True)
class MeansConfig:
    """Options of Means."""

    strength: float = option(1.0, "Rows of reward 0 that each action begins with.")
    discount: float = option(1.0, "Of what was learned, for each row after it.")
    greed: float = option(0.1, "Share of random actions.")


class MeansModule(Module):
    """Sums of rewards and counts of each action."""

    sums: Tensor
    counts: Tensor

    def __init__(self, actions: int, config: Any) -> None:
        super().__init__()
        self.greed, self.strength = config.greed, config.strength
        self.register_buffer("sums", torch.zeros(actions, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(actions, dtype=torch.float64))

    def means(self, n: int) -> Any:
        """The same for all rows."""
        means = (self.sums / (self.counts + self.strength)).numpy()
        return numpy.broadcast_to(means, (n, len(means)))

    def best(self, act: ActInput) -> Any:
        """The best of the allowed actions."""
        means = self.means(len(act.observations))
        if act.action_mask is not None:
            means = numpy.where(numpy.asarray(act.action_mask) != 0, means, -numpy.inf)
        return means.argmax(1)

    def forward_exploration(self, act: ActInput) -> Acted:
        actions = self.best(act)
        scores = act.random.random((len(actions), len(self.sums)))
        if act.action_mask is not None:
            scores = numpy.where(numpy.asarray(act.action_mask) != 0, scores, -1.0)
        random = act.random.random(len(actions)) < self.greed
        actions = numpy.where(random, scores.argmax(1), actions)
        told = self.means(len(actions))[numpy.arange(len(actions)), actions]
        return Acted(actions, extras={"score": told})

    def forward_inference(self, act: ActInput) -> Acted:
        return Acted(self.best(act))


class Means(Algorithm):
    """The mean reward of each action, of the environments with Box observations."""

    Config: ClassVar[type[Any]] = MeansConfig
    default_env: ClassVar[str] = "CartPole-v1"
    reference: ClassVar[str] = f"{__name__}:plain_means"

    def feed(self) -> Feed:
        return Stream(steps_per_update=1, one_step_episodes=True)

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        flat = len(getattr(observation_space, "shape", None) or ()) == 1
        return (
            None
            if flat and getattr(action_space, "n", 0) == 3 and (not hasattr(observation_space, "n"))
            else "a Box and three actions"
        )

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        return MeansModule(int(action_space.n), config)

    def weights_of(self, batch: Batch) -> Tensor:
        """How often each row counts."""
        if "weights" in batch:
            return batch["weights"].double()
        return torch.ones(batch.rows, dtype=torch.float64)

    def discount_of(self, config: Any) -> float:
        """By which each row makes earlier ones count less."""
        return float(config.discount)

    def additional_update(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Any]:
        rewards, weights = batch["rewards"].double(), self.weights_of(batch)
        for row, action in enumerate(batch["actions"].long().tolist()):
            kept = self.discount_of(config)
            module.sums *= kept
            module.counts *= kept
            module.sums[action] += weights[row] * rewards[row]
            module.counts[action] += weights[row]
        return {"reward": self.metric(rewards), "rows": batch.rows}

    def metric(self, rewards: Tensor) -> Tensor:
        """What is reported of rewards."""
        return rewards.mean()


DISCOUNTED: dict[str, Any] = {"variants": ({"discount": 0.9},)}


def test_rows_have_an_order_where_later_ones_count_more() -> None:
    passes("rows_are_learned_one_by_one", Means)
    assert passed_by("rows_are_learned_one_by_one", Means, options={"discount": 0.9}) == (
        "its rows are ordered, or its updates are random"
    )


# -- references ------------------------------------------------------------------------------------
