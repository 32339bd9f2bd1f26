"""The module of PPO and A2C: a policy that acts, beside a value of the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlplug import Acted, ActInput, Batch, Module
from rlplug.nn import (
    ActorCritic,
    ActorCriticOptions,
    Distribution,
    Fragments,
    Outputs,
    is_followed,
    renewed,
)
from rlplug.spaces import AnySpace
from rlplug_ppo.plain import Plain
from rlplug_ppo.scores import scorer_for

__all__ = ["ActorCriticModule", "mask_of"]


class ActorCriticModule(Module):
    """Draws actions from a distribution; training computes its parameters and values again.

    Actions are stored as they were drawn, since only of those is the probability known; what
    environments get is within their bounds.
    """

    kl_coef: Tensor
    kl_stops: Tensor

    def __init__(
        self,
        observation_space: AnySpace,
        action_space: AnySpace,
        options: ActorCriticOptions,
        *,
        kl_coef: float = 0.0,
    ) -> None:
        super().__init__()
        self.network = ActorCritic(observation_space, action_space, options)
        self.has_memory = options.memory != "none"
        self.scorer = scorer_for(action_space, squash=options.squash)
        self._made: list[Plain | None] = []
        # They change once per update and belong to this policy: so they go where it goes.
        self.register_buffer("kl_coef", torch.tensor(kl_coef))
        self.register_buffer("kl_stops", torch.tensor(0))

    @property
    def distribution(self) -> Distribution:
        """The family of distributions over actions."""
        return self.network.distribution

    def forward_exploration(self, act: ActInput) -> Acted:
        """Actions drawn from the policy."""
        network = self.network
        parameters, state = network.act(act.observations, act.state, explore=True)
        return Acted(network.distribution.sample(parameters, act.random, act.action_mask), state)

    def forward_inference(self, act: ActInput) -> Acted:
        """The most likely actions, within the bounds of the space."""
        network = self.network
        parameters, state = network.act(act.observations, act.state)
        likely = network.distribution.mode(parameters, act.action_mask)
        return Acted(network.distribution.for_env(likely), state)

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """`parameters` of the distribution and `values`, for all rows."""
        if is_followed():
            return self._outputs(batch)
        return Outputs(("parameters", "values"), lambda: self._outputs(batch))

    def plain(self) -> Plain | None:
        """Actor and critic in closed form, if they are plain and nobody follows torch."""
        return renewed(self._made, lambda: Plain.of(self.network))

    def __getstate__(self) -> dict[str, Any]:
        """All but the views: a copy has weights of its own."""
        return {**self.__dict__, "_made": []}

    def _outputs(self, batch: Batch) -> Mapping[str, Tensor]:
        fragments = None
        if self.has_memory:
            start, stop = batch["fragments"].unbind(1)
            fragments = Fragments(start, stop, batch.get("state"))
        parameters, values = self.network(batch["observations"], fragments)
        return {"parameters": parameters, "values": values}

    def initial_state(self, n: int) -> Mapping[str, Any] | None:
        """The memory of n fresh episodes; None without memory."""
        return self.network.initial_state(n)


def mask_of(batch: Batch) -> Tensor | None:
    """Which actions could be chosen; None if all could."""
    return batch.get("action_mask")
