"""Epsilon-greedy over mean rewards per action: an algorithm without gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy
import torch
from gymnasium.spaces import flatdim
from torch import Tensor

from rlplug import Acted, ActInput, Algorithm, Batch, Module, option
from rlplug.config import between
from rlplug.feeds import Stream
from rlplug.testing.algorithms.policy_gradient import flat_and_discrete

__all__ = ["ArmMeans", "ArmMeansConfig", "ArmMeansModule"]


@attrs.frozen(kw_only=True)
class ArmMeansConfig:
    """Options of ArmMeans."""

    epsilon: float = option(0.2, "Probability of a random action.", between(0, 1))


class ArmMeansModule(Module):
    """Counts and summed rewards of each action."""

    counts: Tensor
    sums: Tensor

    def __init__(self, actions: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.register_buffer("counts", torch.zeros(actions, dtype=torch.float64))
        self.register_buffer("sums", torch.zeros(actions, dtype=torch.float64))

    def greedy(self, n: int, mask: Any) -> Any:
        """The allowed action with the highest mean, n times."""
        means = (self.sums / self.counts.clamp(min=1)).cpu().numpy()
        rows = numpy.tile(means, (n, 1))
        return (rows if mask is None else numpy.where(numpy.asarray(mask), rows, -1e9)).argmax(1)

    def forward_exploration(self, act: ActInput) -> Acted:
        """Epsilon-greedy among the allowed actions."""
        n = len(act.observations)
        scores = act.random.random((n, len(self.counts)))
        if act.action_mask is not None:
            scores = numpy.where(numpy.asarray(act.action_mask), scores, -1.0)
        random = act.random.random(n) < self.epsilon
        return Acted(numpy.where(random, scores.argmax(1), self.greedy(n, act.action_mask)))

    def forward_inference(self, act: ActInput) -> Acted:
        """The greedy action."""
        return Acted(self.greedy(len(act.observations), act.action_mask))


class ArmMeans(Algorithm):
    """Plays the action with the highest mean reward, whatever it observes."""

    Config: ClassVar[type[Any]] = ArmMeansConfig
    default_env: ClassVar[str] = "LinearBandit-v0"

    def feed(self) -> Stream:
        """Each step once."""
        return Stream()

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """One-dimensional Box observations and Discrete actions."""
        return flat_and_discrete(observation_space, action_space)

    def build(self, action_space: gymnasium.Space[Any], config: ArmMeansConfig) -> ArmMeansModule:
        """Counts and sums of zero."""
        return ArmMeansModule(flatdim(action_space), config.epsilon)

    def configure_optimizers_for_module(self) -> None:
        """No optimizers."""

    def additional_update(self, module: ArmMeansModule, batch: Batch) -> Mapping[str, Any]:
        """Add the batch to counts and sums."""
        actions = batch["actions"].long()
        module.counts.index_add_(0, actions, torch.ones_like(actions, dtype=torch.float64))
        module.sums.index_add_(0, actions, batch["rewards"].double())
        return {"best_mean": (module.sums / module.counts.clamp(min=1)).max()}
