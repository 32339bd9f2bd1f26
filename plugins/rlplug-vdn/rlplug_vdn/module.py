"""The module of VDN: the action values of one agent, and what a team's are together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space, spaces
from rlplug_dqn import DQNModule
from rlplug_dqn.module import make_target
from torch import Tensor, nn
from torch.nn import functional

from rlplug import Batch
from rlplug.batch.nested import tree_map
from rlplug.nn import TargetNetwork, make_encoder
from rlplug_vdn.config import VDNConfig

__all__ = ["Mixer", "TeamModule"]


class Mixer(nn.Module):
    """QMIX (Rashid et al. 2018): the value of a team, which grows with that of each agent.

    Weights follow from the state of the environment, and none is negative.
    """

    def __init__(self, state_space: Space[Any], agents: int, width: int) -> None:
        super().__init__()
        self.agents, self.width = agents, width
        self.encoder = make_encoder(state_space, ortho_init=False)
        features: Any = self.encoder.out_features
        self.weights = nn.Linear(features, agents * width)
        self.bias = nn.Linear(features, width)
        self.last_weights = nn.Linear(features, width)
        self.last_bias = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, values: Tensor, state: Any) -> Tensor:
        """Values of the agents, shape (n, agents), to those of teams, (n,)."""
        features = self.encoder(state)
        weights = self.weights(features).abs().reshape(-1, self.agents, self.width)
        mixed = (values[:, :, None] * weights).sum(1) + self.bias(features)
        hidden = functional.elu(mixed)
        total: Tensor = (hidden * self.last_weights(features).abs()).sum(1)
        bias: Tensor = self.last_bias(features)
        return total + bias[:, 0]


class TeamModule(DQNModule):
    """Acts for each agent by itself; what is learned is the value of the team.

    Where there is one agent, it is a team of one, and its observation the state.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: spaces.Discrete,
        config: VDNConfig,
        seed: int = 0,
        training_space: Space[Any] | None = None,
    ) -> None:
        own = config.of_agent()
        super().__init__(observation_space, action_space, own, seed)
        self.is_team = training_space is not None and training_space is not observation_space
        self.agents, state_space = 1, observation_space
        if self.is_team:
            assert isinstance(training_space, spaces.Dict)
            (self.agents,) = training_space["present"].shape or ()
            state_space = training_space.spaces.get("state", state_space)
        self.mixer: Mixer | None = None
        self.output = "q_values"
        """What `forward_train` gives; values of QMIX are what the mixer makes of utilities."""
        if config.mixing == "qmix":
            self.output = "utilities"
            self.mixer = Mixer(state_space, self.agents, config.mixing_width)
            self.mixer_target: TargetNetwork = make_target(own).init(self.mixer)

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """`output` of every action, shape (n, agents, actions); of one agent, (n, actions)."""
        found = self.each(self.network, batch["observations"])
        return {self.output: found if self.is_team else found.squeeze(1)}

    def each(self, network: nn.Module, observations: Any) -> Tensor:
        """Action values of each agent of a team, shape (n, agents, actions)."""
        if not self.is_team:
            alone: Tensor = network(observations)
            return alone.reshape(-1, 1, self.n_actions)
        flat = tree_map(_flat, observations["observation"])
        values: Tensor = network(flat)
        return values.reshape(-1, self.agents, self.n_actions)

    def total(self, chosen: Tensor, observations: Any, *, target: bool = False) -> Tensor:
        """The values of teams, shape (n,), from those of their agents; who is absent has 0."""
        if self.is_team:
            chosen = chosen * observations["present"].to(chosen.dtype)
        if self.mixer is None:
            return chosen.sum(1)
        mixer = self.mixer_target if target else self.mixer
        mixed: Tensor = mixer(chosen, observations["state"] if self.is_team else observations)
        return mixed

    def by_agent(self, column: Tensor) -> Tensor:
        """A column of actions or masks with the agents as second dimension."""
        return column if self.is_team else column.unsqueeze(1)


def _flat(leaf: Tensor) -> Tensor:
    return leaf.reshape(-1, *leaf.shape[2:])


def of_actions(q_values: Tensor, actions: Tensor) -> Tensor:
    """The values of one action of each agent, (n, agents, actions) to (n, agents)."""
    return q_values.gather(2, actions.unsqueeze(2)).squeeze(2)


def best_actions(q_values: Tensor, mask: Tensor | None) -> Tensor:
    """The best of the allowed actions of each agent, (n, agents)."""
    if mask is not None:
        q_values = q_values.masked_fill(mask == 0, -torch.inf)
    return q_values.argmax(2)
