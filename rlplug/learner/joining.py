"""Gradients of one step, averaged over all learners of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from rlplug.learner.gradients import laid_out
from rlplug.learner.peers import Peers

if TYPE_CHECKING:
    from rlplug.learner.stage import Stage

__all__ = ["agree_on_rounds", "average_metrics", "join_gradients"]


def agree_on_rounds(peers: Peers, rounds: int) -> int:
    """The most minibatches any learner has: the others join the rest with nothing."""
    if peers.size == 1:
        return rounds
    return int(peers.all_reduce([torch.tensor(rounds)], "max")[0])


def join_gradients(
    peers: Peers,
    stages: Sequence[Stage],
    taken: Sequence[tuple[Stage, float]],
    stopped: set[Stage],
) -> list[tuple[Stage, float]]:
    """The stages that step: those in which any learner has a gradient and none wants to stop."""
    weights = dict(taken)
    joined: list[tuple[Stage, float]] = []
    for stage in stages:
        if _join(peers, stage, weights.get(stage, 0.0), stopped):
            joined.append((stage, 1.0))
    return joined


def _join(peers: Peers, stage: Stage, weight: float, stopped: set[Stage]) -> bool:
    optimizers = stage.member.optimizers
    params = [param for one in optimizers for param in one.params]
    acting = {one.name for one in stage.acting} if weight else set()
    flags = torch.tensor(
        [weight > 0, stage in stopped]
        + [one.name in acting for one in optimizers]
        + [bool(weight) and param.grad is not None for param in params],
        dtype=torch.int64,
    )
    counts = peers.all_reduce([flags])[0].tolist()
    if counts[1]:
        stopped.add(stage)
        return False
    if not counts[0]:
        return False
    stage.acting = [one for one, n in zip(optimizers, counts[2:], strict=False) if n]
    held = [p for p, n in zip(params, counts[2 + len(optimizers) :], strict=True) if n]
    for param in held:
        if param.grad is None or not weight:
            param.grad = torch.zeros_like(param)
    scale = 1.0 / weight if weight else 0.0
    gradients = [param.grad * scale for param in held if param.grad is not None]
    for param, total in zip(held, peers.all_reduce(gradients), strict=True):
        param.grad = laid_out(total / counts[0], param)
    if not weight:
        stage.metrics = {}
    return True


def average_metrics(peers: Peers, metrics: dict[str, Any]) -> dict[str, Any]:
    """Every metric's mean over the learners that have it."""
    if peers.size == 1:
        return metrics
    mine = {name: float(value) for name, value in metrics.items()}
    everyone: list[dict[str, float]] = [{} for _ in range(peers.size)]
    dist.all_gather_object(everyone, mine, group=peers.group)
    names = dict.fromkeys(name for one in everyone for name in one)
    return {
        name: sum(found) / len(found)
        for name in names
        if (found := [one[name] for one in everyone if name in one])
    }
