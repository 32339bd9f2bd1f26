"""One-step actor-critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy
import torch
from gymnasium.spaces import Box, Discrete, flatdim
from torch import Tensor, nn

from rlplug import Acted, ActInput, Algorithm, Batch, Loss, Module, option
from rlplug.config import above, at_least, between
from rlplug.feeds import Feed, Stream

__all__ = ["PolicyGradient", "PolicyGradientConfig", "PolicyGradientModule"]


@attrs.frozen(kw_only=True)
class PolicyGradientConfig:
    """Options of PolicyGradient."""

    learning_rate: float = option(0.003, "Learning rate of Adam.", above(0), schedulable=True)
    gamma: float = option(0.99, "Discount factor.", between(0, 1))
    ent_coef: float = option(0.01, "Entropy coefficient.", at_least(0), schedulable=True)
    vf_coef: float = option(0.5, "Value loss coefficient.", at_least(0))
    width: int = option(32, "Width of the hidden layers.", at_least(1))
    steps_per_update: int = option(1, "Steps of each environment per update.", at_least(1))


class PolicyGradientModule(Module):
    """Policy and value networks with one hidden layer each."""

    def __init__(self, inputs: int, actions: int, width: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, actions))
        self.critic = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 1))

    def logits(self, observations: Any, mask: Any = None) -> Tensor:
        """Shape (n, actions); the lowest finite number for masked actions."""
        logits: Tensor = self.actor(self.floats(observations))
        if mask is None:
            return logits
        allowed = torch.as_tensor(mask, device=logits.device) != 0
        return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)

    def values(self, observations: Any) -> Tensor:
        """Shape (n,)."""
        values: Tensor = self.critic(self.floats(observations))[:, 0]
        return values

    def floats(self, observations: Any) -> Tensor:
        """Observations in the dtype and on the device of the weights."""
        weight = next(self.parameters())
        return torch.as_tensor(observations, dtype=weight.dtype, device=weight.device)

    @torch.no_grad()
    def forward_exploration(self, act: ActInput) -> Acted:
        """GlobalGenerators from the policy."""
        logits = self.logits(act.observations, act.action_mask).cpu().double().numpy()
        # Gumbel-max trick: the argmax is a sample from the softmax.
        noise = -numpy.log(-numpy.log(act.random.random(logits.shape) + 1e-300) + 1e-300)
        return Acted((logits + noise).argmax(1))

    @torch.no_grad()
    def forward_inference(self, act: ActInput) -> Acted:
        """The most probable action."""
        return Acted(self.logits(act.observations, act.action_mask).argmax(1).cpu().numpy())

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Log-probabilities of all actions, and values."""
        logits = self.logits(batch["observations"], batch.get("action_mask"))
        return {
            "log_probs": logits.log_softmax(1),
            "values": self.values(batch["observations"]),
        }


class PolicyGradient(Algorithm):
    """Actor-critic with one-step advantages."""

    Config: ClassVar[type[Any]] = PolicyGradientConfig
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
        config: PolicyGradientConfig,
    ) -> PolicyGradientModule:
        """The module with both networks."""
        inputs, actions = flatdim(observation_space), flatdim(action_space)
        return PolicyGradientModule(inputs, actions, config.width)

    def prepare_batch(
        self, module: PolicyGradientModule, config: PolicyGradientConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """One-step TD targets and advantages."""
        future = module.values(batch["next_observations"]) * ~batch["terminated"]
        targets = batch["rewards"] + config.gamma * future
        return {"targets": targets, "advantages": targets - module.values(batch["observations"])}

    def compute_loss_for_module(
        self, config: PolicyGradientConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
    ) -> Loss:
        """Policy loss, value loss and entropy bonus."""
        log_probs = fwd_out["log_probs"]
        chosen = log_probs.gather(1, batch["actions"].long()[:, None])[:, 0]
        policy = -(chosen * batch["advantages"]).mean()
        value = ((fwd_out["values"] - batch["targets"]) ** 2).mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        terms = {
            "policy_loss": policy,
            "value_loss": config.vf_coef * value,
            "entropy_loss": -config.ent_coef * entropy,
        }
        return Loss(sum(terms.values(), torch.zeros_like(policy)), terms=terms)


def flat_and_discrete(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> str | None:
    """The reason if these are not a one-dimensional Box and Discrete actions from 0."""
    if not isinstance(observation_space, Box) or len(observation_space.shape) != 1:
        return f"it needs a Box of one dimension to observe, found {observation_space}"
    if not isinstance(action_space, Discrete) or action_space.start != 0:
        return f"it needs Discrete actions counted from 0, found {action_space}"
    return None
