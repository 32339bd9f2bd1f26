"""VDN and QMIX: their hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces
from torch import Tensor
from torch.optim import Adam

from rlplug import Algorithm, Batch, Loss, hookimpl
from rlplug.feeds import Replay
from rlplug.nn import no_encoder
from rlplug.spaces import describe
from rlplug_vdn.config import VDNConfig
from rlplug_vdn.losses import team_loss, team_targets
from rlplug_vdn.module import TeamModule

__all__ = ["VDN"]


class VDN(Algorithm):
    """Deep Q-learning of a team of agents, whose value is the sum of theirs, or mixed by QMIX."""

    Config: ClassVar[type[VDNConfig]] = VDNConfig
    default_steps: ClassVar[int] = 50_000
    defaults: ClassVar[Mapping[str, Any]] = {"learner.max_grad_norm": 10.0}
    variants: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"mixing": "qmix", "mixing_width": 4, "tau": 0.1, "loss": "mse"},
        {"double": True, "n_step": 3, "dueling": True},
        {"mixing": "qmix", "prioritized": True, "double": True},
        {"noisy": True, "exploration_initial_eps": 0.0, "exploration_final_eps": 0.0},
    )
    config: VDNConfig

    def feed(self) -> Replay:
        """What all agents do at one step of an environment is one transition."""
        return Replay.of(self.config, team=True, global_state=self.config.mixing == "qmix")

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """Why these spaces cannot be handled; None if they can."""
        if not isinstance(action_space, spaces.Discrete):
            return f"it needs Discrete actions, found {describe(action_space)}"
        return None if self.config.encoder else no_encoder(observation_space)

    @hookimpl
    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: spaces.Discrete,
        config: VDNConfig,
        seed: int,
        training_space: gymnasium.Space[Any],
    ) -> TeamModule:
        """The action values of an agent, their mixing, and target networks."""
        return TeamModule(observation_space, action_space, config, seed, training_space)

    @hookimpl
    def configure_optimizers_for_module(self, module: TeamModule, config: VDNConfig) -> Adam:
        """Adam over the online networks."""
        parameters = list(module.network.parameters())
        if module.mixer is not None:
            parameters += module.mixer.parameters()
        fused = parameters[0].device.type in ("cpu", "cuda")
        return Adam(parameters, lr=config.learning_rate, eps=config.adam_eps, fused=fused)

    @hookimpl
    def prepare_batch(
        self, module: TeamModule, config: VDNConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Computes the TD targets."""
        if module.noisy:
            module.reset_noise()
        return {"targets": team_targets(module, batch, config.gamma)}

    @hookimpl
    def compute_loss_for_module(
        self, module: TeamModule, config: VDNConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
    ) -> Loss:
        """The loss between the values of what teams did and their TD targets."""
        return team_loss(module, config, batch, fwd_out)
