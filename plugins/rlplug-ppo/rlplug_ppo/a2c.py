"""The A2C algorithm: one step on each rollout, of the same parts as PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
from torch import Tensor
from torch.optim import RMSprop

from rlplug import Algorithm, Batch, LearnerView, Loss, hookimpl
from rlplug.feeds import Rollout
from rlplug_ppo.advantages import evaluated
from rlplug_ppo.config import A2CConfig
from rlplug_ppo.losses import a2c_loss
from rlplug_ppo.module import ActorCriticModule
from rlplug_ppo.reports import explained_variance
from rlplug_ppo.support import unsupported

__all__ = ["A2C"]


class A2C(Algorithm):
    """Learns from every rollout once, by the policy gradient with advantages."""

    Config: ClassVar[type[A2CConfig]] = A2CConfig
    config: A2CConfig
    default_env: ClassVar[str] = "CartPole-v1"
    default_steps: ClassVar[int] = 100_000
    defaults: ClassVar[Mapping[str, Any]] = {
        "sampling.num_envs": 8,
        "learner.max_grad_norm": 0.5,
    }

    def feed(self) -> Rollout:
        """All environments for `n_steps`, then all rows at once."""
        config = self.config
        return Rollout(
            n_steps=config.n_steps,
            batch_size=0,
            n_epochs=1,
            truncated_bptt=config.truncated_bptt,
        )

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """Why these spaces cannot be handled; None if they can."""
        return unsupported(observation_space, action_space, self.config)

    @hookimpl
    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: A2CConfig,
    ) -> ActorCriticModule:
        """An actor and a critic."""
        return ActorCriticModule(observation_space, action_space, config)

    @hookimpl
    def configure_optimizers_for_module(
        self, module: ActorCriticModule, config: A2CConfig
    ) -> RMSprop:
        """One RMSprop for both."""
        return RMSprop(
            module.parameters(), lr=config.learning_rate, alpha=0.99, eps=config.rmsprop_eps
        )

    @hookimpl
    def prepare_batch(
        self, module: ActorCriticModule, config: A2CConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Values and advantages of the whole rollout."""
        columns = evaluated(
            module,
            batch,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            bootstrap_truncated=config.bootstrap_truncated,
        )
        return {name: columns[name] for name in ("advantages", "returns", "values")}

    @hookimpl
    def compute_loss_for_module(
        self,
        module: ActorCriticModule,
        config: A2CConfig,
        batch: Batch,
        fwd_out: Mapping[str, Tensor],
    ) -> Loss:
        """The policy gradient with everything that is added to it."""
        return a2c_loss(module, config, batch, fwd_out)

    @hookimpl
    def additional_update(self, batch: Batch, learner: LearnerView) -> Mapping[str, Any]:
        """How well the values foretold the returns."""
        return {"explained_variance": explained_variance(batch, learner)}
