"""TD targets and the loss of VDN (Sunehag et al. 2018) and QMIX (Rashid et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from rlplug_dqn.losses import td_loss, td_target
from torch import Tensor

from rlplug import Batch, Loss
from rlplug_vdn.config import VDNConfig
from rlplug_vdn.module import TeamModule, best_actions, of_actions

__all__ = ["team_loss", "team_targets"]


def team_targets(module: TeamModule, batch: Batch, gamma: float) -> Tensor:
    """Reward of the team plus the discounted value of its next state, shape (n,).

    Each agent's best action is chosen by itself: the value of the team grows with each of theirs.
    """
    rewards, following = batch["rewards"], batch["next_observations"]
    discounts = batch.get("discounts")
    if discounts is None:
        discounts = torch.full_like(rewards, gamma)
    mask = batch.get("next_action_mask")
    values = module.each(module.target, following)
    online = module.each(module.network, following) if module.is_double else values
    best = best_actions(online, None if mask is None else module.by_agent(mask))
    next_values = module.total(of_actions(values, best), following, target=True)
    return td_target(rewards, discounts, batch["terminated"], next_values)


def team_loss(
    module: TeamModule, config: VDNConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
) -> Loss:
    """The loss between the values of what teams did and their TD targets."""
    actions = module.by_agent(module.indices(batch["actions"]))
    values = module.by_agent(fwd_out[module.output])
    predicted = module.total(of_actions(values, actions), batch["observations"])
    targets = batch["targets"]
    losses = td_loss(predicted, targets, config.loss)
    priority = (predicted.detach() - targets).abs()
    weighted = losses * batch["weights"] if "weights" in batch else losses
    with torch.no_grad():
        metrics = {"q_mean": predicted.mean(), "surprise": priority.mean()}
    return Loss(weighted.mean(), metrics, rows={"priority": priority})
