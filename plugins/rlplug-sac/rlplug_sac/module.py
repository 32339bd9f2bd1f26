"""The modules of SAC and TD3: an actor, two critics, and their target networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug import Acted, ActInput, Batch, Module
from rlplug.batch.nested import first_leaf
from rlplug.nn import (
    Body,
    Distribution,
    Network,
    NetworkOptions,
    PolicyHead,
    PolyakTarget,
    QHead,
    SquashedGaussian,
    Streams,
    log_prob_of,
    make_distribution,
    probabilities_of,
)
from rlplug.spaces import AnySpace
from rlplug_sac.actions import BoxActions
from rlplug_sac.config import SACConfig, TD3Config

__all__ = ["Critics", "SACModule", "TD3Module"]

_ENTROPY_SHARE = 0.89
"""Of the largest entropy of Discrete actions: what a learned temperature aims at."""


class Critics(nn.Module):
    """Two critics with an encoder in common.

    For Box actions, each values the given ones, shape (n,); for Discrete ones, all of them, shape
    (n, actions).
    """

    def __init__(
        self,
        observation_space: AnySpace,
        action_space: spaces.Box | spaces.Discrete,
        config: SACConfig | TD3Config,
    ) -> None:
        super().__init__()
        options = NetworkOptions(net_arch=(), ortho_init=config.ortho_init, encoder=config.encoder)
        self.body = Body(observation_space, options)
        inputs, outputs = self.body.out_features, 1
        if isinstance(action_space, spaces.Box):
            inputs += math.prod(action_space.shape)
        else:
            outputs = int(action_space.n)
        streams = Streams(
            net_arch=config.net_arch, activation=config.activation, ortho_init=config.ortho_init
        )
        self.first = QHead(inputs, outputs, streams)
        self.second = QHead(inputs, outputs, streams)

    def forward(self, observations: Any, actions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The values that both critics give; actions are scaled to [-1, 1]."""
        inputs = self.body(observations)
        if actions is None:
            return self.first(inputs), self.second(inputs)
        inputs = torch.cat([inputs, actions], 1)
        return self.first(inputs).squeeze(1), self.second(inputs).squeeze(1)

    def value(self, observations: Any, actions: Tensor) -> Tensor:
        """The values that the first critic gives."""
        values: Tensor = self.first(torch.cat([self.body(observations), actions], 1))
        return values.squeeze(1)


class SACModule(Module):
    """A stochastic actor, two critics with a target network, and the entropy coefficient."""

    fixed_ent_coef: Tensor

    def __init__(
        self,
        observation_space: AnySpace,
        action_space: spaces.Box | spaces.Discrete,
        config: SACConfig,
    ) -> None:
        super().__init__()
        self.distribution: Distribution = make_distribution(action_space, squash=True)
        body = make_body(observation_space, config)
        head = PolicyHead(
            body.out_features,
            self.distribution,
            state_dependent_std=True,
            ortho_init=config.ortho_init,
        )
        self.actor = Network(body, head)
        self.critics = Critics(observation_space, action_space, config)
        self.target = PolyakTarget(config.tau, config.target_update_interval).init(self.critics)
        self.box: BoxActions | None = None
        self.first_action = 0
        if isinstance(action_space, spaces.Box):
            self.box = BoxActions(action_space)
            size = math.prod(action_space.shape)
            # Of scaled actions: what critics see, and what entropy is measured by.
            self.unit = SquashedGaussian(spaces.Box(-1, 1, (size,)))
        else:
            self.first_action = int(action_space.start)
        self.learning_starts = config.learning_starts
        self.target_entropy = config.target_entropy
        self.log_ent_coef: nn.Parameter | None = None
        if config.ent_coef == "auto":
            self.log_ent_coef = nn.Parameter(torch.tensor(math.log(config.ent_coef_init)))
        else:
            self.register_buffer("fixed_ent_coef", torch.tensor(float(config.ent_coef)))

    def forward_exploration(self, act: ActInput) -> Acted:
        """Actions sampled from the policy; before learning starts, uniformly."""
        extras: dict[str, Any] = {}
        mask = act.action_mask
        if self.box is not None and act.timestep < self.learning_starts:
            actions = self.box.uniform(len(first_leaf(act.observations)), act.random)
            if act.wants_log_prob:
                extras["log_prob"] = self.box.uniform_log_prob(actions)
            return Acted(actions, extras=extras)
        parameters = self._exploring(act)
        actions = self.distribution.sample(parameters, act.random, mask)
        if act.wants_log_prob:
            extras["log_prob"] = log_prob_of(self.distribution, parameters, actions, mask)
        return Acted(actions, extras=extras)

    def action_probabilities(self, act: ActInput) -> Any:
        """Probability of each discrete action, (n, actions)."""
        if self.box is not None:
            return None
        return probabilities_of(self._exploring(act), act.action_mask)

    def action_log_prob(self, act: ActInput, actions: Any) -> Any:
        """Log-probabilities of actions; log-densities of continuous ones."""
        if self.box is not None and act.timestep < self.learning_starts:
            return self.box.uniform_log_prob(actions)
        return log_prob_of(self.distribution, self._exploring(act), actions, act.action_mask)

    def forward_inference(self, act: ActInput) -> Acted:
        """The squashed mean, or the most likely action."""
        parameters, _ = self.actor.act(act.observations)
        return Acted(self.distribution.mode(parameters, act.action_mask))

    def forward_export(self, act: ActInput) -> Acted:
        """The same in torch."""
        parameters, _ = self.actor.step(act.observations)
        return Acted(self.distribution.tensor_mode(parameters, act.action_mask))

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """`parameters` of the policy, and what both critics say: `q1` and `q2`.

        For Box actions the values of those in the batch, for Discrete ones those of all actions.
        """
        observations = batch["observations"]
        taken = None if self.box is None else self.box.scaled(batch["actions"])
        q1, q2 = self.critics(observations, taken)
        return {"parameters": self.actor(observations), "q1": q1, "q2": q2}

    def _exploring(self, act: ActInput) -> Any:
        """The parameters that discrete actions are drawn by, and others once learning started."""
        if act.timestep < self.learning_starts and self.box is None:
            return numpy.zeros((len(first_leaf(act.observations)), self.distribution.size), "f4")
        parameters, _ = self.actor.act(act.observations, explore=True)
        return parameters

    def temperature(self) -> Tensor:
        """The entropy coefficient, without gradients."""
        if self.log_ent_coef is None:
            return self.fixed_ent_coef
        return self.log_ent_coef.detach().exp()

    def excess_entropy(self, entropy: Tensor, mask: Tensor | None) -> Tensor:
        """By how much the entropy of each row's policy is above the one that is aimed at.

        Where a mask allows fewer actions, less is aimed at.
        """
        if self.target_entropy != "auto":
            return entropy - self.target_entropy
        if self.box is not None:
            return entropy + self.distribution.size // 2
        if mask is None:
            return entropy - _ENTROPY_SHARE * math.log(self.distribution.size)
        return entropy - _ENTROPY_SHARE * mask.to(entropy.dtype).sum(1).log()


class TD3Module(Module):
    """A deterministic actor and two critics, each with a target network."""

    def __init__(
        self, observation_space: AnySpace, action_space: spaces.Box, config: TD3Config
    ) -> None:
        super().__init__()
        self.box = BoxActions(action_space)
        body = make_body(observation_space, config)
        last = nn.Linear(body.out_features, math.prod(action_space.shape))
        self.actor = Network(body, nn.Sequential(last, nn.Tanh()))
        self.critics = Critics(observation_space, action_space, config)
        delay = self.policy_delay = config.policy_delay
        self.actor_target = PolyakTarget(config.tau, delay).init(self.actor)
        self.critics_target = PolyakTarget(config.tau, delay).init(self.critics)
        self.learning_starts = config.learning_starts
        self.action_noise = config.action_noise

    def forward_exploration(self, act: ActInput) -> Acted:
        """Actions with Gaussian noise; before learning starts, uniform ones."""
        if act.timestep < self.learning_starts:
            return Acted(self.box.uniform(len(first_leaf(act.observations)), act.random))
        scaled, _ = self.actor.act(act.observations, explore=True)
        noise = self.action_noise * act.random.standard_normal(scaled.shape)
        return Acted(self.box.for_env(numpy.clip(scaled + noise, -1, 1)))

    def forward_inference(self, act: ActInput) -> Acted:
        """The actor's actions."""
        return Acted(self.box.for_env(self.actor.act(act.observations)[0]))

    def forward_export(self, act: ActInput) -> Acted:
        """The same in torch."""
        return Acted(self.box.tensor_for_env(self.actor.step(act.observations)[0]))

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """What both critics say of the actions in the batch: `q1` and `q2`."""
        q1, q2 = self.critics(batch["observations"], self.box.scaled(batch["actions"]))
        return {"q1": q1, "q2": q2}

    def is_actor_due(self) -> bool:
        """Whether the actor learns in this update: with the one after which targets follow it."""
        return (int(self.critics_target.clock) + 1) % self.policy_delay == 0


def make_body(observation_space: AnySpace, config: SACConfig | TD3Config) -> Body:
    """Encoder and hidden layers of an actor."""
    options = NetworkOptions(
        net_arch=config.net_arch,
        activation=config.activation,
        ortho_init=config.ortho_init,
        encoder=config.encoder,
    )
    return Body(observation_space, options)
