"""The steps of an update as methods of the learner, by RLlib's names, and reduced results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, TypeAlias, TypedDict

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.errors import RequestError
from rlplug.learner.gradients import call_gradient_hooks
from rlplug.learner.modules import Tables, all_trained, member_of
from rlplug.learner.step import (
    Evaluation,
    TrainedModule,
    average,
    clip_gradients,
    like_parameter,
    refuse_nonfinite,
    step_optimizers,
)
from rlplug.plugin import ALL_MODULES

Gradients = dict[nn.Parameter, Tensor]

Results: TypeAlias = dict[str, dict[str, Any]]
"""Module id → metric → value."""

Reduce: TypeAlias = Callable[[Sequence[Mapping[str, Mapping[str, Any]]]], Results]
"""Reduces the results of all minibatches to one mapping."""


class UpdateOptions(TypedDict, total=False):
    """The keywords of `Learner.update_from_batch`."""

    timestep: int | None
    num_iters: int
    minibatch_size: int | None
    reduce_fn: Reduce | None


def forward_train(learner: Tables, batches: Mapping[str, Batch]) -> dict[str, Mapping[str, Tensor]]:
    """What each module computes for its loss."""
    return {
        module_id: member_of(learner, module_id).module.forward_train(batch)
        for module_id, batch in batches.items()
    }


def compute_loss(
    learner: Tables,
    fwd_out: Mapping[str, Mapping[str, Tensor]],
    batches: Mapping[str, Batch],
) -> dict[str, Tensor]:
    """Each module's loss, and their sum under ALL_MODULES, which changes none of them."""
    losses: dict[str, Tensor] = {}
    for module_id, batch in batches.items():
        loss = compute_loss_for_module(learner, module_id, fwd_out[module_id], batch)
        if loss is not None:
            losses[module_id] = loss
    return {**losses, ALL_MODULES: reduce(add, losses.values())} if losses else {}


def compute_loss_for_module(
    learner: Tables, module_id: str, fwd_out: Mapping[str, Tensor], batch: Batch
) -> Tensor | None:
    """The sum of all plugins' terms; None if nobody has one."""
    acting = learner.trained[module_id].cycle.acting() if module_id in learner.trained else []
    names = tuple(optimizer.name for optimizer in acting)
    loss = learner.losses(member_of(learner, module_id), batch, names, fwd_out)
    return None if loss is None else loss.total


def compute_gradients(learner: Tables, losses: Mapping[str, Tensor]) -> Gradients:
    """The gradients of the loss under ALL_MODULES, or of the sum of all if there is none.

    By parameter; of parameters without a gradient, nothing.
    """
    total = losses[ALL_MODULES] if ALL_MODULES in losses else reduce(add, losses.values())
    params = _parameters(learner)
    gradients = torch.autograd.grad(total, params, allow_unused=True)
    pairs = zip(params, gradients, strict=True)
    return {param: gradient for param, gradient in pairs if gradient is not None}


def postprocess_gradients(learner: Tables, gradients: Mapping[nn.Parameter, Tensor]) -> Gradients:
    """The hooks of all modules, and of what they share; no gradient may vanish.

    Gradients are clipped by `apply_gradients`: what makes a step be skipped are the gradients
    that all hooks have changed, and their norm is measured once for both.
    """
    changed = dict(gradients)
    for module_id in all_trained(learner):
        changed |= postprocess_gradients_for_module(learner, module_id, changed)
    return changed


def postprocess_gradients_for_module(
    learner: Tables, module_id: str, gradients: Mapping[nn.Parameter, Tensor]
) -> Gradients:
    """The hooks of one module on copies of its own part."""
    module = all_trained(learner).get(module_id)
    if module is None:
        member_of(learner, module_id)
        return {}
    # Hooks may work in place, and these are the caller's.
    result = _evaluation(module, {param: value.clone() for param, value in gradients.items()})
    if learner.calls.implements("postprocess_gradients"):
        # Gradients by term are taken in `update` alone.
        call_gradient_hooks(learner.calls, learner, module.member, result)
    params = [param for optimizer in result.acting for param in optimizer.params]
    return {param: param.grad for param in params if param.grad is not None}


def apply_gradients(learner: Tables, gradients: Mapping[nn.Parameter, Tensor]) -> None:
    """Clip copies of them, then step every optimizer that has gradients here and does not rest.

    All act at once, whatever `learner.optimizers` is; those with a `frequency` take turns.
    """
    if gradients.keys() - set(_parameters(learner)):
        raise RequestError(
            "gradients of parameters that no optimizer of the learner holds.",
            "give those of compute_gradients",
        )
    for optimizer in learner.optimizers:
        if optimizer.needs_closure:
            raise RequestError(
                f"{optimizer} is LBFGS, which computes its losses again and again.",
                "try: learner.update(…)",
            )
    copies = {param: gradient.clone() for param, gradient in gradients.items()}
    for module in all_trained(learner).values():
        result = clip_gradients(_evaluation(module, copies), learner.learning, learner.precision)
        if result.nonfinite and learner.learning.nonfinite == "stop":
            refuse_nonfinite(module.member)
        moved = step_optimizers(result, learner.precision.scaler, Evaluation, module.metrics)
        module.cycle.advance(moved)
    for module in learner.trained.values():
        if any(param in copies for param in module.member.named.values()):
            module.update_targets(learner.timestep)


def _evaluation(module: TrainedModule, gradients: Mapping[nn.Parameter, Tensor]) -> Evaluation:
    """An evaluation that gave these gradients, which go into the parameters."""
    acting = module.cycle.acting()
    for optimizer in acting:
        for param in optimizer.params:
            gradient = gradients.get(param)
            param.grad = None if gradient is None else like_parameter(gradient, param)
    return Evaluation(1.0, metrics=[{}], acting=acting)


def _parameters(learner: Tables) -> list[nn.Parameter]:
    return list(dict.fromkeys(param for held in learner.optimizers for param in held.params))


# -- results ---------------------------------------------------------------------------------------


def mean_results(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> Results:
    """The mean of every metric of every module, over the minibatches that have it."""
    ids = dict.fromkeys(module_id for part in parts for module_id in part)
    return {
        module_id: average([part[module_id] for part in parts if module_id in part])
        for module_id in ids
    }


def reduced(
    whole: Results, histories: Mapping[str, Sequence[dict[str, Any]]], reduce_fn: Reduce | None
) -> Results | list[Results]:
    """The results of all minibatches as `reduce_fn` reduces them, and what only `whole` has.

    `histories` are the metrics of each module's minibatches; without `reduce_fn` they are given
    back, minibatch by minibatch.
    """
    longest = max(map(len, histories.values()), default=0)
    parts: list[Results] = [
        {name: history[index] for name, history in histories.items() if index < len(history)}
        for index in range(longest)
    ]
    if reduce_fn is None:
        return parts
    results = {module_id: dict(metrics) for module_id, metrics in reduce_fn(parts).items()}
    for module_id, metrics in whole.items():
        seen = {name for part in parts for name in part.get(module_id, ())}
        added = {name: value for name, value in metrics.items() if name not in seen}
        results[module_id] = {**added, **results.get(module_id, {})}
    return results
