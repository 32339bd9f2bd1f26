"""Small algorithms to check add-ons with, and to derive plugins of tests from."""

from __future__ import annotations

import copy
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
from rlplug.feeds import Feed, Replay, Rollout, Stream

Space = gymnasium.Space[Any]


@attrs.frozen(kw_only=True)
class PolicyGradientConfig:
    """Options of PolicyGradient."""

    learning_rate: float = option(0.003, "Learning rate of Adam.", above(0), schedulable=True)
    gamma: float = option(0.99, "Discount factor.", between(0, 1))
    ent_coef: float = option(0.01, "Entropy coefficient.", at_least(0), schedulable=True)
    vf_coef: float = option(0.5, "Value loss coefficient.", at_least(0))
    width: int = option(32, "Width of the hidden layers.", at_least(1))


class _FloatModule(Module):
    """A module of networks that take floats."""

    def floats(self, observations: Any) -> Tensor:
        """Observations in the dtype and on the device of the weights."""
        weight = next(self.parameters())
        return torch.as_tensor(observations, dtype=weight.dtype, device=weight.device)


class PolicyGradientModule(_FloatModule):
    """Policy and value networks with one hidden layer each."""

    def __init__(self, inputs: int, actions: int, width: int) -> None:
        super().__init__()
        self.actor = _network(inputs, width, actions)
        self.critic = _network(inputs, width, 1)

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

    @torch.no_grad()
    def forward_exploration(self, act: ActInput) -> Acted:
        """Samples from the policy."""
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
        return {"log_probs": logits.log_softmax(1), "values": self.values(batch["observations"])}


class _Small(Algorithm):
    """Learns from each step once, in one-dimensional Box observations and Discrete actions."""

    def feed(self) -> Feed:
        """Each step once."""
        return Stream()

    def supports(self, observation_space: Space, action_space: Space) -> str | None:
        """One-dimensional Box observations and Discrete actions."""
        flat = isinstance(observation_space, Box) and len(observation_space.shape) == 1
        if not flat:
            return f"it needs a Box of one dimension to observe, found {observation_space}"
        if not isinstance(action_space, Discrete) or action_space.start != 0:
            return f"it needs Discrete actions counted from 0, found {action_space}"
        return None


class PolicyGradient(_Small):
    """Actor-critic with one-step advantages."""

    Config: ClassVar[type[Any]] = PolicyGradientConfig

    def build(
        self, observation_space: Space, action_space: Space, config: PolicyGradientConfig
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
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        terms = {
            "policy_loss": -(chosen * batch["advantages"]).mean(),
            "value_loss": config.vf_coef * ((fwd_out["values"] - batch["targets"]) ** 2).mean(),
            "entropy_loss": -config.ent_coef * entropy,
        }
        return Loss(sum(terms.values(), torch.zeros_like(entropy)), terms=terms)


class RolloutGradient(PolicyGradient):
    """Actor-critic on rollouts: batches with fragments, without `next_observations`."""

    def feed(self) -> Rollout:
        """Two epochs over eight steps of every environment."""
        return Rollout(n_steps=8, batch_size=0, n_epochs=2)

    def prepare_batch(
        self, module: PolicyGradientModule, config: PolicyGradientConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """One-step targets and advantages, from one pass over the extended fragments."""
        extended = batch.extended()
        values, following = extended.split(module.values(extended["observations"]))
        targets = batch["rewards"] + config.gamma * following * ~batch["terminated"]
        return {"targets": targets, "advantages": targets - values}


@attrs.frozen(kw_only=True)
class QLearningConfig:
    """Options of QLearning."""

    learning_rate: float = option(0.001, "Learning rate of Adam.", above(0), schedulable=True)
    gamma: float = option(0.99, "Discount factor.", between(0, 1))
    epsilon: float = option(0.2, "Probability of a random action.", between(0, 1), schedulable=True)
    double: bool = option(True, "Double Q-learning.")
    target_update_interval: int = option(100, "Updates between target updates.", at_least(1))
    width: int = option(32, "Width of the hidden layer.", at_least(1))


class QLearningModule(_FloatModule):
    """Q-network and target network."""

    epsilon: Tensor
    updates: Tensor

    def __init__(self, inputs: int, actions: int, width: int, epsilon: float) -> None:
        super().__init__()
        self.actions = actions
        self.q = _network(inputs, width, actions)
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("epsilon", torch.tensor(epsilon))
        self.register_buffer("updates", torch.tensor(0))

    def greedy(self, observations: Any, mask: Any = None) -> Any:
        """The allowed actions with the highest values."""
        values = self.q(self.floats(observations)).cpu().numpy()
        return _allowed_only(values, mask).argmax(1)

    @torch.no_grad()
    def forward_exploration(self, act: ActInput) -> Acted:
        """Epsilon-greedy among the allowed actions."""
        actions = self.greedy(act.observations, act.action_mask)
        return Acted(_epsilon_greedy(act, actions, self.actions, float(self.epsilon)))

    @torch.no_grad()
    def forward_inference(self, act: ActInput) -> Acted:
        """The greedy action."""
        return Acted(self.greedy(act.observations, act.action_mask))

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Q-values of all actions."""
        return {"q_values": self.q(self.floats(batch["observations"]))}


class QLearning(_Small):
    """One-step Q-learning with a target network, without replay."""

    Config: ClassVar[type[Any]] = QLearningConfig

    def build(
        self, observation_space: Space, action_space: Space, config: QLearningConfig
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


class ReplayQLearning(QLearning):
    """Q-learning from a replay buffer: batches with `discounts`, drawn at random."""

    def feed(self) -> Replay:
        """Uniform batches of 32 from the last 2,000 transitions."""
        return Replay(buffer_size=2_000, batch_size=32, learning_starts=32, gamma=self.config.gamma)


class ArmMeansModule(Module):
    """Counts and summed rewards of each action."""

    counts: Tensor
    sums: Tensor

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(actions, dtype=torch.float64))
        self.register_buffer("sums", torch.zeros(actions, dtype=torch.float64))

    def means(self) -> Tensor:
        """The mean reward of each action; 0 for those that were never chosen."""
        return self.sums / self.counts.clamp(min=1)

    def forward_exploration(self, act: ActInput) -> Acted:
        """Every fifth action at random, among the allowed ones."""
        actions = self.forward_inference(act).actions
        return Acted(_epsilon_greedy(act, actions, len(self.counts), 0.2))

    def forward_inference(self, act: ActInput) -> Acted:
        """The allowed action with the highest mean."""
        rows = numpy.tile(self.means().cpu().numpy(), (len(act.observations), 1))
        return Acted(_allowed_only(rows, act.action_mask).argmax(1))


class ArmMeans(_Small):
    """Plays the action with the highest mean reward, whatever it observes: without gradients."""

    def build(self, action_space: Space) -> ArmMeansModule:
        """Counts and sums of zero."""
        return ArmMeansModule(flatdim(action_space))

    def configure_optimizers_for_module(self) -> None:
        """No optimizers."""

    def additional_update(self, module: ArmMeansModule, batch: Batch) -> Mapping[str, Any]:
        """Add the batch to counts and sums."""
        actions = batch["actions"].long()
        module.counts.index_add_(0, actions, torch.ones_like(actions, dtype=torch.float64))
        module.sums.index_add_(0, actions, batch["rewards"].double())
        return {"best_mean": module.means().max()}


def _network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))


def _allowed_only(scores: Any, mask: Any) -> Any:
    """The scores, those of masked actions below all others."""
    return scores if mask is None else numpy.where(numpy.asarray(mask) != 0, scores, -numpy.inf)


def _epsilon_greedy(act: ActInput, actions: Any, count: int, epsilon: float) -> Any:
    """The actions, some of them replaced by random ones that are allowed."""
    scores = _allowed_only(act.random.random((len(actions), count)), act.action_mask)
    return numpy.where(act.random.random(len(actions)) < epsilon, scores.argmax(1), actions)
