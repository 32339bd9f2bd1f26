"""The losses of PPO and A2C on the CPU: the same as traced ones, at a fraction of the dispatch."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from rlplug import Batch, Loss
from rlplug_ppo import closed_form
from rlplug_ppo.closed_form import Closed
from rlplug_ppo.config import A2CConfig, PPOConfig
from rlplug_ppo.early_stop import stop_at
from rlplug_ppo.module import ActorCriticModule
from rlplug_ppo.scores import Array, Score

__all__ = ["a2c_loss", "apply", "ppo_loss"]

Config: TypeAlias = "A2CConfig | PPOConfig"


def apply(module: ActorCriticModule, *outputs: Tensor) -> bool:
    """Whether there is a closed form, arrays can be had, and nobody traces what becomes of them."""
    if module.scorer is None or torch.compiler.is_compiling() or _is_transformed():
        return False
    return all(
        one.device.type == "cpu" and one.dtype in (torch.float32, torch.float64) for one in outputs
    )


def ppo_loss(
    module: ActorCriticModule, config: PPOConfig, batch: Batch, parameters: Tensor, values: Tensor
) -> Loss:
    """The clipped surrogate, the error of the values, and the entropy."""
    # What overflows is found where gradients are measured, and answered there.
    with numpy.errstate(all="ignore"):
        score = _scored(module, batch, parameters)
        log_ratio = score.log_prob - batch.array("log_prob")
        ratio = numpy.exp(log_ratio)
        policy = closed_form.clipped_surrogate(ratio, _advantages(config, batch), config.clip_range)
        away = ratio - 1
        outside = numpy.count_nonzero(numpy.abs(away) > config.clip_range)
        metrics: dict[str, Any] = {
            "approx_kl": float(numpy.add.reduce(away - log_ratio)) / len(away),
            "clip_fraction": outside / len(away),
        }
        value = closed_form.value_loss(
            values.detach().numpy(),
            batch.array("returns"),
            batch.array("values"),
            config.clip_range_vf,
        )
        stop = stop_at(config.target_kl, metrics)
        return _loss(config, score, policy, value, parameters, values, metrics, stop)


def a2c_loss(
    module: ActorCriticModule, config: A2CConfig, batch: Batch, parameters: Tensor, values: Tensor
) -> Loss:
    """The policy gradient, the error of the values, and the entropy."""
    with numpy.errstate(all="ignore"):
        score = _scored(module, batch, parameters)
        advantages = _advantages(config, batch)
        count = len(advantages)
        policy = -float(advantages @ score.log_prob) / count, advantages * (-1 / count)
        returns = batch.array("returns")
        value = closed_form.value_loss(values.detach().numpy(), returns, returns, 0.0)
        return _loss(config, score, policy, value, parameters, values, {}, None)


def _scored(module: ActorCriticModule, batch: Batch, parameters: Tensor) -> Score:
    assert module.scorer is not None
    mask = batch.array("action_mask") if "action_mask" in batch else None
    return module.scorer(parameters.detach().numpy(), batch.array("actions"), mask)


def _advantages(config: Config, batch: Batch) -> Array:
    advantages: Array = batch.array("advantages")
    return closed_form.normalised(advantages) if config.normalize_advantage else advantages


def _loss(
    config: Config,
    score: Score,
    policy: tuple[float, Array],
    value: tuple[float, Array],
    parameters: Tensor,
    values: Tensor,
    metrics: dict[str, Any],
    stop: Tensor | None,
) -> Loss:
    entropy = float(numpy.add.reduce(score.entropy)) / len(score.entropy)
    weights = {"vf_coef": config.vf_coef, "ent_coef": config.ent_coef}
    closed = Closed(score, policy, value, entropy, **weights)
    total, *terms = closed_form.joined(parameters, values, closed)
    return Loss(
        total,
        {"value_loss": value[0], "entropy": entropy, **metrics},
        dict(zip(("policy_loss", "value_loss", "entropy"), terms, strict=True)),
        stop=stop,
    )


def _is_transformed() -> bool:
    """Whether this runs inside vmap or another function transform, where there are no arrays."""
    return torch._C._functorch.peek_interpreter_stack() is not None
