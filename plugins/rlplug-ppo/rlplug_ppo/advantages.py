"""Generalised advantage estimation (Schulman et al. 2016) over fragments of episodes."""

from __future__ import annotations

import torch
from torch import Tensor

from rlplug import Batch
from rlplug_ppo.module import ActorCriticModule, mask_of

__all__ = ["advantages", "discounted_sums", "evaluated"]


def evaluated(
    module: ActorCriticModule,
    batch: Batch,
    *,
    gamma: float,
    gae_lambda: float,
    bootstrap_truncated: bool,
) -> dict[str, Tensor]:
    """What every minibatch needs of a rollout, from one pass over all of it.

    Log-probabilities are those of the weights as they are, unless acting brought its own;
    `parameters` are those of the distributions that the update starts from.
    """
    extended = batch.extended()
    out = module.forward_train(extended)
    values, next_values = extended.split(out["values"])
    parameters, _ = extended.split(out["parameters"])
    terminated = batch["terminated"]
    if not bootstrap_truncated:
        terminated = terminated | batch["truncated"]
    found = advantages(
        batch["rewards"].to(values.dtype),
        values,
        next_values,
        terminated,
        _flows_back(batch),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    columns = {"advantages": found, "returns": found + values, "values": values}
    if "log_prob" not in batch:
        columns["log_prob"] = module.distribution.log_prob(
            parameters, batch["actions"], mask_of(batch)
        )
    return {**columns, "parameters": parameters}


def advantages(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    flows_back: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """How much better each step was than its state's value, shape (n,).

    A terminated step has no future. Where `flows_back` is False without that, at a time limit or
    at the end of the rollout, the value of what came next stands for what would have come.
    """
    errors = rewards + gamma * next_values * ~terminated - values
    return discounted_sums(errors, gamma * gae_lambda * flows_back)


def discounted_sums(terms: Tensor, decay: Tensor) -> Tensor:
    """Each row's term plus its decay times the sum of the row after it; the last decay is 0.

    Sums over 1, 2, 4, … rows are joined, until decays of 0 leave nothing to join: as many passes
    as the longest stretch without one has binary digits, and no loop over time.
    """
    sums, reached = terms.clone(), decay.to(terms.dtype)
    span = 1
    while span < len(terms) and bool(reached.any()):
        # What the next span adds is read before anything of it is written.
        later = reached[:-span] * sums[span:]
        further = reached[:-span] * reached[span:]
        sums[:-span] += later
        reached = torch.zeros_like(reached)
        reached[:-span] = further
        span *= 2
    return sums


def _flows_back(batch: Batch) -> Tensor:
    """Where the row after a row goes on where it stopped, so that what comes there counts here."""
    fragments = batch["fragments"]
    flows = torch.ones(batch.rows, dtype=torch.bool, device=fragments.device)
    # Pieces of an episode that a memory is learned through still belong together.
    flows[fragments[:, 1] - 1] = batch.get("continued", False)
    return flows
