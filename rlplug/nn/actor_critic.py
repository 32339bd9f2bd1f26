"""An actor and a critic, with or without common layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlplug.batch.nested import to_arrays
from rlplug.nn.arrays import Array, ArrayForward, NumpyArray, Views, run_plain
from rlplug.nn.distributions import make_distribution
from rlplug.nn.heads import PolicyHead, ValueHead
from rlplug.nn.layers import evaluating
from rlplug.nn.memory import Fragments
from rlplug.nn.network import ActingNetwork, ActorCriticOptions, Body, plain_layers
from rlplug.spaces import AnySpace, has_images

__all__ = ["ActorCritic"]

_CRITIC = "critic_"


class ActorCritic(ActingNetwork):
    """A policy and a state value; acting computes the policy alone.

    The state of a critic with a memory of its own lies beside the actor's, under `critic_…`.
    """

    def __init__(
        self,
        observation_space: AnySpace,
        action_space: AnySpace,
        options: ActorCriticOptions | None = None,
        *,
        critic_space: AnySpace | None = None,
    ) -> None:
        """With a `critic_space`, the critic has a network without memory for what it sees."""
        super().__init__()
        options = options or ActorCriticOptions()
        self.distribution = make_distribution(action_space, squash=options.squash)
        self.body = Body(observation_space, options)
        shared = options.shared_encoder
        if shared == "auto":
            shared = has_images(observation_space)
        self.critic_body = None if shared else Body(observation_space, options)
        self.is_central = critic_space is not None
        """Whether the critic sees something else than the actor."""
        if critic_space is not None:
            self.critic_body = Body(critic_space, attrs.evolve(options, memory="none", encoder=""))
        self.policy_head = PolicyHead(
            self.body.out_features,
            self.distribution,
            state_dependent_std=options.state_dependent_std,
            std_init=options.std_init,
            ortho_init=options.ortho_init,
        )
        valued = self.body if self.critic_body is None else self.critic_body
        self.value_head = ValueHead(valued.out_features, ortho_init=options.ortho_init)

    def forward(
        self, observations: Any, fragments: Fragments | None = None, critic_sees: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Parameters of the distributions, shape (rows, size), and values, shape (rows,).

        A central critic is given what it sees.
        """
        critic = self.critic_body
        if self.is_central:
            return self.policy(observations, fragments), self.values(critic_sees)
        if critic is None:
            features = self.body(observations, fragments)
            return self.policy_head(features), self.value_head(features)
        if type(observations) is Array:
            outputs: Any = run_plain(self.policy_head, observations, self._actor_layers)
            values = run_plain(self.value_head, observations, self._critic_layers)
            if outputs is not None and values is not None:
                return self.policy_head.completed(outputs), values.squeeze(1)
        return self.policy(observations, fragments), self.values(observations, fragments)

    def _actor_layers(self) -> list[nn.Module]:
        return self.body.followed_by(self.policy_head.linear)

    def _critic_layers(self) -> list[nn.Module]:
        assert self.critic_body is not None
        return self.critic_body.followed_by(self.value_head.linear)

    def policy(self, observations: Any, fragments: Fragments | None = None) -> Tensor:
        """The parameters alone."""
        parameters: Tensor = self.policy_head(self.body(observations, fragments))
        return parameters

    def values(self, observations: Any, fragments: Fragments | None = None) -> Tensor:
        """The values alone."""
        if self.critic_body is None:
            features = self.body(observations, fragments)
        else:
            features = self.critic_body(observations, _critic_part(fragments))
        values: Tensor = self.value_head(features)
        return values

    def step(
        self, observations: Any, state: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Mapping[str, Tensor] | None]:
        """The parameters for one step, and the state of all memories after it."""
        features, after = self.body.step(observations, state)
        if after is not None and self.critic_body is not None and not self.is_central:
            _, of_critic = self.critic_body.step(observations, _critic_state(state))
            after = {**after, **_named(of_critic)}
        return self.policy_head(features), after

    def initial_state(self, n: int) -> dict[str, Tensor] | None:
        """The state of n fresh episodes; None without memory."""
        state = self.body.initial_state(n)
        if state is None or self.critic_body is None or self.is_central:
            return state
        return {**state, **_named(self.critic_body.initial_state(n))}

    @property
    def is_shared(self) -> bool:
        """Whether actor and critic share all but their heads."""
        return self.critic_body is None

    def act_and_evaluate(self, observations: Any) -> tuple[NumpyArray, NumpyArray]:
        """`act` for a network without memory, with the values of the same pass."""
        with torch.no_grad(), evaluating(self):
            parameters, values = self(self.tensors_of(observations))
        return to_arrays(parameters), to_arrays(values)

    def array_forward(self, views: Views) -> ArrayForward:
        """`step` on arrays."""
        if self.body.memory is None:
            return views.stateless(
                self.body.encoder, self.body.hidden, *plain_layers(self.policy_head)
            )
        body, head = views.forward_of(self.body), views.chain(self.policy_head)
        critic = None
        if self.critic_body is not None and not self.is_central:
            critic = views.forward_of(self.critic_body)

        def forward(observations: Any, state: Any) -> Any:
            features, after = body(observations, state)
            if critic is not None:
                _, of_critic = critic(observations, _critic_state(state))
                after = {**after, **_named(of_critic)}
            return head(features), after

        return forward


def _named(state: Mapping[str, Any] | None) -> dict[str, Any]:
    return {_CRITIC + name: part for name, part in (state or {}).items()}


def _critic_state(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {
        name.removeprefix(_CRITIC): part for name, part in state.items() if name.startswith(_CRITIC)
    }


def _critic_part(fragments: Fragments | None) -> Fragments | None:
    if fragments is None:
        return None
    return Fragments(fragments.start, fragments.stop, _critic_state(fragments.state))
