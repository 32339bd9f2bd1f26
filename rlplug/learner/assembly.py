"""Make the members of a learner: modules, extras, optimizers, in this order for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import LBFGS, Adam

from rlplug.errors import PluginError, RequestError
from rlplug.learner.device import apply_compute, choose_device, is_small
from rlplug.learner.member import Member
from rlplug.learner.optimizers import Registered
from rlplug.learner.precision import Precision
from rlplug.learner.shared import SharedParameters, find_shared
from rlplug.learner.stage import Stage
from rlplug.optim.forms import OptimizerPlan, read_forms
from rlplug.plugin import ALL_MODULES, Module
from rlplug.seeding import derive

if TYPE_CHECKING:
    from rlplug.learner.owned import Owned

__all__ = ["assemble", "default_optimizer", "forget", "make_member"]


def make_member(learner: Owned, module_id: str, given: Any = None) -> Member:
    """Build a module, or take the one given, and build its extras."""
    if module_id == ALL_MODULES:
        raise RequestError(f"{ALL_MODULES!r} stands for all modules.", "choose another id")
    calls = learner.calls
    observation_space, action_space = learner.spaces.get(module_id, (None, None))
    seed = derive(learner.seed, "module", module_id)
    module = given
    if given is None:
        module = calls.build(module_id, observation_space, action_space, seed)
    extras = {}
    if isinstance(module, Module):
        extras = calls.build_extra(module_id, module, observation_space, action_space, seed)
    return Member(module_id, module, extras, calls.algorithm.name)


def assemble(learner: Owned, new: Sequence[Member]) -> None:
    """Settle the device, then give new members their place and their optimizers."""
    members = [*learner.members.values(), *new]
    parts = [part for member in members for part in member.parts()]
    if learner.chosen is None:
        learner.chosen = choose_device(learner.compute, parts)
        learner.precision = Precision(learner.compute, learner.device)
        small = is_small(parts)
        apply_compute(learner.compute, learner.device, small=small)
    shared = find_shared(members)
    _refuse_taken(learner, shared)
    wanted = torch.float64 if learner.compute.dtype == "float64" else None
    for member in new:
        for part in member.parts():
            part.to(learner.device, wanted)
        learner.modules[member.module_id] = member.module
        learner.extra[member.module_id] = member.extras
        learner.members[member.module_id] = member
    for member in members:
        member.shared = shared & {id(param) for param in member.named.values()}
    for member in new:
        _configure(learner, member)
    if shared and learner.shared_stage is None:
        _assemble_shared(learner, members, shared)


def forget(learner: Owned, member: Member) -> None:
    """Remove a module with all that belongs to it."""
    module_id = member.module_id
    learner.optimizers.remove(module_id)
    learner.followers = [one for one in learner.optimizers if one.rates]
    for known in (
        learner.members,
        learner.modules,
        learner.extra,
        learner.stages,
        learner.spaces,
        learner.rows,
    ):
        known.pop(module_id, None)


def _assemble_shared(learner: Owned, members: list[Member], shared: frozenset[int]) -> None:
    module = SharedParameters(members, shared)
    both = Member(ALL_MODULES, module, {}, learner.calls.algorithm.name)
    learner.extra[ALL_MODULES] = {}
    _configure(learner, both)
    if both.optimizers:
        learner.shared_stage = Stage(both, learner)


def _configure(learner: Owned, member: Member) -> None:
    calls = learner.calls
    module_id = member.module_id
    if not member.is_torch:
        return
    algorithm = member.algorithm
    answers = dict(calls.configure_optimizers_for_module(module_id, member.module, learner))
    registered = {one.plugin for one in learner.optimizers.of(module_id)}
    if algorithm not in {*answers, *registered} and (params := member.own(algorithm)):
        config = calls.scheduled_config_of(algorithm, module_id)
        answers = {algorithm: default_optimizer(config, algorithm, params), **answers}
    for plugin, answer in answers.items():
        for plan in read_forms(answer, f"configure_optimizers_for_module of plugin {plugin!r}"):
            name = _name(plan, plugin, algorithm)
            one = Registered(module_id, name, plugin, plan.optimizer)
            one.burst = plan.burst
            learner.optimizers.add(one, plan.scheduler)
    learner.adopt(member)
    _check_alone(member, learner)


def default_optimizer(config: Any, algorithm: str, params: list[nn.Parameter]) -> Adam:
    rate = getattr(config, "learning_rate", None)
    if rate is None:
        raise PluginError(
            f"algorithm {algorithm!r} has parameters but neither an option 'learning_rate' "
            "nor the hook 'configure_optimizers_for_module'.",
            "add one of them; the hook may return None",
        )
    return Adam(params, lr=rate, fused=params[0].device.type in ("cpu", "cuda"))


def _name(plan: OptimizerPlan, plugin: str, algorithm: str) -> str:
    if plugin == algorithm:
        return plan.name
    return plugin if plan.name == "default" else f"{plugin}.{plan.name}"


def _check_alone(member: Member, learner: Owned) -> None:
    """LBFGS evaluates a loss again and again: nothing else may move meanwhile."""
    for one in member.optimizers:
        if not isinstance(one.optimizer, LBFGS):
            continue
        where = f"optimizer {one.name!r} of module {member.module_id!r} is LBFGS"
        always = [other for other in member.optimizers if other is not one and not other.burst]
        if member.shared or always or (len(member.optimizers) > 1 and not one.burst):
            raise PluginError(
                f"{where}, which must act alone.",
                "give it the module's only optimizer, or a 'frequency' of its own",
            )
        if learner.precision.scaler is not None:
            raise RequestError(f"{where}, which cannot work with compute.precision 'fp16'.")


def _refuse_taken(learner: Owned, shared: frozenset[int]) -> None:
    for one in learner.optimizers:
        if one.module_id != ALL_MODULES and any(id(param) in shared for param in one.params):
            raise PluginError(
                f"a new module shares parameters that optimizer {one.name!r} of module "
                f"{one.module_id!r} moves.",
                "build modules that share parameters together, from the start",
            )
