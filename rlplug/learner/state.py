"""The state of a learner: read, loaded and written, and digests of what plugins keep beside it."""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Adafactor

from rlplug.config.secrets import masked, without_masked
from rlplug.config.toml import plain
from rlplug.errors import PluginError, RequestError, RlplugError
from rlplug.hooks.calls import HookCalls
from rlplug.learner.modules import LearnerModules
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.registry import NOT_INSTALLED, packages
from rlplug.seeding import random_state, set_random_state
from rlplug.spaces import AnySpace, space_from_dict, space_to_dict

__all__ = [
    "digest",
    "generators",
    "get_state",
    "load_optimizers",
    "optimizer_states",
    "plugin_digests",
    "refuse_unsaved",
    "set_generators",
    "set_state",
    "weight_digests",
]

_FORMAT = 2
_DEPTH = 8
_PLAIN = (bool, int, float, complex, str, bytes, numpy.generic)


def get_state(parts: LearnerModules) -> dict[str, Any]:
    """Everything that the next update depends on, as a tree of tensors and plain values."""
    scaler, wanted = parts.precision.scaler, parts.modules_to_train
    ids = None if wanted is None or callable(wanted) else sorted(wanted)
    calls, members = parts.calls, parts.members
    # A snapshot: state dicts hold the very tensors that training goes on to change.
    return copy.deepcopy(
        {
            "format": _FORMAT,
            "plugins": packages(calls.participants),
            "counters": {"timestep": parts.timestep, "updates": parts.updates},
            "modules_to_train": ids,
            "chosen_by_function": callable(wanted),
            "frozen": [one.module_id for one in members.values() if not one.trainable],
            "spaces": {module_id: _spaces_of(parts, module_id) for module_id in members},
            "modules": {
                module_id: member.module.state_dict()
                for module_id, member in members.items()
                if member.has_state
            },
            "options": {
                module_id: {
                    plugin: masked(plain(config))
                    for plugin, config in calls.overrides(module_id).items()
                }
                for module_id in members
            },
            "plugin_options": {one.name: masked(plain(one.config)) for one in calls.participants},
            "extra": {
                module_id: {plugin: extra.state_dict() for plugin, extra in extras.items()}
                for module_id, extras in parts.extra.items()
                if extras
            },
            "optimizers": optimizer_states(parts, parts.all_trained()),
            "stages": {
                module_id: {
                    "cycle_positions": dict(module.cycle.positions),
                    "shuffler": module.shuffler.get_state(),
                    "engine": module.engine.get_state(),
                    "idle_minibatches": {
                        optimizer.name: optimizer.idle_minibatches
                        for optimizer in module.cycle.optimizers
                    },
                    "schedulers": {
                        optimizer.name: optimizer.scheduler.state_dict()
                        for optimizer in module.cycle.optimizers
                        if optimizer.scheduler is not None
                    },
                }
                for module_id, module in parts.all_trained().items()
            },
            "generators": _states(parts.generators),
            "scaler": {} if scaler is None else scaler.state_dict(),
            "plugin_states": {name: dict(saved) for name, saved in calls.save_state().items()},
            "random": random_state(parts.device),
        }
    )


def set_state(parts: LearnerModules, saved: Mapping[str, Any], *, rebuild: bool) -> None:
    """Continue from a state; where it cannot be loaded, everything is as it was before.

    With `rebuild`, modules of another shape are built again with the state's spaces and options.
    """
    _check_origin(saved, packages(parts.calls.participants))
    parts.build()
    before = get_state(parts)
    try:
        with parts.undone_on_error():
            _load(parts, saved, rebuild=rebuild)
    except BaseException as error:
        # What failed to load may fail again: the first error is the one to be told.
        with suppress(Exception):
            _load(parts, before, rebuild=False)
        if isinstance(error, RlplugError) or not isinstance(error, Exception):
            raise
        raise RequestError(
            f"the state does not fit this learner: {type(error).__name__}: {error}",
            *getattr(error, "__notes__", ()),
            "use the options and spaces of the run that saved it",
        ) from error


def _load(parts: LearnerModules, saved: Mapping[str, Any], *, rebuild: bool) -> None:
    for module_id, member in parts.members.items():
        if member.has_state and module_id not in saved["modules"]:
            raise RequestError(
                f"the state has no module {module_id!r}.",
                f"it has: {', '.join(saved['modules']) or 'none'}",
                f"try: learner.remove_module({module_id!r}) before",
            )
    for module_id, weights in saved["modules"].items():
        known = parts.members.get(module_id)
        if known is None:
            _build_saved(parts, module_id, saved, rebuild=rebuild)
        elif rebuild and known.is_torch and not _fits(known.module, weights):
            wanted = parts.modules_to_train
            parts.remove_module(module_id)
            _build_saved(parts, module_id, saved, rebuild=True)
            parts.modules_to_train = wanted
        else:
            parts.replace_options(module_id, saved["options"].get(module_id, {}))
        member = parts.members[module_id]
        member.trainable = module_id not in saved["frozen"]
        member.load(weights, saved["extra"].get(module_id, {}))
    for module_id, module in parts.all_trained().items():
        stage = saved["stages"][module_id]
        load_optimizers(parts, module_id, saved["optimizers"].get(module_id, {}))
        held = [one for one in module.cycle.optimizers if one.scheduler is not None]
        scheduled = {optimizer.name for optimizer in held}
        turns = stage["cycle_positions"].keys(), module.cycle.positions.keys()
        if turns[0] != turns[1] or stage["schedulers"].keys() != scheduled:
            raise RequestError(
                f"the optimizers of module {module_id!r} have other schedulers in the state, or "
                "take turns in another way.",
                "use the options and plugins of the run that saved it",
            )
        module.cycle.positions.update(stage["cycle_positions"])
        module.shuffler.set_state(stage["shuffler"])
        module.engine = parts.engine_of(module.member, stage["engine"])
        for optimizer in module.cycle.optimizers:
            optimizer.idle_minibatches = stage["idle_minibatches"][optimizer.name]
            if optimizer.scheduler is not None:
                optimizer.scheduler.load_state_dict(stage["schedulers"][optimizer.name])
    if lost := saved["optimizers"].keys() - parts.all_trained().keys():
        raise RequestError(
            f"the state has optimizers for {min(lost)!r}, which has none here.",
            "use the options and plugins of the run that saved it",
        )
    wanted = saved["modules_to_train"]
    if wanted is not None or not (callable(parts.modules_to_train) or saved["chosen_by_function"]):
        parts.modules_to_train = None if wanted is None else set(wanted)
    if parts.precision.scaler is not None and saved["scaler"]:
        parts.precision.scaler.load_state_dict(saved["scaler"])
    for module_id, generator in saved["generators"].items():
        parts.generator(module_id).set_state(generator)
    parts.updates = saved["counters"]["updates"]
    parts.set_timestep(saved["counters"]["timestep"])
    parts.calls.load_state(saved["plugin_states"])
    set_random_state(saved["random"], parts.device)


def _build_saved(
    parts: LearnerModules, module_id: str, saved: Mapping[str, Any], *, rebuild: bool
) -> None:
    """Build a module with the options it alone had; to rebuild it, with all that it had."""
    spaces = _saved_spaces(saved, module_id)
    if not spaces:
        raise RequestError(
            f"the state has module {module_id!r}, which the learner lacks and no plugin built.",
            f"try: learner.add_module({module_id!r}, module=…) before",
        )
    if spaces.get("training") is not None:
        parts.training_spaces[module_id] = spaces["training"]
    options = saved["options"].get(module_id, {})
    if rebuild:
        options = {**saved["plugin_options"], **options}
    for plugin, values in options.items():
        parts.calls.set_options(plugin, module_id, without_masked(values))
    pair = spaces["observation"], spaces["action"]
    parts.add_module(module_id, pair, module=None, like="", trainable=True, options=None)


def load_optimizers(parts: LearnerModules, module_id: str, states: Mapping[str, Any]) -> None:
    """Load the states of all optimizers of a module, which are looked at before."""
    optimizers = parts.optimizers.of(module_id)
    names = [optimizer.name for optimizer in optimizers]
    if sorted(names) != sorted(states):
        raise RequestError(
            f"module {module_id!r} has optimizers {sorted(states)} in the state, "
            f"{sorted(names)} here.",
            "use the options and plugins of the run that saved it",
        )
    for optimizer in optimizers:
        _check_moments(optimizer, states[optimizer.name])
    for optimizer in optimizers:
        optimizer.optimizer.load_state_dict(copy.deepcopy(states[optimizer.name]))


def _check_moments(optimizer: RegisteredOptimizer, state: Mapping[str, Any]) -> None:
    """Refuse moments of other shapes, which kernels would write past, and of other optimizers."""
    own = optimizer.optimizer.param_groups
    for here, there in zip(own, state["param_groups"], strict=True):
        if others := (here.keys() ^ there.keys()) - _OF_ANY_OPTIMIZER:
            raise RequestError(
                f"{optimizer} is a {type(optimizer.optimizer).__name__} here; the state is of "
                f"another kind: only one of them has {min(others)!r}.",
                "use the options and plugins of the run that saved it",
            )
        if isinstance(optimizer.optimizer, LBFGS | Adafactor):
            continue
        for param, index in zip(here["params"], there["params"], strict=True):
            for name, moment in state["state"].get(index, {}).items():
                is_moment = isinstance(moment, Tensor) and moment.dim()
                if is_moment and moment.shape != param.shape:
                    raise RequestError(
                        f"{name!r} of {optimizer} has shape {tuple(moment.shape)} in the state, "
                        f"{tuple(param.shape)} here.",
                        "use the options and spaces of the run that saved it",
                    )


_OF_ANY_OPTIMIZER = {
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


def _check_origin(saved: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """Refuse a state of another format, or of other plugins than those here: name → package."""
    if saved.get("format") != _FORMAT:
        raise RequestError(
            f"the state has format {saved.get('format')!r}, this rlplug reads {_FORMAT}.",
            "load it with the version of rlplug that saved it",
        )
    there = saved["plugins"]
    for name in {**there, **here}:
        if here.get(name) != there.get(name):
            if name not in there:
                hint = f"take part without {name!r}"
            elif there[name] == NOT_INSTALLED:
                hint = f"take part with the plugin {name!r} of the program that saved it"
            else:
                hint = f"try: pip install {there[name].replace(' ', '==')}"
            raise RequestError(
                f"the state was saved with plugin {name!r} as {there.get(name, 'absent')}, "
                f"here it is {here.get(name, 'absent')}.",
                hint,
            )


def optimizer_states(parts: LearnerModules, module_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The states of optimizers, by module id and name."""
    return {
        module_id: {one.name: one.optimizer.state_dict() for one in parts.optimizers.of(module_id)}
        for module_id in module_ids
    }


def generators(parts: LearnerModules) -> dict[str, Any]:
    """All random generators: each learner of a run has its own."""
    shufflers = {name: module.shuffler for name, module in parts.all_trained().items()}
    return {
        "training": _states(parts.generators),
        "minibatches": _states(shufflers),
        "random": random_state(parts.device),
    }


def set_generators(parts: LearnerModules, saved: Mapping[str, Any]) -> None:
    """Put all generators back."""
    for module_id, state in saved["training"].items():
        parts.generator(module_id).set_state(state)
    for module_id, module in parts.all_trained().items():
        module.shuffler.set_state(saved["minibatches"][module_id])
    set_random_state(saved["random"])


def _states(generators: Mapping[str, torch.Generator]) -> dict[str, Tensor]:
    return {name: generator.get_state() for name, generator in generators.items()}


def _fits(module: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    own = module.state_dict()
    return all(name in own and own[name].shape == value.shape for name, value in weights.items())


def _spaces_of(parts: LearnerModules, module_id: str) -> dict[str, Any]:
    observation, action = parts.spaces.get(module_id, (None, None))
    spaces = {
        "observation": observation,
        "action": action,
        "training": parts.training_spaces.get(module_id),
    }
    return {name: space_to_dict(space) for name, space in spaces.items() if space is not None}


def _saved_spaces(saved: Mapping[str, Any], module_id: str) -> dict[str, AnySpace]:
    """The spaces that a state has of a module, if they are of types that can be made again."""
    try:
        spaces = {name: space_from_dict(one) for name, one in saved["spaces"][module_id].items()}
    except RequestError:
        return {}
    return spaces if {"observation", "action"} <= spaces.keys() else {}


def weight_digests(parts: LearnerModules) -> dict[str, str]:
    """Digests of weights and statistics, by name: they are the same in all learners of a run.

    What batch normalization keeps is each learner's own.
    """
    digests = {}
    held: dict[str, nn.Module] = {
        module_id: member.module for module_id, member in parts.members.items() if member.is_torch
    }
    for module_id, extras in parts.extra.items():
        held |= {f"{module_id}, {plugin}": extra for plugin, extra in extras.items()}
    for label, module in held.items():
        own = {
            f"{name}.{buffer}" if name else buffer
            for name, part in module.named_modules()
            if isinstance(part, nn.modules.batchnorm._NormBase)
            for buffer, _ in part.named_buffers()
        }
        for name, value in module.state_dict().items():
            if name not in own:
                digests[f"{label}: {name}"] = digest(value)
    return digests


# -- digests of what plugins keep in their attributes -------------------------------------------


def plugin_digests(calls: HookCalls) -> dict[str, dict[str, str]]:
    """Plugin → attribute → digest, for the plugins that do not save their state."""
    saved = {one.name for one in calls.implementations("save_state")}
    return {
        one.name: {name: digest(value) for name, value in vars(one.plugin).items()}
        for one in calls.participants
        if one.name not in saved and hasattr(one.plugin, "__dict__")
    }


def refuse_unsaved(calls: HookCalls, before: Mapping[str, Mapping[str, str]]) -> None:
    """Raise if an update changed an attribute that no `save_state` hands over."""
    for plugin, after in plugin_digests(calls).items():
        known = before.get(plugin, {})
        changed = [name for name, found in after.items() if known.get(name) != found]
        if changed:
            label = next(one.label for one in calls.participants if one.name == plugin)
            raise PluginError(
                f"{label} changed its attribute {changed[0]!r} during an update, "
                "but has no 'save_state': a resumed run would go on differently.",
                "implement save_state and load_state, or keep it as a buffer of a module",
            )


def digest(value: Any) -> str:
    """A digest of a value."""
    found = hashlib.blake2b(digest_size=16)
    update_digest(found, value, _DEPTH)
    return found.hexdigest()


def update_digest(found: hashlib.blake2b, value: Any, depth: int) -> None:
    """Add a value to a digest: numbers by what they are, objects by what they hold."""
    found.update(type(value).__qualname__.encode())
    if isinstance(value, Tensor):
        found.update(str((value.shape, value.dtype)).encode())
        found.update(
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    elif isinstance(value, numpy.ndarray) and value.dtype != object:
        found.update(str((value.shape, value.dtype)).encode())
        found.update(numpy.ascontiguousarray(value).tobytes())
    elif value is None or isinstance(value, _PLAIN):
        found.update(repr(value).encode())
    elif isinstance(value, torch.Generator):
        update_digest(found, value.get_state(), depth)
    elif isinstance(value, numpy.random.Generator):
        update_digest(found, value.bit_generator.state, depth)
    elif depth == 0:
        return
    elif isinstance(value, nn.Module):
        update_digest(found, value.state_dict(), depth - 1)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            update_digest(found, key, depth - 1)
            update_digest(found, part, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        found.update(str(len(value)).encode())
        for part in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            update_digest(found, part, depth - 1)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        update_digest(found, vars(value), depth - 1)
