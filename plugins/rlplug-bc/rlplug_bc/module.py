"""The module of behaviour cloning: a stochastic policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rlplug import Acted, ActInput, Batch, Module
from rlplug.nn import Distribution, log_prob_of, make_distribution, probabilities_of
from rlplug.nn.distributions import Categorical
from rlplug.nn.network import Body, Network, NetworkOptions
from rlplug.spaces import AnySpace
from rlplug_bc.config import BCConfig

__all__ = ["BCModule"]


class BCModule(Module):
    """A network from observations to the parameters of a distribution over actions."""

    def __init__(
        self, observation_space: AnySpace, action_space: AnySpace, config: BCConfig
    ) -> None:
        super().__init__()
        self.distribution: Distribution = make_distribution(action_space)
        options = NetworkOptions(
            net_arch=config.net_arch,
            activation=config.activation,
            ortho_init=False,
            encoder=config.encoder,
        )
        body = Body(observation_space, options)
        self.network = Network(body, nn.Linear(body.out_features, self.distribution.size))

    def forward_exploration(self, act: ActInput) -> Acted:
        """Actions sampled from the policy."""
        parameters, _ = self.network.act(act.observations)
        actions = self.distribution.sample(parameters, act.random, act.action_mask)
        extras: dict[str, Any] = {}
        if act.wants_log_prob:
            mask = act.action_mask
            extras["log_prob"] = log_prob_of(self.distribution, parameters, actions, mask)
        return Acted(actions, extras=extras)

    def action_probabilities(self, act: ActInput) -> Any:
        """Probability of each discrete action, (n, actions)."""
        if not isinstance(self.distribution, Categorical):
            return None
        parameters, _ = self.network.act(act.observations)
        return probabilities_of(parameters, act.action_mask)

    def action_log_prob(self, act: ActInput, actions: Any) -> Any:
        """Log-probabilities of actions, before clipping; log-densities of continuous ones."""
        parameters, _ = self.network.act(act.observations)
        return log_prob_of(self.distribution, parameters, actions, act.action_mask)

    def forward_inference(self, act: ActInput) -> Acted:
        """The most likely actions."""
        parameters, _ = self.network.act(act.observations)
        likely = self.distribution.mode(parameters, act.action_mask)
        return Acted(self.distribution.for_env(likely))

    def forward_export(self, act: ActInput) -> Acted:
        """The most likely actions, in torch."""
        parameters, _ = self.network.step(act.observations)
        return Acted(self.distribution.tensor_mode(parameters, act.action_mask))

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """`parameters` of the action distribution."""
        return {"parameters": self.network(batch["observations"])}
