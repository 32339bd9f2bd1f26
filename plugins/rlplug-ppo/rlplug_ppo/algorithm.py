"""The PPO algorithm: its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor
from torch.optim import Adam

from rlplug import Algorithm, Batch, LearnerView, Loss, hookimpl
from rlplug.feeds import Rollout
from rlplug_ppo.advantages import evaluated
from rlplug_ppo.config import PPOConfig
from rlplug_ppo.losses import ppo_loss
from rlplug_ppo.module import ActorCriticModule
from rlplug_ppo.presets import PRESETS
from rlplug_ppo.reports import explained_variance
from rlplug_ppo.support import unsupported

__all__ = ["PPO"]


class PPO(Algorithm):
    """Learns from fresh experience in several passes, no further than the clip range allows."""

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    config: PPOConfig
    default_env: ClassVar[str] = "CartPole-v1"
    default_steps: ClassVar[int] = 100_000
    defaults: ClassVar[Mapping[str, Any]] = {
        "sampling.num_envs": 8,
        "learner.max_grad_norm": 0.5,
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    def feed(self) -> Rollout:
        """All environments for `n_steps`, then every row `n_epochs` times."""
        config = self.config
        return Rollout(
            n_steps=config.n_steps,
            batch_size=config.batch_size,
            n_epochs=config.n_epochs,
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
        config: PPOConfig,
    ) -> ActorCriticModule:
        """An actor and a critic."""
        return ActorCriticModule(observation_space, action_space, config, kl_coef=config.kl_coef)

    @hookimpl
    def configure_optimizers_for_module(self, module: ActorCriticModule, config: PPOConfig) -> Adam:
        """One Adam for both."""
        params = list(module.parameters())
        fused = params[0].device.type in ("cpu", "cuda")
        return Adam(params, lr=config.learning_rate, eps=config.adam_eps, fused=fused)

    @hookimpl
    def prepare_batch(
        self, module: ActorCriticModule, config: PPOConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Values, log-probabilities and advantages of the whole rollout."""
        columns = evaluated(
            module,
            batch,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            bootstrap_truncated=config.bootstrap_truncated,
        )
        if not config.kl_coef:
            del columns["parameters"]
        return columns

    @hookimpl
    def compute_loss_for_module(
        self,
        module: ActorCriticModule,
        config: PPOConfig,
        batch: Batch,
        fwd_out: Mapping[str, Tensor],
    ) -> Loss:
        """The clipped surrogate with everything that is added to it."""
        return ppo_loss(module, config, batch, fwd_out)

    @hookimpl
    def additional_update(
        self,
        module: ActorCriticModule,
        config: PPOConfig,
        batch: Batch,
        metrics: Mapping[str, Any],
        learner: LearnerView,
    ) -> Mapping[str, Any]:
        """Adapts the penalty to how far the policy moved, and counts updates that ended early."""
        reported = {"explained_variance": explained_variance(batch, learner)}
        if config.kl_coef:
            adapt(module.kl_coef, torch.as_tensor(metrics["kl"]), config.kl_target)
            reported["kl_coef"] = module.kl_coef.clone()
        if config.target_kl:
            module.kl_stops += torch.as_tensor(metrics["kl_stopped"]) > 0
            reported["kl_stops"] = module.kl_stops.clone()
        return reported


def adapt(coefficient: Tensor, kl: Tensor, target: float) -> None:
    """In place, times 1.5 beyond twice the target, halved below half of it (as RLlib does)."""
    factor = torch.where(kl > 2 * target, 1.5, torch.where(kl < 0.5 * target, 0.5, 1.0))
    coefficient.mul_(factor)
