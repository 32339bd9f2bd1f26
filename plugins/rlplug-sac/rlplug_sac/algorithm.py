"""SAC and TD3: their hooks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.optim import Adam

from rlplug import Algorithm, Batch, LearnerView, Loss, UnsupportedSpaceError, hookimpl
from rlplug.feeds import Replay
from rlplug.nn import make_distribution, no_encoder
from rlplug.spaces import AnySpace, describe
from rlplug_sac.config import OffPolicyConfig, SACConfig, TD3Config
from rlplug_sac.losses import sac_loss, sac_targets, smoothed, td3_loss, td3_targets
from rlplug_sac.module import SACModule, TD3Module

__all__ = ["SAC", "TD3"]

PENDULUM: Mapping[str, Any] = {
    "run.env": "Pendulum-v1",
    "algorithm.net_arch": [64, 64],
    "algorithm.learning_rate": 1e-3,
    "algorithm.buffer_size": 50_000,
}


class SAC(Algorithm):
    """Soft actor-critic: two critics, a stochastic actor and a learned temperature."""

    Config: ClassVar[type[SACConfig]] = SACConfig
    config: SACConfig
    default_env: ClassVar[str] = "Pendulum-v1"
    default_steps: ClassVar[int] = 20_000
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pendulum": {**PENDULUM, "run.steps": 20_000},
        "hopper": {
            "run.env": "Hopper-v5",
            "run.steps": 200_000,
            "algorithm.net_arch": [128, 128],
            "algorithm.learning_rate": 1e-3,
            "algorithm.batch_size": 128,
            "algorithm.buffer_size": 200_000,
            "algorithm.learning_starts": 10_000,
            # A learned coefficient falls to 0.04, and the policy stays with small hops for long.
            "algorithm.ent_coef": 0.2,
            "evaluation.every": 10_000,
        },
    }
    checks: ClassVar[Sequence[str]] = ("rlplug_sac.checks:CHECKS",)
    variants: ClassVar[Sequence[Mapping[str, Any]]] = ({"ent_coef": 0.05, "n_step": 3},)

    def feed(self) -> Replay:
        """Transitions are stored, and sampled repeatedly."""
        return Replay.of(self.config)

    def supports(self, observation_space: AnySpace, action_space: AnySpace) -> str | None:
        """Why these spaces cannot be handled; None if they can."""
        if not isinstance(action_space, spaces.Box | spaces.Discrete):
            return f"it needs Box or Discrete actions, found {describe(action_space)}"
        return unsupported(observation_space, action_space, self.config)

    @hookimpl
    def build(
        self,
        observation_space: AnySpace,
        action_space: spaces.Box | spaces.Discrete,
        config: SACConfig,
    ) -> SACModule:
        """An actor, two critics and their target network."""
        return SACModule(observation_space, action_space, config)

    @hookimpl
    def configure_optimizers_for_module(
        self, module: SACModule, config: SACConfig
    ) -> Mapping[str, Adam]:
        """One Adam each for critics, actor and, where it is learned, temperature."""
        found = {
            "critic": adam(module.critics.parameters(), config.learning_rate),
            "actor": adam(module.actor.parameters(), config.learning_rate),
        }
        if module.log_ent_coef is not None:
            found["temperature"] = adam([module.log_ent_coef], config.learning_rate)
        return found

    @hookimpl
    def prepare_batch(
        self,
        module_id: str,
        module: SACModule,
        config: SACConfig,
        batch: Batch,
        learner: LearnerView,
    ) -> Mapping[str, Tensor]:
        """Draws the noise of Box actions, and computes the TD targets."""
        if module.box is None:
            return {"targets": sac_targets(module, batch, config.gamma, None)}
        noise, following = normal(module.box.scale, 2, batch, learner, module_id)
        return {"targets": sac_targets(module, batch, config.gamma, following), "noise": noise}

    @hookimpl
    def compute_loss_for_module(
        self,
        module: SACModule,
        batch: Batch,
        fwd_out: Mapping[str, Tensor],
        optimizers: Collection[str],
    ) -> Loss:
        """The losses of critics, actor and temperature."""
        return sac_loss(module, batch, fwd_out, optimizers)


class TD3(Algorithm):
    """Twin delayed DDPG: a deterministic actor that learns less often than its two critics."""

    Config: ClassVar[type[TD3Config]] = TD3Config
    config: TD3Config
    default_env: ClassVar[str] = "Pendulum-v1"
    default_steps: ClassVar[int] = 30_000
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pendulum": {**PENDULUM, "run.steps": 30_000, "algorithm.learning_starts": 1_000},
    }
    variants: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"n_step": 3, "policy_delay": 1, "target_policy_noise": 0.0},
    )

    def feed(self) -> Replay:
        """Transitions are stored, and sampled repeatedly."""
        return Replay.of(self.config)

    def supports(self, observation_space: AnySpace, action_space: AnySpace) -> str | None:
        """Why these spaces cannot be handled; None if they can."""
        if not isinstance(action_space, spaces.Box):
            return f"it needs Box actions, found {describe(action_space)}"
        return unsupported(observation_space, action_space, self.config)

    @hookimpl
    def build(
        self, observation_space: AnySpace, action_space: spaces.Box, config: TD3Config
    ) -> TD3Module:
        """An actor and two critics, with their target networks."""
        return TD3Module(observation_space, action_space, config)

    @hookimpl
    def configure_optimizers_for_module(
        self, module: TD3Module, config: TD3Config
    ) -> Mapping[str, Adam]:
        """One Adam each for critics and actor."""
        return {
            "critic": adam(module.critics.parameters(), config.learning_rate),
            "actor": adam(module.actor.parameters(), config.learning_rate),
        }

    @hookimpl
    def prepare_batch(
        self,
        module_id: str,
        module: TD3Module,
        config: TD3Config,
        batch: Batch,
        learner: LearnerView,
    ) -> Mapping[str, Tensor]:
        """Draws the noise of target actions, and computes the TD targets."""
        (drawn,) = normal(module.box.scale, 1, batch, learner, module_id)
        noise = smoothed(drawn, config.target_policy_noise, config.target_noise_clip)
        return {"targets": td3_targets(module, batch, config.gamma, noise)}

    @hookimpl
    def compute_loss_for_module(
        self,
        module: TD3Module,
        batch: Batch,
        fwd_out: Mapping[str, Tensor],
        optimizers: Collection[str],
    ) -> Loss | None:
        """The loss of the critics, and every `policy_delay` updates that of the actor."""
        return td3_loss(module, batch, fwd_out, optimizers)


def adam(params: Iterable[nn.Parameter], learning_rate: float) -> Adam:
    """Adam, fused where that is possible."""
    held = list(params)
    fused = held[0].device.type in ("cpu", "cuda")
    return Adam(held, lr=learning_rate, fused=fused)


def normal(
    like: Tensor, count: int, batch: Batch, learner: LearnerView, module_id: str
) -> tuple[Tensor, ...]:
    """So many times standard normal numbers, as many for each row as `like` has."""
    return torch.randn(
        (count, batch.rows, len(like)),
        generator=learner.generator(module_id),
        dtype=like.dtype,
        device=like.device,
    ).unbind()


def unsupported(
    observation_space: AnySpace,
    action_space: spaces.Box | spaces.Discrete,
    config: OffPolicyConfig,
) -> str | None:
    """Why there is no network for these spaces; None if there is."""
    if isinstance(action_space, spaces.Box) and not action_space.is_bounded():
        return (
            f"it needs actions with bounds on both sides: {describe(action_space)}.\n"
            "  try: gymnasium.wrappers.RescaleAction"
        )
    try:
        make_distribution(action_space, squash=True)
    except UnsupportedSpaceError as error:
        return str(error)
    return None if config.encoder else no_encoder(observation_space)
