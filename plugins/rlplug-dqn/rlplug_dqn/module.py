"""The module of DQN: the action-value network and its target network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rlplug import Acted, ActInput, Batch, Module
from rlplug.nn import (
    Body,
    DistributionalHead,
    FixedTarget,
    Network,
    NetworkOptions,
    NoisyLinear,
    PolyakTarget,
    QHead,
    QuantileHead,
    Streams,
    TargetNetwork,
    masked,
    resample_noise,
)
from rlplug_dqn.config import DQNConfig
from rlplug_dqn.exploration import Exploration, Greedy

__all__ = ["DQNModule"]


class DQNModule(Module):
    """Action values and a target network; acts greedily, or epsilon-greedily to explore."""

    acts_on_tensors = True
    noise: Tensor
    """Seed of the noise of updates and how often it was sampled, so that resumed runs go on."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: spaces.Discrete,
        config: DQNConfig,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.network = make_network(observation_space, int(action_space.n), config)
        self.target: TargetNetwork = make_target(config).init(self.network)
        self.exploration = Exploration.of(config)
        self.n_actions = int(action_space.n)
        self.first_action = int(action_space.start)
        self.is_double = config.double
        self.noisy = config.noisy
        self.register_buffer("noise", torch.tensor([seed, 0]))

    @property
    def head(self) -> QHead:
        """The head of the online network."""
        head = self.network.head
        assert isinstance(head, QHead)
        return head

    def forward_exploration(self, act: ActInput) -> Acted:
        """Epsilon-greedy actions."""
        if self.noisy:
            resample_noise(self.network, act.random)
        greedy: Greedy = self._greedy_in_torch if act.in_torch else self._greedy
        extras: dict[str, Any] = {}
        if act.wants_log_prob:
            best = greedy(act.observations, act.action_mask)
            actions = self.exploration.choose(act, lambda *_: best, self.n_actions)
            extras["log_prob"] = self.exploration.log_prob(act, actions, best, self.n_actions)
        else:
            actions = self.exploration.choose(act, greedy, self.n_actions)
        return Acted(actions + self.first_action if self.first_action else actions, extras=extras)

    def action_probabilities(self, act: ActInput) -> Any:
        """Those of epsilon-greedy, (n, actions); of noisy networks, given noise that is drawn."""
        if self.noisy:
            resample_noise(self.network, act.random)
        best = self._greedy(act.observations, act.action_mask)
        return self.exploration.probabilities(act, best, self.n_actions)

    def forward_inference(self, act: ActInput) -> Acted:
        """Greedy actions."""
        if act.in_torch:
            return self.forward_export(act)
        values, _ = self.network.act(act.observations)
        return Acted(greedy(values, act.action_mask) + self.first_action)

    def forward_export(self, act: ActInput) -> Acted:
        """Greedy actions, in torch."""
        values, _ = self.network.step(act.observations)
        return Acted(masked(values, act.action_mask).argmax(1) + self.first_action)

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """`outputs` of the network for every action, and their `q_values`."""
        outputs = self.network(batch["observations"])
        return {"outputs": outputs, "q_values": self.head.values(outputs)}

    def q_values(self, observations: Any) -> Tensor:
        """The action values of the online network, shape (n, actions)."""
        return self.network.step(observations)[0]

    def indices(self, actions: Tensor) -> Tensor:
        """Actions of the environment as indices of the network's outputs."""
        actions = actions.long()
        return actions - self.first_action if self.first_action else actions

    def reset_noise(self) -> None:
        """Sample new noise for the next update, in both networks."""
        self.noise[1] += 1
        resample_noise(self, numpy.random.default_rng(self.noise.tolist()))

    def _greedy(self, observations: Any, mask: Any) -> Any:
        # nn.Module's attribute lookup would cost as much as one layer, at every step.
        network: Any = self._modules["network"]
        values, _ = network.act(observations, explore=self.noisy)
        return greedy(values, mask)

    def _greedy_in_torch(self, observations: Any, mask: Any) -> Tensor:
        values, _ = self.network.act_on_tensors(observations, explore=self.noisy)
        return masked(values, mask).argmax(1)


def greedy(values: Any, mask: Any) -> Any:
    """The best of the allowed actions of each row."""
    if mask is not None:
        values = numpy.where(mask, values, -numpy.inf)
    return values.argmax(1)


def make_network(observation_space: Space[Any], n_actions: int, config: DQNConfig) -> Network:
    """The network from observations to action values."""
    linear: Any = partial(NoisyLinear, sigma=config.noisy_sigma) if config.noisy else nn.Linear
    shared = len(config.net_arch) - (1 if config.dueling else 0)
    options = NetworkOptions(
        net_arch=config.net_arch[:shared],
        activation=config.activation,
        ortho_init=config.ortho_init,
        encoder=config.encoder,
    )
    body = Body(observation_space, options, linear=linear)
    streams = Streams(
        dueling=config.dueling,
        net_arch=config.net_arch[shared:],
        activation=config.activation,
        ortho_init=config.ortho_init,
        linear=linear,
    )
    return Network(body, make_head(body.out_features, n_actions, streams, config))


def make_head(width: int, n_actions: int, streams: Streams, config: DQNConfig) -> QHead:
    """A head of values, of categorical distributions (C51) or of quantiles (QR-DQN)."""
    if config.distributional:
        return DistributionalHead(
            width,
            n_actions,
            streams,
            atoms=config.n_atoms,
            v_min=config.v_min,
            v_max=config.v_max,
        )
    if config.quantile:
        return QuantileHead(width, n_actions, streams, atoms=config.n_quantiles)
    return QHead(width, n_actions, streams)


def make_target(config: DQNConfig) -> TargetNetwork:
    """Hard updates every `target_update_interval` steps, or Polyak averaging."""
    if config.tau < 1:
        return PolyakTarget(config.tau)
    return FixedTarget(config.target_update_interval, "step")
