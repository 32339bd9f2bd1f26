"""TD targets and losses of DQN (Mnih et al. 2015), C51 and QR-DQN."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from rlplug import Batch, Loss
from rlplug.nn import DistributionalHead, QuantileHead, project
from rlplug_dqn.config import DQNConfig
from rlplug_dqn.module import DQNModule

__all__ = [
    "conservative_penalty",
    "cross_entropy",
    "distributional_target",
    "dqn_loss",
    "gather_actions",
    "greedy_actions",
    "quantile_huber",
    "quantile_target",
    "td_loss",
    "td_target",
    "td_targets",
]


def dqn_loss(
    module: DQNModule, config: DQNConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
) -> Loss:
    """The loss between the values of the actions taken and the TD targets."""
    targets, head = batch["targets"], module.head
    predicted = gather_actions(fwd_out["outputs"], module.indices(batch["actions"]))
    known = predicted.detach()
    if isinstance(head, DistributionalHead):
        losses = priority = cross_entropy(predicted, targets)
    elif isinstance(head, QuantileHead):
        losses = priority = quantile_huber(predicted, targets, head.fractions)
    else:
        losses = td_loss(predicted, targets, config.loss)
        priority = (known - targets).abs()
    # Importance-sampling weights of prioritized replay.
    weighted = losses * batch["weights"] if "weights" in batch else losses
    metrics = {"q_mean": head.values(known).mean(), "surprise": priority.detach().mean()}
    loss = weighted.mean()
    if not config.cql_alpha:
        return Loss(loss, metrics, rows={"priority": priority})
    penalty = conservative_penalty(
        fwd_out["q_values"], module.indices(batch["actions"]), batch.get("action_mask")
    )
    terms = {"td": loss, "cql": config.cql_alpha * penalty.mean()}
    return Loss(terms["td"] + terms["cql"], metrics, terms=terms, rows={"priority": priority})


def conservative_penalty(q_values: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor:
    """log Σ exp Q(s, ·) − Q(s, a) of each row, over the allowed actions (CQL(H), eq. 4)."""
    chosen = gather_actions(q_values, actions)
    if mask is not None:
        q_values = q_values.masked_fill(mask == 0, -torch.inf)
    return torch.logsumexp(q_values, 1) - chosen


def td_targets(module: DQNModule, batch: Batch, gamma: float = 0.99) -> Tensor:
    """Computes the TD targets: truncated rows bootstrap, terminated ones do not.

    `gamma` is the discount of rows that bring no `discounts` of their own.
    """
    rewards, terminated = batch["rewards"], batch["terminated"]
    next_observations, mask = batch["next_observations"], batch.get("next_action_mask")
    discounts = batch.get("discounts")
    if discounts is None:
        discounts = torch.full_like(rewards, gamma)
    head, outputs = module.head, module.target(next_observations)
    # Double DQN (van Hasselt et al. 2016): the online network chooses, the target network values.
    q_values = module.q_values(next_observations) if module.is_double else head.values(outputs)
    following = gather_actions(outputs, greedy_actions(q_values, mask))
    if isinstance(head, DistributionalHead):
        probabilities = torch.softmax(following, -1)
        return distributional_target(rewards, discounts, terminated, probabilities, head.support)
    if isinstance(head, QuantileHead):
        return quantile_target(rewards, discounts, terminated, following)
    return td_target(rewards, discounts, terminated, following)


def greedy_actions(q_values: Tensor, mask: Tensor | None) -> Tensor:
    """The best of the allowed actions, (n, actions) to (n,)."""
    if mask is not None:
        q_values = q_values.masked_fill(mask == 0, -torch.inf)
    return q_values.argmax(1)


def gather_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """The outputs of one action per row, (n, actions) to (n,), (n, actions, m) to (n, m)."""
    if outputs.dim() == 2:
        return outputs.gather(1, actions.unsqueeze(1)).squeeze(1)
    index = actions[:, None, None].expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index)[:, 0]


def td_target(
    rewards: Tensor, discounts: Tensor, terminated: Tensor, next_values: Tensor
) -> Tensor:
    """Reward plus discounted value of the next state, 0 after a terminated step."""
    return rewards + discounts * next_values * ~terminated


def distributional_target(
    rewards: Tensor,
    discounts: Tensor,
    terminated: Tensor,
    probabilities: Tensor,
    support: Tensor,
) -> Tensor:
    """Projected target distribution of C51 (Bellemare et al. 2017, algorithm 1), (n, atoms)."""
    # All mass of a terminated row lies on one return: uniform, so that not even rounding depends
    # on the next state.
    uniform = 1 / support.shape[0]
    probabilities = probabilities.masked_fill(terminated[:, None], uniform)
    returns = td_target(rewards[:, None], discounts[:, None], terminated[:, None], support[None, :])
    return project(probabilities, returns, support)


def quantile_target(
    rewards: Tensor, discounts: Tensor, terminated: Tensor, quantiles: Tensor
) -> Tensor:
    """Target quantiles of QR-DQN, (n, m)."""
    return td_target(rewards[:, None], discounts[:, None], terminated[:, None], quantiles)


def td_loss(q_values: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Huber loss with threshold 1 or squared error of each row, (n,)."""
    if kind == "mse":
        return functional.mse_loss(q_values, targets, reduction="none")
    return functional.smooth_l1_loss(q_values, targets, reduction="none")


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy loss of C51 for each row, (n, atoms) and (n, atoms) to (n,)."""
    return -(targets * functional.log_softmax(logits, -1)).sum(-1)


def quantile_huber(quantiles: Tensor, targets: Tensor, fractions: Tensor) -> Tensor:
    """Quantile Huber loss (Dabney et al. 2018, eq. 10) for each row, (n, m) and (n, k) to (n,)."""
    errors = targets[:, None, :] - quantiles[:, :, None]
    sizes = errors.abs()
    huber = torch.where(sizes <= 1, 0.5 * errors**2, sizes - 0.5)
    weights = (fractions[None, :, None] - (errors.detach() < 0).to(errors.dtype)).abs()
    return (weights * huber).mean(2).sum(1)
