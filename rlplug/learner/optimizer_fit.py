"""Whether saved states of optimizers fit: of their names, kinds, settings and moments."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlplug.learner.member import Member
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.optim.steps import step_alone

__all__ = ["optimizer_problems"]


def optimizer_problems(member: Member, states: Any) -> Iterator[str]:
    """How states of optimizers differ from the member's, one problem for each optimizer."""
    module_id, names = member.module_id, {one.name for one in member.optimizers}
    if not isinstance(states, Mapping):
        kind = type(states).__name__
        yield f"that of the optimizers of module {module_id!r} is a {kind}, not a mapping"
    elif names != set(states):
        there = sorted(map(str, states))
        yield f"module {module_id!r} has optimizers {there} there, {sorted(names)} here"
    else:
        for one in member.optimizers:
            # All others follow from the first.
            yield from islice(_differences(one, states[one.name]), 1)


def _differences(one: RegisteredOptimizer, saved: Any) -> Iterator[str]:
    who = f"optimizer {one.name!r} of module {one.module_id!r}"
    match saved:
        case {"state": Mapping() as moments, "param_groups": [*groups]}:
            pass
        case _:
            yield f"that of {who} is none of torch"
            return
    if not all(isinstance(group, Mapping) and "params" in group for group in groups):
        yield f"that of {who} has groups without parameters"
        return
    # Keys that are no numbers are of the optimizer itself, whatever they hold.
    if not all(isinstance(moments[key], Mapping) for key in moments if isinstance(key, int)):
        yield f"that of {who} is none of torch"
        return
    own = one.optimizer.param_groups
    there, here = ([len(group["params"]) for group in each] for each in (groups, own))
    if sum(there) != sum(here):
        yield f"{who} holds {sum(there)} parameters there, {sum(here)} here"
    elif there != here:
        yield f"{who} has groups of {there} parameters there, of {here} here"
    else:
        yield from _other_kind(one.optimizer, groups, who)
        yield from _other_moments(one.optimizer, groups, moments, who)


def _other_kind(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]], who: str
) -> Iterator[str]:
    """Settings that only one of the two has tell them apart: SGD's momentum, Adam's betas."""
    kind = type(optimizer).__name__
    for own, settings in zip(optimizer.param_groups, groups, strict=True):
        if unknown := sorted(settings.keys() - own.keys() - _SETTINGS_OF_ANY):
            yield f"{who} is a {kind} here, which has no {unknown[0]!r}"
        if missing := sorted(own.keys() - settings.keys() - _SETTINGS_OF_ANY):
            yield f"{who} is a {kind} here, with {missing[0]!r}, which is not there"
        decoupled = [one.get("decoupled_weight_decay") for one in (settings, own)]
        if None not in decoupled and decoupled[0] != decoupled[1]:
            yield (
                f"{who} has decoupled_weight_decay={decoupled[0]} there, {decoupled[1]} here: "
                "AdamW has it, Adam has not"
            )


def _other_moments(
    optimizer: Optimizer,
    groups: Sequence[Mapping[str, Any]],
    moments: Mapping[Any, Any],
    who: str,
) -> Iterator[str]:
    """Moments of other names or shapes: kernels of torch would write past their ends."""
    for own, settings in zip(optimizer.param_groups, groups, strict=True):
        wanted = _moments_of(optimizer, own, settings)
        for param, key in zip(own["params"], settings["params"], strict=True):
            # A parameter that has not been stepped yet has none.
            if not (found := moments.get(key)):
                continue
            for name, like_param in wanted.items():
                moment = found.get(name)
                shape = tuple(param.shape) if like_param else ()
                if not isinstance(moment, Tensor):
                    kind = type(moment).__name__
                    yield f"{who} has no {name!r} there, or one that is no tensor ({kind})"
                elif tuple(moment.shape) != shape:
                    yield f"{name!r} of {who} has shape {tuple(moment.shape)} there, {shape} here"


def _moments_of(
    optimizer: Optimizer, own: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, bool]:
    """The tensors that it keeps of a parameter, and whether they have its shape.

    Found by a step of a copy of it, as any package can bring an optimizer: nothing of those that
    cannot be copied, or keep something else.
    """
    if not own["params"]:
        return {}
    param = nn.Parameter(own["params"][0].detach().new_zeros(_SHAPE))
    param.grad = torch.zeros_like(param)
    try:
        trial: Any = copy.copy(optimizer)
        trial.state = defaultdict(dict)
        trial.param_groups = [{**own, **settings, "params": [param]}]
        with torch.no_grad():
            step_alone(trial)
        kept = trial.state[param]
        return {
            name: tuple(value.shape) == _SHAPE
            for name, value in kept.items()
            if isinstance(value, Tensor) and tuple(value.shape) in (_SHAPE, ())
        }
    except Exception:
        return {}


_SHAPE = (2, 3)
"""Of a parameter with which an optimizer is tried: moments of this shape have that of theirs."""
_SETTINGS_OF_ANY = {
    "initial_lr",
    "params",
    "param_names",
    "foreach",
    "maximize",
    "capturable",
    "differentiable",
    "fused",
    "decoupled_weight_decay",
}
"""Settings that versions of torch and schedulers add to any optimizer."""
