"""The losses of PPO and A2C, term by term."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlplug import Batch, Loss
from rlplug_ppo import array_losses
from rlplug_ppo.config import A2CConfig, PPOConfig
from rlplug_ppo.early_stop import stop_at
from rlplug_ppo.module import ActorCriticModule, mask_of

__all__ = ["a2c_loss", "clipped_surrogate", "normalised", "ppo_loss", "value_loss"]


def ppo_loss(
    module: ActorCriticModule, config: PPOConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
) -> Loss:
    """The clipped surrogate, the error of the values, the entropy, and maybe a penalty."""
    said = None if config.kl_coef else array_losses.said(module, batch, fwd_out)
    if said is not None:
        return array_losses.ppo_loss(module, config, batch, said)
    parameters, values = fwd_out["parameters"], fwd_out["values"]
    mask = mask_of(batch)
    log_prob, entropy = module.distribution.score(parameters, batch["actions"], mask)
    advantages = batch["advantages"]
    if config.normalize_advantage:
        advantages = normalised(advantages)
    log_ratio = log_prob - batch["log_prob"]
    ratio = log_ratio.exp()
    policy = clipped_surrogate(ratio, advantages, config.clip_range)
    value = value_loss(values, batch["returns"], batch["values"], config.clip_range_vf)
    terms, metrics = _terms(config, policy, value, entropy.mean())
    with torch.no_grad():
        metrics["approx_kl"] = (ratio - 1 - log_ratio).mean()
        metrics["clip_fraction"] = ((ratio - 1).abs() > config.clip_range).to(ratio.dtype).mean()
    if config.kl_coef:
        kl = module.distribution.kl(batch["parameters"], parameters, mask).mean()
        terms["kl_penalty"] = module.kl_coef * kl
        metrics["kl"] = kl
    return Loss(_sum(terms), metrics, terms, stop=stop_at(config.target_kl, metrics))


def a2c_loss(
    module: ActorCriticModule, config: A2CConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
) -> Loss:
    """The policy gradient, the error of the values, and the entropy."""
    said = array_losses.said(module, batch, fwd_out)
    if said is not None:
        return array_losses.a2c_loss(module, config, batch, said)
    parameters, values = fwd_out["parameters"], fwd_out["values"]
    log_prob, entropy = module.distribution.score(parameters, batch["actions"], mask_of(batch))
    advantages = batch["advantages"]
    if config.normalize_advantage:
        advantages = normalised(advantages)
    policy = -(advantages * log_prob).mean()
    value = value_loss(values, batch["returns"], batch["values"], 0.0)
    terms, metrics = _terms(config, policy, value, entropy.mean())
    return Loss(_sum(terms), metrics, terms)


def normalised(advantages: Tensor) -> Tensor:
    """To mean 0 and deviation 1; a single one stays as it is."""
    if len(advantages) == 1:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """The smaller of the gain and of what it would be within the range, as a loss."""
    limited = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(ratio * advantages, limited * advantages).mean()


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor, clip_range: float) -> Tensor:
    """The mean squared error; with a range, the larger one of values free and held near."""
    squares = (values - returns) ** 2
    if clip_range:
        held = old_values + (values - old_values).clamp(-clip_range, clip_range)
        squares = torch.maximum(squares, (held - returns) ** 2)
    return squares.mean()


def _terms(
    config: PPOConfig | A2CConfig, policy: Tensor, value: Tensor, entropy: Tensor
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What is summed, and what is reported: there without weights."""
    terms = {
        "policy_loss": policy,
        "value_loss": config.vf_coef * value,
        "entropy": -config.ent_coef * entropy,
    }
    return terms, {"value_loss": value, "entropy": entropy}


def _sum(terms: Mapping[str, Tensor]) -> Tensor:
    first, *others = terms.values()
    for term in others:
        first = first + term
    return first
