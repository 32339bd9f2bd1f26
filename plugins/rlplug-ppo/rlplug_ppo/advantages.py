"""Advantages over the fragments of a rollout.

GAE: generalised advantage estimation (Schulman et al. 2016). V-trace (Espeholt et al. 2018): the
same for rows that older weights chose.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlplug import Batch
from rlplug.errors import PluginError
from rlplug_ppo.module import ActorCriticModule

__all__ = ["discounted_sums", "evaluate_rollout", "gae", "vtrace"]


def evaluate_rollout(
    module: ActorCriticModule,
    batch: Batch,
    *,
    gamma: float,
    gae_lambda: float,
    bootstrap_truncated: bool,
    truncation: tuple[float, float] | None = None,
) -> dict[str, Tensor]:
    """The columns `advantages`, `returns`, `values`, `log_prob` and `parameters` of a rollout.

    They come from one forward pass over the rollout, unless acting returned them as extras. With
    `truncation` (rho_bar and c_bar of V-trace), values are those of the weights of this update,
    and there is a column `rho`: the ratio of their probabilities to the `log_prob` of acting.
    """
    if "values" in batch and truncation is None:
        parameters, values = batch["parameters"], batch["values"]
        next_values = _next_values(module, batch)
    else:
        extended = batch.extended()
        out = module.forward_train(extended)
        values, next_values = extended.split(out["values"])
        parameters, _ = extended.split(out["parameters"])
    terminated = batch["terminated"]
    if not bootstrap_truncated:
        terminated = terminated | batch["truncated"]
    rewards = batch["rewards"].to(values.dtype)
    columns = {"values": values, "parameters": parameters}
    log_prob = batch.get("log_prob")
    if truncation is not None or log_prob is None:
        current = module.distribution.log_prob(
            parameters, batch["actions"], batch.get("action_mask")
        )
    if log_prob is None:
        columns["log_prob"] = current
    steps = rewards, values, next_values, terminated, _continues(batch, values.dtype)
    if truncation is None:
        advantages = gae(*steps, gamma=gamma, gae_lambda=gae_lambda)
        return {**columns, "advantages": advantages, "returns": advantages + values}
    if log_prob is None:
        raise PluginError(
            "advantages = 'vtrace' needs the log-probabilities of the weights that acted, but the "
            f"batch has no column log_prob: {type(module).__name__}.forward_exploration returned "
            "none.",
            'try: --set advantages=gae, or Acted(…, extras={"log_prob": …})',
        )
    rho, c = ((current - log_prob).exp().clamp(max=bar) for bar in truncation)
    advantages, returns = vtrace(*steps, rho, c, gamma=gamma, gae_lambda=gae_lambda)
    return {**columns, "advantages": advantages, "returns": returns, "rho": rho}


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    continues: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """The advantage of each row, shape (n,).

    Terminated rows do not bootstrap, all others do. The sum of TD errors ends where `continues` is
    0: at a time limit and at the end of the rollout.
    """
    deltas = _td_errors(rewards, values, next_values, terminated, gamma)
    return discounted_sums(deltas, gamma * gae_lambda * continues)


def vtrace(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    continues: Tensor,
    rho: Tensor,
    c: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """The advantage and the value target of each row, both of shape (n,).

    `rho` and `c` are the probability of the action by the policy that learns, divided by that of
    the policy that acted, each truncated. Where all are 1, this is GAE. The advantages are without
    the ratio of their own action, which the loss of the policy multiplies them by.
    """
    deltas = _td_errors(rewards, values, next_values, terminated, gamma)
    decay = gamma * gae_lambda * continues
    corrections = discounted_sums(rho * deltas, c * decay)
    # Nothing follows the last row: its decay is 0.
    following = torch.cat([corrections[1:], corrections[-1:]])
    return deltas + decay * following, values + corrections


def discounted_sums(terms: Tensor, decay: Tensor) -> Tensor:
    """`sums[t] = terms[t] + decay[t] * sums[t + 1]`; the last decay is 0.

    A parallel scan: sums over 1, 2, 4, … rows are combined, so that it takes as many passes as
    the longest stretch without a decay of 0 has binary digits, and no loop over time.
    """
    sums, decay, span = terms, decay[:-1].to(terms.dtype), 1
    while decay.any():
        sums = torch.cat([sums[:-span] + decay * sums[span:], sums[-span:]])
        decay = decay[:-span] * decay[span:]
        span *= 2
    return sums


def _td_errors(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, gamma: float
) -> Tensor:
    return rewards + gamma * next_values * ~terminated - values


def _next_values(module: ActorCriticModule, batch: Batch) -> Tensor:
    """The values of the following rows, and of the final observations of the fragments."""
    finals = Batch({"observations": batch["final_observations"]})
    values: Tensor = batch["values"]
    final_values = module.forward_train(finals)["values"].to(values.dtype)
    return values.roll(-1).index_copy(0, batch["fragments"][:, 1] - 1, final_values)


def _continues(batch: Batch, dtype: torch.dtype) -> Tensor:
    """1 where the next row belongs to the same episode, 0 elsewhere."""
    last, terminated = batch["fragments"][:, 1] - 1, batch["terminated"]
    cut = torch.ones_like(last, dtype=dtype)
    if "continued" in batch:
        # Truncated backpropagation through time cuts fragments, but not episodes.
        cut = (~batch["continued"]).to(dtype)
    return 1 - torch.zeros_like(terminated, dtype=dtype).scatter_add(0, last, cut)
