"""The losses of PPO and A2C on the CPU: the same as traced ones, at a fraction of the dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from rlplug import Batch, KnownLoss, Loss
from rlplug_ppo import closed_form
from rlplug_ppo.closed_form import Closed
from rlplug_ppo.config import A2CConfig, PPOConfig
from rlplug_ppo.early_stop import stop_at
from rlplug_ppo.module import ActorCriticModule
from rlplug_ppo.plain import Pass
from rlplug_ppo.scores import Array, Score

__all__ = ["Traced", "a2c_loss", "ppo_loss", "said"]

Config: TypeAlias = "A2CConfig | PPOConfig"
Said: TypeAlias = "Pass | Traced"


class Traced:
    """What the network said in torch, for autograd to go on from."""

    def __init__(self, parameters: Tensor, values: Tensor) -> None:
        self.tensors = parameters, values
        self.parameters: Array = parameters.detach().numpy()
        self.values: Array = values.detach().numpy()


def said(module: ActorCriticModule, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Said | None:
    """What the network says as arrays; None where there is no closed form, or nobody may use it."""
    if module.scorer is None or torch.compiler.is_compiling() or _is_transformed():
        return None
    plain = module.plain()
    if plain is not None:
        return plain.forward(batch.array("observations"))
    outputs = fwd_out["parameters"], fwd_out["values"]
    if all(one.device.type == "cpu" and one.dtype in _DTYPES for one in outputs):
        return Traced(*outputs)
    return None


def ppo_loss(module: ActorCriticModule, config: PPOConfig, batch: Batch, out: Said) -> Loss:
    """The clipped surrogate, the error of the values, and the entropy."""
    # What overflows is found where gradients are measured, and answered there.
    with numpy.errstate(all="ignore"):
        score = _scored(module, batch, out.parameters)
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
            out.values, batch.array("returns"), batch.array("values"), config.clip_range_vf
        )
        stop = stop_at(config.target_kl, metrics)
        return _loss(module, config, score, policy, value, out, metrics, stop)


def a2c_loss(module: ActorCriticModule, config: A2CConfig, batch: Batch, out: Said) -> Loss:
    """The policy gradient, the error of the values, and the entropy."""
    with numpy.errstate(all="ignore"):
        score = _scored(module, batch, out.parameters)
        advantages = _advantages(config, batch)
        count = len(advantages)
        policy = -float(advantages @ score.log_prob) / count, advantages * (-1 / count)
        returns = batch.array("returns")
        value = closed_form.value_loss(out.values, returns, returns, 0.0)
        return _loss(module, config, score, policy, value, out, {}, None)


def _scored(module: ActorCriticModule, batch: Batch, parameters: Array) -> Score:
    assert module.scorer is not None
    mask = batch.array("action_mask") if "action_mask" in batch else None
    return module.scorer(parameters, batch.array("actions"), mask)


def _advantages(config: Config, batch: Batch) -> Array:
    advantages: Array = batch.array("advantages")
    return closed_form.normalised(advantages) if config.normalize_advantage else advantages


def _loss(
    module: ActorCriticModule,
    config: Config,
    score: Score,
    policy: tuple[float, Array],
    value: tuple[float, Array],
    out: Said,
    metrics: dict[str, Any],
    stop: Tensor | None,
) -> Loss:
    entropy = float(numpy.add.reduce(score.entropy)) / len(score.entropy)
    weights = {"vf_coef": config.vf_coef, "ent_coef": config.ent_coef}
    closed = Closed(score, policy, value, entropy, **weights)
    metrics = {"value_loss": value[0], "entropy": entropy, **metrics}
    if isinstance(out, Traced):
        total, *terms = closed_form.joined(*out.tensors, closed)
        return Loss(total, metrics, dict(zip(_TERMS, terms, strict=True)), stop=stop)
    way_back = out.gradients

    def gradients(weights: Mapping[str, float]) -> Mapping[str, Tensor]:
        with numpy.errstate(all="ignore"):
            return way_back(*closed.slopes(*[weights.get(name, 1.0) for name in _TERMS]))

    numbers = dict(zip(_TERMS, closed.losses, strict=True))
    return KnownLoss(
        module, sum(closed.losses), gradients, numbers=numbers, metrics=metrics, stop=stop
    )


def _is_transformed() -> bool:
    """Whether this runs inside vmap or another function transform, where there are no arrays."""
    return torch._C._functorch.peek_interpreter_stack() is not None


_TERMS = ("policy_loss", "value_loss", "entropy")
_DTYPES = (torch.float32, torch.float64)
