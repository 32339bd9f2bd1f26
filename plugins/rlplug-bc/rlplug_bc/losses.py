"""The loss of behaviour cloning: the negative log-likelihood of the logged actions."""

from __future__ import annotations

from torch import Tensor

from rlplug import Batch, Loss
from rlplug.nn import Distribution

__all__ = ["bc_loss"]


def bc_loss(
    distribution: Distribution, parameters: Tensor, batch: Batch, ent_coef: float, l2: Tensor | None
) -> Loss:
    """Mean of -log π(a|s) - ent_coef H(π(·|s)) over rows, weighted where rows have weights."""
    log_prob, entropy = distribution.score(parameters, batch["actions"], batch.get("action_mask"))
    losses = -log_prob - ent_coef * entropy
    if "weights" in batch:
        losses = losses * batch["weights"]
    loss = losses.mean()
    metrics = {"neglogp": -log_prob.detach().mean(), "entropy": entropy.detach().mean()}
    return Loss(loss if l2 is None else loss + l2, metrics)
