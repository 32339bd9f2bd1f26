"""The module of PPO and A2C: a stochastic policy and a state-value function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from rlplug import Acted, ActInput, Batch, Module
from rlplug.nn import (
    ActorCritic,
    ActorCriticOptions,
    Distribution,
    Fragments,
    log_prob_of,
    probabilities_of,
)
from rlplug.nn.distributions import Categorical
from rlplug.nn.layers import evaluating
from rlplug.spaces import AnySpace, has_images, without_action_mask

__all__ = ["ActorCriticModule"]


class ActorCriticModule(Module):
    """Samples actions; training evaluates them again with the weights of the update.

    Actions are stored as they were sampled, because only their log-probabilities are known; what
    the environment gets is clipped to the bounds of the space.
    """

    acts_on_tensors = True
    kl_coef: Tensor
    kl_stops: Tensor

    def __init__(
        self,
        observation_space: AnySpace,
        action_space: AnySpace,
        options: ActorCriticOptions,
        *,
        kl_coef: float = 0.0,
        keeps_log_prob: bool = False,
        critic_space: AnySpace | None = None,
    ) -> None:
        """With a `critic_space`, batches have observations of it, in which `observation` is what
        the actor sees."""
        super().__init__()
        if critic_space is not None:
            critic_space = _of_critic(critic_space)
        self.network = ActorCritic(
            observation_space, action_space, options, critic_space=critic_space
        )
        self.distribution: Distribution = self.network.distribution
        self.has_memory = options.memory != "none"
        self.keeps_log_prob = keeps_log_prob
        # A pass of an image encoder costs more than its batching saves: acting keeps its results.
        self.keeps_values = (
            has_images(observation_space) and self.network.is_shared and not self.has_memory
        )
        # Buffers, so that they are saved and moved with the policy that they were adapted to.
        self.register_buffer("kl_coef", torch.tensor(kl_coef))
        self.register_buffer("kl_stops", torch.tensor(0))

    def forward_exploration(self, act: ActInput) -> Acted:
        """Actions sampled from the policy."""
        network = self.network
        if act.in_torch:
            return self._explore_in_torch(act)
        if self.keeps_values:
            return self._act_and_evaluate(act)
        parameters, state = network.act(act.observations, act.state, explore=True)
        actions = network.distribution.sample(parameters, act.random, act.action_mask)
        extras: dict[str, Any] = {}
        if act.wants_log_prob or self.keeps_log_prob:
            mask = act.action_mask
            extras["log_prob"] = log_prob_of(self.distribution, parameters, actions, mask)
        return Acted(actions, state, extras)

    def action_probabilities(self, act: ActInput) -> Any:
        """Probability of each discrete action, (n, actions)."""
        if not isinstance(self.distribution, Categorical):
            return None
        parameters, _ = self.network.act(act.observations, act.state, explore=True)
        return probabilities_of(parameters, act.action_mask)

    def action_log_prob(self, act: ActInput, actions: Any) -> Any:
        """Log-probabilities of actions, before clipping; log-densities of continuous ones."""
        parameters, _ = self.network.act(act.observations, act.state, explore=True)
        return log_prob_of(self.distribution, parameters, actions, act.action_mask)

    def forward_inference(self, act: ActInput) -> Acted:
        """The most likely actions, clipped to the bounds of the space."""
        network = self.network
        if act.in_torch:
            return self.forward_export(act)
        parameters, state = network.act(act.observations, act.state)
        likely = network.distribution.mode(parameters, act.action_mask)
        return Acted(network.distribution.for_env(likely), state)

    def forward_export(self, act: ActInput) -> Acted:
        """The most likely actions, in torch."""
        parameters, state = self.network.step(act.observations, act.state)
        return Acted(self.distribution.tensor_mode(parameters, act.action_mask), state)

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """`parameters` of the action distribution and `values`, for all rows."""
        fragments = None
        if self.has_memory:
            start, stop = batch["fragments"].unbind(1)
            fragments = Fragments(start, stop, batch.get("state"))
        seen = batch["observations"]
        if self.network.is_central:
            parameters, values = self.network(seen["observation"], fragments, seen)
        else:
            parameters, values = self.network(seen, fragments)
        return {"parameters": parameters, "values": values}

    def initial_state(self, n: int) -> Mapping[str, Any] | None:
        """The state of n fresh episodes; None without memory."""
        return self.network.initial_state(n)

    def _explore_in_torch(self, act: ActInput) -> Acted:
        network, mask = self.network, act.action_mask
        extras: dict[str, Any] = {}
        state = None
        if self.keeps_values:
            with evaluating(network):
                parameters, values = network(act.observations)
            extras = {"parameters": parameters, "values": values}
        else:
            parameters, state = network.act_on_tensors(act.observations, act.state, explore=True)
        actions = self.distribution.tensor_sample(parameters, act.random, mask)
        if act.wants_log_prob or self.keeps_log_prob or self.keeps_values:
            extras["log_prob"] = self.distribution.log_prob(parameters, actions, mask)
        return Acted(actions, state, extras)

    def _act_and_evaluate(self, act: ActInput) -> Acted:
        parameters, values = self.network.act_and_evaluate(act.observations)
        actions = self.distribution.sample(parameters, act.random, act.action_mask)
        log_prob = log_prob_of(self.distribution, parameters, actions, act.action_mask)
        extras = {"parameters": parameters, "values": values, "log_prob": log_prob}
        return Acted(actions, extras=extras)


def _of_critic(space: AnySpace) -> spaces.Dict:
    """What a central critic looks at: no action masks."""
    assert isinstance(space, spaces.Dict)
    return spaces.Dict([(name, without_action_mask(part)) for name, part in space.items()])
