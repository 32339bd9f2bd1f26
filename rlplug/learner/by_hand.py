"""What people call by hand, by RLlib's names: the steps of an update, weights, optimizers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.learner.gradients import call_gradient_hooks
from rlplug.learner.member import load_part
from rlplug.learner.modules import LearnerModules
from rlplug.learner.state import get_state, load_optimizers, optimizer_states, set_state
from rlplug.learner.step import (
    Evaluation,
    TrainedModule,
    clip_gradients,
    like_parameter,
    refuse_nonfinite,
    step_optimizers,
)
from rlplug.plugin import ALL_MODULES
from rlplug.trees import read_tree, replace_tree

__all__ = [
    "Gradients",
    "apply_gradients",
    "compute_gradients",
    "compute_loss",
    "compute_loss_for_module",
    "filter_gradients",
    "forward_train",
    "get_module_state",
    "get_optimizer_state",
    "load_state",
    "optimizer_settings",
    "postprocess_gradients",
    "save_state",
    "set_module_state",
    "set_optimizer_settings",
    "set_optimizer_state",
]

Gradients = dict[nn.Parameter, Tensor]


def forward_train(
    parts: LearnerModules, batches: Mapping[str, Batch]
) -> dict[str, Mapping[str, Tensor]]:
    """What each module computes for its loss."""
    return {
        module_id: parts.member(module_id).module.forward_train(batch)
        for module_id, batch in batches.items()
    }


def compute_loss(
    parts: LearnerModules,
    fwd_out: Mapping[str, Mapping[str, Tensor]],
    batches: Mapping[str, Batch],
) -> dict[str, Tensor]:
    """Each module's loss, and their sum under ALL_MODULES, which changes none of them."""
    losses: dict[str, Tensor] = {}
    for module_id, batch in batches.items():
        loss = compute_loss_for_module(parts, module_id, fwd_out[module_id], batch)
        if loss is not None:
            losses[module_id] = loss
    return {**losses, ALL_MODULES: _sum(losses)} if losses else {}


def compute_loss_for_module(
    parts: LearnerModules, module_id: str, fwd_out: Mapping[str, Tensor], batch: Batch
) -> Tensor | None:
    """The sum of all plugins' terms; None if nobody has one."""
    module = parts.trained.get(module_id)
    acting = [] if module is None else module.cycle.acting()
    names = tuple(optimizer.name for optimizer in acting)
    loss = parts.losses(parts.member(module_id), batch, names, fwd_out)
    return None if loss is None else loss.total


def compute_gradients(parts: LearnerModules, losses: Mapping[str, Tensor]) -> Gradients:
    """The gradients of the loss under ALL_MODULES, or of the sum of all if there is none."""
    total = losses[ALL_MODULES] if ALL_MODULES in losses else _sum(losses)
    params = _parameters(parts)
    gradients = torch.autograd.grad(total, params, allow_unused=True)
    pairs = zip(params, gradients, strict=True)
    return {param: gradient for param, gradient in pairs if gradient is not None}


def postprocess_gradients(
    parts: LearnerModules, module_id: str, gradients: Mapping[nn.Parameter, Tensor]
) -> Gradients:
    """The hooks of one module on copies of its own part; no gradient may vanish."""
    module = parts.all_trained().get(module_id)
    if module is None:
        raise RequestError(
            f"module {parts.member(module_id).module_id!r} has no optimizer, and so no gradients.",
            "leave it out",
        )
    # Hooks may work in place, and these are the caller's.
    result = _evaluation(module, {param: one.clone() for param, one in gradients.items()})
    if parts.calls.implements("postprocess_gradients"):
        # Gradients by term are taken in `update` alone.
        call_gradient_hooks(parts.calls, parts.learner, module.member, result)
    params = [param for optimizer in result.acting for param in optimizer.params]
    return {param: param.grad for param in params if param.grad is not None}


def apply_gradients(parts: LearnerModules, gradients: Mapping[nn.Parameter, Tensor]) -> None:
    """Clip copies of gradients, then step every optimizer that has some and does not rest."""
    known = {id(param) for param in _parameters(parts)}
    if any(id(param) not in known for param in gradients):
        raise RequestError(
            "gradients of parameters that no optimizer of the learner holds.",
            "give those of compute_gradients",
        )
    modules = parts.all_trained()
    for module in modules.values():
        if any(optimizer.needs_closure for optimizer in module.cycle.optimizers):
            raise RequestError(
                f"the optimizer of module {module.member.module_id!r} is LBFGS, which computes its "
                "losses again and again.",
                "try: learner.update(…)",
            )
    copies = {param: gradient.clone() for param, gradient in gradients.items()}
    for module in modules.values():
        result = clip_gradients(_evaluation(module, copies), parts.learning, parts.precision)
        if result.nonfinite and parts.learning.nonfinite == "stop":
            refuse_nonfinite(module.member)
        moved = step_optimizers(result, parts.precision.scaler, Evaluation, module.metrics)
        module.cycle.advance(moved)
    for module in parts.trained.values():
        if any(param in copies for param in module.member.named.values()):
            module.update_targets(parts.timestep)


def filter_gradients(
    gradients: Mapping[nn.Parameter, Tensor], optimizer: torch.optim.Optimizer
) -> Gradients:
    """The part of a mapping that belongs to one optimizer."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return {param: gradients[param] for param in params if gradients.get(param) is not None}


def _evaluation(module: TrainedModule, gradients: Mapping[nn.Parameter, Tensor]) -> Evaluation:
    """An evaluation that gave these gradients, which go into the parameters."""
    acting = module.cycle.acting()
    for optimizer in acting:
        for param in optimizer.params:
            gradient = gradients.get(param)
            param.grad = None if gradient is None else like_parameter(gradient, param)
    return Evaluation(1.0, metrics=[{}], acting=acting)


def _parameters(parts: LearnerModules) -> list[nn.Parameter]:
    return list(dict.fromkeys(param for one in parts.optimizers for param in one.params))


def _sum(losses: Mapping[str, Tensor]) -> Tensor:
    first, *others = losses.values()
    for other in others:
        first = first + other
    return first


# -- weights, optimizers, files --------------------------------------------------------------------


def get_module_state(parts: LearnerModules, module_ids: Iterable[str] | None) -> dict[str, Any]:
    """The weights of modules as NumPy arrays; None: of all torch modules."""
    if module_ids is None:
        module_ids = [module_id for module_id, one in parts.members.items() if one.is_torch]
    return {
        module_id: {
            name: value.detach().cpu().numpy().copy()
            for name, value in _torch_module(parts, module_id).state_dict().items()
        }
        for module_id in module_ids
    }


def set_module_state(parts: LearnerModules, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Load weights from arrays or tensors; where any does not fit, all stay as they were."""
    before = {
        module_id: copy.deepcopy(_torch_module(parts, module_id).state_dict())
        for module_id in saved
    }
    try:
        for module_id, weights in saved.items():
            tensors = {name: torch.as_tensor(value) for name, value in weights.items()}
            load_part(_torch_module(parts, module_id), tensors, f"module {module_id!r}")
    except BaseException:
        for module_id, weights in before.items():
            _torch_module(parts, module_id).load_state_dict(weights)
        raise


def get_optimizer_state(
    parts: LearnerModules, module_ids: Sequence[str] | None
) -> dict[str, dict[str, Any]]:
    """The states of optimizers, by module id and name; None: of all modules."""
    for module_id in module_ids or ():
        if module_id != ALL_MODULES:
            parts.member(module_id)
    ids = parts.all_trained() if module_ids is None else module_ids
    return copy.deepcopy(optimizer_states(parts, ids))


def set_optimizer_state(parts: LearnerModules, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Load states of optimizers; where any does not fit, all stay as they were."""
    before = copy.deepcopy(optimizer_states(parts, saved))
    try:
        for module_id, states in saved.items():
            load_optimizers(parts, module_id, states)
    except BaseException:
        for module_id, states in before.items():
            load_optimizers(parts, module_id, states)
        raise
    parts.set_timestep(parts.timestep)


def optimizer_settings(parts: LearnerModules) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Learning rate, betas and the like, per optimizer and group of parameters.

    Not the learning rate of those that a scheduler moves.
    """
    parts.build()
    return {
        (optimizer.module_id, optimizer.name): [
            {
                key: value
                for key, value in group.items()
                if key not in ("params", "initial_lr")
                and not (key == "lr" and optimizer.scheduler is not None)
            }
            for group in optimizer.optimizer.param_groups
        ]
        for optimizer in parts.optimizers
    }


def set_optimizer_settings(
    parts: LearnerModules, settings: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
) -> None:
    """Set what `optimizer_settings` gave, over the settings of a state that was loaded."""
    for (module_id, name), groups in settings.items():
        held = parts.optimizers.get(module_id, name).optimizer.param_groups
        for group, values in zip(held, groups, strict=True):
            group.update(values)
    parts.set_timestep(parts.timestep)


def save_state(parts: LearnerModules, folder: Path | str) -> None:
    """Write the whole state to a folder, completely or not at all."""
    path = _folder(folder)
    try:
        replace_tree(path, get_state(parts))
    except (OSError, ValueError) as error:
        # ValueError: of a path that holds a null character.
        reason = getattr(error, "strerror", None) or str(error)
        raise RequestError(
            f"the state cannot be saved in {path}: {type(error).__name__}: {reason}.",
            "give a folder that can be made or written",
        ) from error


def load_state(parts: LearnerModules, folder: Path | str, *, rebuild: bool) -> None:
    """Read the whole state back."""
    set_state(parts, read_tree(_folder(folder)), rebuild=rebuild)


def _folder(folder: Path | str) -> Path:
    return absolute_path(Path(folder), "the folder of a state")


def _torch_module(parts: LearnerModules, module_id: str) -> nn.Module:
    module = parts.member(module_id).module
    if not isinstance(module, nn.Module):
        raise RequestError(
            f"module {module_id!r} is a {type(module).__name__}, which has no weights.",
            "leave it out",
        )
    return module
