"""Targets and losses of SAC (Haarnoja et al. 2018) and TD3 (Fujimoto et al. 2018)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from rlplug import Batch, Loss
from rlplug.nn import masked
from rlplug_sac.module import SACModule, TD3Module

__all__ = [
    "critic_loss",
    "expected_values",
    "sac_loss",
    "sac_targets",
    "smoothed",
    "td3_loss",
    "td3_targets",
    "td_target",
]


def sac_targets(module: SACModule, batch: Batch, gamma: float, noise: Tensor | None) -> Tensor:
    """Soft TD targets: the value of the next state is that of the policy plus its entropy.

    `noise` are standard normal numbers for the next actions of a Box; None for Discrete ones.
    """
    observations = batch["next_observations"]
    parameters = module.actor(observations)
    if noise is None:
        q1, q2 = module.target(observations)
        mask = batch.get("next_action_mask")
        values, entropy = expected_values(module, parameters, q1, q2, mask)
    else:
        actions, log_prob = module.unit.rsample(parameters, noise=noise)
        q1, q2 = module.target(observations, actions)
        values, entropy = torch.minimum(q1, q2), -log_prob
    return td_target(batch, gamma, values + module.temperature() * entropy)


def sac_loss(
    module: SACModule, batch: Batch, fwd_out: Mapping[str, Tensor], optimizers: Collection[str]
) -> Loss:
    """A loss for each optimizer: critic, actor and temperature."""
    losses, metrics = {}, {}
    parameters, q1, q2 = fwd_out["parameters"], fwd_out["q1"], fwd_out["q2"]
    mask = batch.get("action_mask")
    if "critic" in optimizers:
        if module.box is None:
            actions = batch["actions"].long().unsqueeze(1) - module.first_action
            taken1, taken2 = q1.gather(1, actions).squeeze(1), q2.gather(1, actions).squeeze(1)
        else:
            taken1, taken2 = q1, q2
        losses["critic"] = critic_loss(taken1, taken2, batch["targets"])
        metrics["q_mean"] = taken1.detach().mean()
    if "actor" in optimizers or "temperature" in optimizers:
        if module.box is None:
            values, entropy = expected_values(module, parameters, q1.detach(), q2.detach(), mask)
        else:
            actions, log_prob = module.unit.rsample(parameters, noise=batch["noise"])
            again1, again2 = module.critics(batch["observations"], actions)
            values, entropy = torch.minimum(again1, again2), -log_prob
        if "actor" in optimizers:
            losses["actor"] = -(values + module.temperature() * entropy).mean()
            metrics["entropy"] = entropy.detach().mean()
        if "temperature" in optimizers and module.log_ent_coef is not None:
            excess = module.excess_entropy(entropy.detach(), mask)
            losses["temperature"] = (module.log_ent_coef * excess).mean()
            metrics["ent_coef"] = module.temperature()
    return Loss(losses, metrics)


def td3_targets(module: TD3Module, batch: Batch, gamma: float, noise: Tensor) -> Tensor:
    """TD targets with the lower of both target critics, at the target actor's actions with noise.

    `noise` is clipped already.
    """
    observations = batch["next_observations"]
    actions = (module.actor_target(observations) + noise).clamp(-1, 1)
    q1, q2 = module.critics_target(observations, actions)
    return td_target(batch, gamma, torch.minimum(q1, q2))


def td3_loss(
    module: TD3Module, batch: Batch, fwd_out: Mapping[str, Tensor], optimizers: Collection[str]
) -> Loss | None:
    """A loss for the critics, and for the actor where it is due: left out, it rests."""
    losses, metrics = {}, {}
    if "critic" in optimizers:
        losses["critic"] = critic_loss(fwd_out["q1"], fwd_out["q2"], batch["targets"])
        metrics["q_mean"] = fwd_out["q1"].detach().mean()
    if "actor" in optimizers and module.is_actor_due():
        observations = batch["observations"]
        losses["actor"] = -module.critics.value(observations, module.actor(observations)).mean()
    return Loss(losses, metrics) if losses else None


def td_target(batch: Batch, gamma: float, next_values: Tensor) -> Tensor:
    """Reward plus discounted value of the next state, 0 after a terminated step.

    `gamma` is the discount of rows that bring no `discounts` of their own.
    """
    rewards, discounts = batch["rewards"], batch.get("discounts")
    if discounts is None:
        discounts = torch.full_like(rewards, gamma)
    target: Tensor = rewards + discounts * next_values * ~batch["terminated"]
    return target


def critic_loss(q1: Tensor, q2: Tensor, targets: Tensor) -> Tensor:
    """Half the sum of both critics' mean squared errors."""
    return 0.5 * (functional.mse_loss(q1, targets) + functional.mse_loss(q2, targets))


def expected_values(
    module: SACModule, parameters: Tensor, q1: Tensor, q2: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The mean of the lower values under the policy over Discrete actions, and its entropy."""
    chances = torch.softmax(masked(parameters, mask), -1)
    values = (chances * torch.minimum(q1, q2)).sum(-1)
    return values, module.distribution.entropy(parameters, mask)


def smoothed(noise: Tensor, deviation: float, limit: float) -> Tensor:
    """Noise for target actions: standard normal numbers, scaled and clipped."""
    return (noise * deviation).clamp(-limit, limit)
