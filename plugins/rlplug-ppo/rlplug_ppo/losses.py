"""The losses of PPO (Schulman et al. 2017) and A2C (Mnih et al. 2016)."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from rlplug import Batch, Loss
from rlplug_ppo.config import A2CConfig, PPOConfig
from rlplug_ppo.module import ActorCriticModule

__all__ = ["a2c_loss", "clipped_surrogate", "normalised", "ppo_loss", "value_loss"]


def ppo_loss(
    module: ActorCriticModule, config: PPOConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
) -> Loss:
    """Clipped surrogate, value loss and entropy bonus (PPO, eq. 9); optionally a KL penalty."""
    parameters, mask = fwd_out["parameters"], batch.get("action_mask")
    log_prob, entropies = module.distribution.score(parameters, batch["actions"], mask)
    advantages = batch["advantages"]
    if config.normalize_advantage:
        advantages = normalised(advantages)

    log_ratio = log_prob - batch["log_prob"]
    ratio = log_ratio.exp()
    policy = clipped_surrogate(ratio, advantages, config.clip_range)
    value = value_loss(fwd_out["values"], batch["returns"], batch["values"], config.clip_range_vf)
    entropy = entropies.mean()

    terms = {
        "policy_loss": policy,
        "value_loss": config.vf_coef * value,
        "entropy": -config.ent_coef * entropy,
    }
    metrics = {"value_loss": value, "entropy": entropy}
    with torch.no_grad():
        change = ratio - 1
        metrics["approx_kl"] = (change - log_ratio).mean()
        metrics["clip_fraction"] = (change.abs() > config.clip_range).to(ratio.dtype).mean()
    if config.kl_coef:
        kl = module.distribution.kl(batch["parameters"], parameters, mask).mean()
        terms["kl_penalty"] = module.kl_coef * kl
        metrics["kl"] = kl
    stop = None
    if config.target_kl:
        # As in Spinning Up and SB3: one minibatch is a rough estimate, hence the margin.
        stop = metrics["approx_kl"] > 1.5 * config.target_kl
        metrics["kl_stopped"] = stop.to(torch.float32)
    return Loss(reduce(operator.add, terms.values()), metrics, terms, stop=stop)


def a2c_loss(
    module: ActorCriticModule, config: A2CConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
) -> Loss:
    """Policy gradient with advantages, value loss and entropy bonus."""
    log_prob, entropies = module.distribution.score(
        fwd_out["parameters"], batch["actions"], batch.get("action_mask")
    )
    advantages = batch["advantages"]
    if config.normalize_advantage:
        advantages = normalised(advantages)

    if config.advantages == "vtrace":
        advantages = batch["rho"] * advantages

    policy = -(advantages * log_prob).mean()
    value = value_loss(fwd_out["values"], batch["returns"], batch["values"])
    entropy = entropies.mean()
    terms = {
        "policy_loss": policy,
        "value_loss": config.vf_coef * value,
        "entropy": -config.ent_coef * entropy,
    }
    metrics = {"value_loss": value, "entropy": entropy}
    return Loss(reduce(operator.add, terms.values()), metrics, terms)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """Clipped surrogate objective (PPO, eq. 7), negated."""
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, clip_range: float = 0.0
) -> Tensor:
    """Mean squared error of the values; with a clip range the larger of clipped and unclipped."""
    if not clip_range:
        return functional.mse_loss(values, returns)
    clipped = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return torch.maximum((values - returns) ** 2, (clipped - returns) ** 2).mean()


def normalised(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1; a single one is returned as it is."""
    if advantages.shape[0] == 1:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)
