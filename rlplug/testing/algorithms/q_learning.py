"""Q-learning with a target network, without replay."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy
import torch
from gymnasium.spaces import flatdim
from torch import Tensor, nn

from rlplug import Acted, ActInput, Algorithm, Batch, Loss, Module, option
from rlplug.config import above, at_least, between
from rlplug.feeds import Feed, Stream
from rlplug.testing.algorithms.policy_gradient import flat_and_discrete

__all__ = ["QLearning", "QLearningConfig", "QLearningModule"]


@attrs.frozen(kw_only=True)
class QLearningConfig:
    """Options of QLearning."""

    learning_rate: float = option(0.001, "Learning rate of Adam.", above(0), schedulable=True)
    gamma: float = option(0.99, "Discount factor.", between(0, 1))
    epsilon: float = option(0.2, "Probability of a random action.", between(0, 1), schedulable=True)
    double: bool = option(True, "Double Q-learning.")
    target_update_interval: int = option(100, "Updates between target updates.", at_least(1))
    width: int = option(32, "Width of the hidden layer.", at_least(1))
    steps_per_update: int = option(1, "Steps of each environment per update.", at_least(1))


class QLearningModule(Module):
    """Q-network and target network."""

    epsilon: Tensor
    updates: Tensor

    def __init__(self, inputs: int, actions: int, width: int, epsilon: float) -> None:
        super().__init__()
        self.actions = actions
        self.q = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, actions))
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("epsilon", torch.tensor(epsilon))
        self.register_buffer("updates", torch.tensor(0))

    def floats(self, observations: Any) -> Tensor:
        """Observations in the dtype and on the device of the weights."""
        weight = next(self.parameters())
        return torch.as_tensor(observations, dtype=weight.dtype, device=weight.device)

    def greedy(self, observations: Any, mask: Any = None) -> Any:
        """The allowed actions with the highest values."""
        values = self.q(self.floats(observations)).cpu().numpy()
        if mask is not None:
            values = numpy.where(_allowed(mask), values, -numpy.inf)
        return values.argmax(1)

    @torch.no_grad()
    def forward_exploration(self, act: ActInput) -> Acted:
        """Epsilon-greedy among the allowed actions."""
        actions = self.greedy(act.observations, act.action_mask)
        scores = act.random.random((len(actions), self.actions))
        if act.action_mask is not None:
            scores = numpy.where(_allowed(act.action_mask), scores, -1.0)
        random = act.random.random(len(actions)) < float(self.epsilon)
        return Acted(numpy.where(random, scores.argmax(1), actions))

    @torch.no_grad()
    def forward_inference(self, act: ActInput) -> Acted:
        """The greedy action."""
        return Acted(self.greedy(act.observations, act.action_mask))

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Q-values of all actions."""
        return {"q_values": self.q(self.floats(batch["observations"]))}


class QLearning(Algorithm):
    """One-step Q-learning."""

    Config: ClassVar[type[Any]] = QLearningConfig
    default_env: ClassVar[str] = "CartPole-v1"
    defaults: ClassVar[Mapping[str, Any]] = {"sampling.num_envs": 8}

    def feed(self) -> Feed:
        """Each step once."""
        return Stream(steps_per_update=self.config.steps_per_update)

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """One-dimensional Box observations and Discrete actions."""
        return flat_and_discrete(observation_space, action_space)

    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: QLearningConfig,
    ) -> QLearningModule:
        """The module with both networks."""
        inputs, actions = flatdim(observation_space), flatdim(action_space)
        return QLearningModule(inputs, actions, config.width, config.epsilon)

    def prepare_batch(
        self, module: QLearningModule, config: QLearningConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """One-step TD targets; truncated steps bootstrap, terminated ones do not."""
        after = module.floats(batch["next_observations"])
        values = module.target(after)
        best = (module.q(after) if config.double else values).argmax(1, keepdim=True)
        future = values.gather(1, best)[:, 0] * ~batch["terminated"]
        return {"targets": batch["rewards"] + config.gamma * future}

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        """Mean squared TD error."""
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])[:, 0]
        error = chosen - batch["targets"]
        return Loss((error**2).mean(), metrics={"q_mean": chosen.mean()})

    def additional_update(self, module: QLearningModule, config: QLearningConfig) -> None:
        """Set epsilon from its schedule, and update the target network."""
        module.epsilon.fill_(config.epsilon)
        module.updates += 1
        if int(module.updates) % config.target_update_interval == 0:
            module.target.load_state_dict(module.q.state_dict())


def _allowed(mask: Any) -> Any:
    return numpy.asarray(mask) != 0
