"""The module of DQN: a network of action values, its target, and how both are used."""

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
    Outputs,
    PolyakTarget,
    QHead,
    QuantileHead,
    Streams,
    TargetNetwork,
    is_followed,
    renewed,
    resample_noise,
)
from rlplug_dqn.config import DQNConfig
from rlplug_dqn.exploration import Exploration
from rlplug_dqn.plain import Plain
from rlplug_dqn.targets import (
    chosen,
    distributional_target,
    greedy,
    quantile_target,
    td_target,
)

__all__ = ["DQNModule"]


class DQNModule(Module):
    """Action values and a target network; acts by the highest value, or at random."""

    noise: Tensor
    """Seed of the noise of updates and how often it was drawn: a resumed run draws on."""

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
        self.gamma = config.gamma
        self.is_double = config.double
        self.noisy = config.noisy
        self.register_buffer("noise", torch.tensor([seed, 0]))
        self._made: list[Plain | None] = []

    @property
    def head(self) -> QHead:
        """The last part of the network."""
        head = self.network.head
        assert isinstance(head, QHead)
        return head

    def forward_exploration(self, act: ActInput) -> Acted:
        """The best action, or now and then any that is allowed."""
        if self.noisy:
            resample_noise(self.network, act.random)
        actions = self.exploration.choose(act, self._best, self.n_actions)
        return Acted(actions + self.first_action if self.first_action else actions)

    def forward_inference(self, act: ActInput) -> Acted:
        """The best action."""
        values, _ = self.network.act(act.observations)
        return Acted(best(values, act.action_mask) + self.first_action)

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """`outputs` of the network for every action, and the `q_values` that they stand for."""
        if is_followed():
            return self._outputs(batch)
        return Outputs(("outputs", "q_values"), lambda: self._outputs(batch))

    def plain(self) -> Plain | None:
        """Both networks in closed form, if they are plain and nobody follows what torch does."""
        return renewed(self._made, self._make_plain)

    def indices(self, actions: Tensor) -> Tensor:
        """Actions as the environment counts them to places in the outputs."""
        actions = actions.long()
        return actions - self.first_action if self.first_action else actions

    def targets(self, batch: Batch) -> Any:
        """What each row is learned towards; a truncated row goes on, a terminated one does not."""
        plain = self.plain()
        if plain is not None:
            return plain.targets(batch, self.gamma)
        rewards, terminated = batch["rewards"], batch["terminated"]
        after, mask = batch["next_observations"], batch.get("next_action_mask")
        discounts = batch.get("discounts")
        if discounts is None:
            discounts = torch.full_like(rewards, self.gamma)
        outputs = self.target(after)
        head = self.head
        values = self.network.step(after)[0] if self.is_double else head.values(outputs)
        following = chosen(outputs, greedy(values, mask))
        if isinstance(head, DistributionalHead):
            chances = torch.softmax(following, -1)
            return distributional_target(rewards, discounts, terminated, chances, head.support)
        if isinstance(head, QuantileHead):
            return quantile_target(rewards, discounts, terminated, following)
        return td_target(rewards, discounts, terminated, following)

    def renew_noise(self) -> None:
        """Draw new noise for the next update, for both networks."""
        self.noise[1] += 1
        resample_noise(self, numpy.random.default_rng(self.noise.tolist()))

    def __getstate__(self) -> dict[str, Any]:
        """All but the views: a copy has weights of its own."""
        return {**self.__dict__, "_made": []}

    def _make_plain(self) -> Plain | None:
        target = self.target.model
        assert isinstance(target, Network)
        return Plain.of(self.network, target, double=self.is_double, first_action=self.first_action)

    def _outputs(self, batch: Batch) -> dict[str, Tensor]:
        outputs = self.network(batch["observations"])
        return {"outputs": outputs, "q_values": self.head.values(outputs)}

    def _best(self, observations: Any, mask: Any) -> Any:
        # At every step: looked up by nn.Module it would cost as much as one layer.
        network: Any = self._modules["network"]
        values, _ = network.act(observations, explore=self.noisy)
        return values.argmax(1) if mask is None else best(values, mask)


def best(values: Any, mask: Any) -> Any:
    """`greedy` on arrays."""
    if mask is not None:
        values = numpy.where(mask, values, -numpy.inf)
    return values.argmax(1)


def make_network(observation_space: Space[Any], n_actions: int, config: DQNConfig) -> Network:
    """From observations to the values of all actions."""
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
    """Plain values, or a distribution of returns."""
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
    """A copy renewed at intervals of environment steps, or one that moves all the time."""
    if config.tau < 1:
        return PolyakTarget(config.tau)
    return FixedTarget(config.target_update_interval, "step")
