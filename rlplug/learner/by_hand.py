"""The steps of an update as methods of the learner, by RLlib's names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.errors import RequestError
from rlplug.learner.gradients import call_gradient_hooks
from rlplug.learner.modules import Tables, all_trained, member_of
from rlplug.learner.step import (
    Evaluation,
    TrainedModule,
    clip_gradients,
    like_parameter,
    refuse_nonfinite,
    step_optimizers,
)
from rlplug.plugin import ALL_MODULES

Gradients = dict[nn.Parameter, Tensor]


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
    names = learner.trained[module_id].cycle.acting() if module_id in learner.trained else ()
    loss = learner.losses(member_of(learner, module_id), batch, names, fwd_out)
    return None if loss is None else loss.total


def compute_gradients(learner: Tables, losses: Mapping[str, Tensor]) -> Gradients:
    """The gradients of the loss under ALL_MODULES, or of the sum of all if there is none.

    By parameter; of parameters without a gradient, nothing.
    """
    total = losses[ALL_MODULES] if ALL_MODULES in losses else reduce(add, losses.values())
    params = list(dict.fromkeys(param for held in learner.optimizers for param in held.params))
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
    result, params = _given(module, gradients)
    # Gradients by term are taken in `update` alone.
    call_gradient_hooks(learner.calls, learner, module.member, params, result)
    return {param: param.grad for param in params if param.grad is not None}


def apply_gradients(learner: Tables, gradients: Mapping[nn.Parameter, Tensor]) -> None:
    """Clip copies of them, then step every optimizer that has gradients here and does not rest.

    All act at once, whatever `learner.optimizers` is; those with a `frequency` take turns.
    """
    held = {param for optimizer in learner.optimizers for param in optimizer.params}
    if gradients.keys() - held:
        raise RequestError(
            "gradients of parameters that no optimizer of the learner holds.",
            "give those of compute_gradients",
        )
    if any(optimizer.needs_closure for optimizer in learner.optimizers):
        raise RequestError("LBFGS computes its losses again and again.", "try: learner.update(…)")
    for module in all_trained(learner).values():
        result, _ = _given(module, gradients)
        optimizers, names = module.acting(result.acting), tuple(result.acting)
        result = clip_gradients(optimizers, result, learner.learning, learner.precision)
        if result.nonfinite and learner.learning.nonfinite == "stop":
            refuse_nonfinite(module.member)
        step_optimizers(module, result, names, learner.precision.scaler, Evaluation)
        if any(param in gradients for param in module.member.named.values()):
            module.cycle.position += 1
            for target in module.targets:
                target.update(learner.timestep)


def _given(
    module: TrainedModule, gradients: Mapping[nn.Parameter, Tensor]
) -> tuple[Evaluation, list[nn.Parameter]]:
    """An evaluation that gave copies of these gradients, which go into the parameters."""
    names = module.cycle.acting()
    params = [param for optimizer in module.acting(names) for param in optimizer.params]
    for param in params:
        gradient = gradients.get(param)
        param.grad = None if gradient is None else like_parameter(gradient.clone(), param)
    return Evaluation(1.0, metrics=[{}], acting=dict.fromkeys(names, 1.0)), params
