"""PPO and A2C: their hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor
from torch.optim import Adam, RMSprop

from rlplug import Algorithm, Batch, LearnerView, Loss, UnsupportedSpaceError, hookimpl
from rlplug.errors import RequestError
from rlplug.feeds import Rollout
from rlplug.nn import ActorCriticOptions, make_distribution, no_encoder
from rlplug.spaces import AnySpace, describe
from rlplug_ppo.advantages import evaluate_rollout
from rlplug_ppo.config import PRESETS, A2CConfig, PPOConfig
from rlplug_ppo.losses import a2c_loss, ppo_loss
from rlplug_ppo.module import ActorCriticModule

__all__ = ["A2C", "PPO", "adapt"]

DEFAULTS: Mapping[str, Any] = {"sampling.num_envs": 8, "learner.max_grad_norm": 0.5}
VTRACE: Mapping[str, Any] = {"advantages": "vtrace", "rho_bar": 1.0, "c_bar": 1.0}


class PPO(Algorithm):
    """Proximal policy optimisation with the clipped surrogate objective."""

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    config: PPOConfig
    default_env: ClassVar[str] = "CartPole-v1"
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    checks: ClassVar[Sequence[str]] = ("rlplug_ppo.checks:CHECKS",)
    untested_options: ClassVar[Mapping[str, str]] = {"central_critic": "it takes several agents"}
    variants: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"kl_coef": 0.2, "target_kl": 0.5, "clip_range_vf": 0.2, "ent_coef": 0.01},
        {"memory": "gru", "memory_size": 8, "truncated_bptt": 4},
        {"squash": True, "state_dependent_std": True, "shared_encoder": True, **VTRACE},
    )

    def feed(self) -> Rollout:
        """`n_steps` of every environment, learned from in `n_epochs` of minibatches."""
        return Rollout.of(self.config, global_state=self.config.central_critic)

    def supports(self, observation_space: AnySpace, action_space: AnySpace) -> str | None:
        """Why these spaces cannot be handled; None if they can."""
        return unsupported(observation_space, action_space, self.config)

    @hookimpl
    def build(
        self,
        observation_space: AnySpace,
        action_space: AnySpace,
        config: PPOConfig,
        training_space: AnySpace,
    ) -> ActorCriticModule:
        """An actor and a critic, which may see the state of the environment, too."""
        seen = None
        if config.central_critic:
            seen = training_space
            if seen is observation_space:
                raise RequestError(
                    "central_critic = true is for environments with several agents, and here there "
                    "is one.",
                    "try: --set central_critic=false",
                )
        return ActorCriticModule(
            observation_space,
            action_space,
            config,
            kl_coef=config.kl_coef,
            keeps_log_prob=config.advantages == "vtrace",
            critic_space=seen,
        )

    @hookimpl
    def configure_optimizers_for_module(self, module: ActorCriticModule, config: PPOConfig) -> Adam:
        """One Adam for actor and critic."""
        params = list(module.parameters())
        fused = params[0].device.type in ("cpu", "cuda")
        return Adam(params, lr=config.learning_rate, eps=config.adam_eps, fused=fused)

    @hookimpl
    def prepare_batch(
        self, module: ActorCriticModule, config: PPOConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Values, log-probabilities and advantages of the rollout."""
        columns = evaluate_rollout(
            module,
            batch,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            bootstrap_truncated=config.bootstrap_truncated,
            truncation=config.truncation,
        )
        columns.pop("rho", None)
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
        """Clipped surrogate, value loss and entropy bonus."""
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
        """Adapts the coefficient of the KL penalty, and counts updates that stopped early."""
        reported = {"explained_variance": explained_variance(batch, learner)}
        if config.kl_coef:
            adapt(module.kl_coef, torch.as_tensor(metrics["kl"]), config.kl_target)
            reported["kl_coef"] = module.kl_coef.clone()
        if config.target_kl:
            module.kl_stops += torch.as_tensor(metrics["kl_stopped"]) > 0
            reported["kl_stops"] = module.kl_stops.clone()
        return reported


class A2C(Algorithm):
    """Advantage actor-critic: one gradient step on each rollout."""

    Config: ClassVar[type[A2CConfig]] = A2CConfig
    config: A2CConfig
    default_env: ClassVar[str] = "CartPole-v1"
    default_steps: ClassVar[int] = 100_000
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS
    checks: ClassVar[Sequence[str]] = ("rlplug_ppo.checks:CHECKS",)
    variants: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"ent_coef": 0.01, "normalize_advantage": True},
        {"memory": "lstm", "memory_size": 8, "truncated_bptt": 4},
        {"squash": True, "state_dependent_std": True, "shared_encoder": True, **VTRACE},
    )

    def feed(self) -> Rollout:
        """`n_steps` of every environment, all rows in one minibatch."""
        config = self.config
        return Rollout(n_steps=config.n_steps, batch_size=0, truncated_bptt=config.truncated_bptt)

    def supports(self, observation_space: AnySpace, action_space: AnySpace) -> str | None:
        """Why these spaces cannot be handled; None if they can."""
        return unsupported(observation_space, action_space, self.config)

    @hookimpl
    def build(
        self, observation_space: AnySpace, action_space: AnySpace, config: A2CConfig
    ) -> ActorCriticModule:
        """An actor and a critic."""
        return ActorCriticModule(
            observation_space,
            action_space,
            config,
            keeps_log_prob=config.advantages == "vtrace",
        )

    @hookimpl
    def configure_optimizers_for_module(
        self, module: ActorCriticModule, config: A2CConfig
    ) -> RMSprop:
        """One RMSprop for actor and critic."""
        return RMSprop(
            module.parameters(), lr=config.learning_rate, alpha=0.99, eps=config.rmsprop_eps
        )

    @hookimpl
    def prepare_batch(
        self, module: ActorCriticModule, config: A2CConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Values and advantages of the rollout."""
        columns = evaluate_rollout(
            module,
            batch,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            bootstrap_truncated=config.bootstrap_truncated,
            truncation=config.truncation,
        )
        del columns["parameters"]
        columns.pop("log_prob", None)
        return columns

    @hookimpl
    def compute_loss_for_module(
        self,
        module: ActorCriticModule,
        config: A2CConfig,
        batch: Batch,
        fwd_out: Mapping[str, Tensor],
    ) -> Loss:
        """Policy gradient, value loss and entropy bonus."""
        return a2c_loss(module, config, batch, fwd_out)

    @hookimpl
    def additional_update(self, batch: Batch, learner: LearnerView) -> Mapping[str, Any]:
        """The explained variance of the values."""
        return {"explained_variance": explained_variance(batch, learner)}


def adapt(coefficient: Tensor, kl: Tensor, target: float) -> None:
    """Multiply the KL coefficient by 1.5 above twice the target, halve it below half, in place."""
    factor = torch.where(kl > 2 * target, 1.5, torch.where(kl < 0.5 * target, 0.5, 1.0))
    coefficient.mul_(factor)


def explained_variance(batch: Batch, learner: LearnerView) -> Tensor:
    """1 - Var(returns - values) / Var(returns): 1 is a perfect prediction."""
    returns = batch["returns"]
    variances = torch.stack(
        [(returns - batch["values"]).var(correction=0), returns.var(correction=0)]
    )
    if learner.world_size > 1:
        (variances,) = learner.all_reduce([variances])
    return 1 - variances[0] / variances[1]


def unsupported(
    observation_space: AnySpace, action_space: AnySpace, options: ActorCriticOptions
) -> str | None:
    """Why these spaces cannot be handled with these options; None if they can."""
    unbounded = isinstance(action_space, spaces.Box) and not action_space.is_bounded()
    if options.squash and unbounded:
        return (
            f"squash = true needs actions with bounds on both sides: {describe(action_space)}.\n"
            "  try: --set squash=false, which draws from normal distributions"
        )
    try:
        make_distribution(action_space, squash=options.squash)
    except UnsupportedSpaceError as error:
        return str(error)
    return None if options.encoder else no_encoder(observation_space)
