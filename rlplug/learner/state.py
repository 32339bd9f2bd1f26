"""The state of a learner: read, loaded and written, and digests of what plugins keep beside it."""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Adafactor

from rlplug.config.secrets import masked, without_masked
from rlplug.config.toml import plain
from rlplug.durable import absolute_path
from rlplug.errors import PluginError, RequestError, RlplugError
from rlplug.hooks.calls import HookCalls
from rlplug.learner import modules
from rlplug.learner.member import load_part, misfit
from rlplug.learner.modules import Tables, all_trained, member_of
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.learner.step import TrainedModule
from rlplug.registry import NOT_INSTALLED, packages
from rlplug.seeding import random_state, set_random_state
from rlplug.spaces import space_from_dict, space_to_dict
from rlplug.trees import read_tree, replace_tree

_FORMAT = 3
_DEPTH = 8
_PLAIN = (bool, int, float, complex, str, bytes, type(None), numpy.generic)
_COLLECTIONS = (list, tuple, set, frozenset, deque)


def get_state(learner: Tables) -> dict[str, Any]:
    """Everything that the next update depends on, as a tree of tensors and plain values."""
    scaler, wanted, calls = learner.precision.scaler, learner.modules_to_train, learner.calls
    ids, members, trained = learner.members, learner.members.values(), all_trained(learner)
    state = {
        "format": _FORMAT,
        "plugins": packages(calls.participants),
        "counters": {"timestep": learner.timestep, "updates": learner.updates},
        "modules_to_train": None if wanted is None or callable(wanted) else sorted(wanted),
        "chosen_by_function": callable(wanted),
        "frozen": [member.module_id for member in members if not member.trainable],
        "spaces": {module_id: _spaces_of(learner, module_id) for module_id in ids},
        "modules": {one.module_id: one.module.state_dict() for one in members if one.has_state},
        "options": {
            module_id: {
                plugin: masked(plain(config))
                for plugin, config in calls.overrides(module_id).items()
            }
            for module_id in ids
        },
        "extra": {
            module_id: {plugin: extra.state_dict() for plugin, extra in extras.items()}
            for module_id, extras in learner.extra.items()
            if extras
        },
        "optimizers": {module_id: _optimizers(module) for module_id, module in trained.items()},
        "stages": {module_id: _stage(module) for module_id, module in trained.items()},
        "generators": _states(learner.generators),
        "scaler": {} if scaler is None else scaler.state_dict(),
        "plugin_states": {name: dict(saved) for name, saved in calls.save_state().items()},
        "random": random_state(learner.precision.device),
    }
    # A snapshot: state dicts hold the very tensors that training goes on to change.
    return copy.deepcopy(state)


def _spaces_of(learner: Tables, module_id: str) -> dict[str, Any]:
    observation, action = learner.spaces.get(module_id, (None, None))
    training = learner.training_spaces.get(module_id)
    spaces = {"observation": observation, "action": action, "training": training}
    return {name: space_to_dict(space) for name, space in spaces.items() if space is not None}


def _stage(module: TrainedModule) -> dict[str, Any]:
    optimizers = module.cycle.optimizers
    return {
        "cycle_position": module.cycle.position,
        "shuffler": module.shuffler.get_state(),
        "engine": module.engine.get_state(),
        "idle_minibatches": {one.name: one.idle_minibatches for one in optimizers},
        "schedulers": {
            optimizer.name: optimizer.scheduler.state_dict()
            for optimizer in optimizers
            if optimizer.scheduler is not None
        },
    }


# -- loading ---------------------------------------------------------------------------------------


def set_state(learner: Tables, saved: Mapping[str, Any], *, keep_settings: bool = False) -> None:
    """Continue from there; modules that the state has besides are added.

    Where it does not fit, everything stays as it was. With `keep_settings` optimizers keep their
    learning rates, betas and the like, but not a rate that a scheduler moves.
    """
    _check_origin(saved, packages(learner.calls.participants))
    modules.build(learner)
    with _restored_on_error(learner):
        _load(learner, saved, keep_settings=keep_settings)


@contextmanager
def _restored_on_error(learner: Tables) -> Iterator[None]:
    """Put everything back as it was if anything fails."""
    before = get_state(learner)
    try:
        with modules.undone_on_error(learner):
            yield
    except Exception as error:
        # What failed to load may fail again: the first error is the one to be told.
        with suppress(Exception):
            _load(learner, before)
        if isinstance(error, RlplugError):
            raise
        what = f"the state does not fit this learner: {type(error).__name__}: {error}"
        raise misfit(what, *getattr(error, "__notes__", ())) from error


def _check_origin(saved: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """Refuse a state of another format, or of other plugins than those here: name → package."""
    if saved.get("format") != _FORMAT:
        raise RequestError(
            f"the state has format {saved.get('format')!r}, this rlplug reads {_FORMAT}.",
            "load it with the version of rlplug that saved it",
        )
    there = saved["plugins"]
    for name in {**there, **here}:
        package, own = there.get(name, "absent"), here.get(name, "absent")
        if package != own:
            hint = f"try: pip install {package.replace(' ', '==')}"
            if name not in there or package == NOT_INSTALLED:
                hint = "take part with the plugins of the program that saved it"
            raise RequestError(
                f"the state was saved with plugin {name!r} as {package}, here it is {own}.", hint
            )


def _load(learner: Tables, saved: Mapping[str, Any], *, keep_settings: bool = False) -> None:
    for module_id, member in learner.members.items():
        if member.has_state and module_id not in saved["modules"]:
            raise RequestError(
                f"the state has no module {module_id!r}.",
                f"it has: {', '.join(saved['modules']) or 'none'}",
                f"try: learner.remove_module({module_id!r}) before",
            )
    for module_id, weights in saved["modules"].items():
        if module_id in learner.members:
            modules.replace_options(learner, module_id, saved["options"].get(module_id, {}))
        else:
            _build_saved(learner, module_id, saved)
        member = learner.members[module_id]
        member.trainable = module_id not in saved["frozen"]
        member.load(weights, saved["extra"].get(module_id, {}))
    trained = all_trained(learner)
    for module_id, module in trained.items():
        states, stage = saved["optimizers"].get(module_id, {}), saved["stages"].get(module_id)
        _load_optimizers(learner, module_id, states, keep_settings=keep_settings)
        module.cycle.position = stage["cycle_position"]
        module.shuffler.set_state(stage["shuffler"])
        module.engine = modules.engine_of(learner, module.member, stage["engine"])
        for optimizer in module.cycle.optimizers:
            optimizer.idle_minibatches = stage["idle_minibatches"][optimizer.name]
            scheduler = stage["schedulers"].get(optimizer.name)
            if (scheduler is None) != (optimizer.scheduler is None):
                raise misfit(f"{optimizer} has a scheduler, or has none, unlike there.")
            if optimizer.scheduler is not None:
                optimizer.scheduler.load_state_dict(scheduler)
    if lost := saved["optimizers"].keys() - trained.keys():
        raise misfit(f"the state has optimizers for {min(lost)!r}, which has none here.")
    if saved["modules_to_train"] is not None:
        learner.modules_to_train = set(saved["modules_to_train"])
    elif not (callable(learner.modules_to_train) or saved["chosen_by_function"]):
        learner.modules_to_train = None
    if learner.precision.scaler is not None and saved["scaler"]:
        learner.precision.scaler.load_state_dict(saved["scaler"])
    for module_id, values in saved["generators"].items():
        modules.generator(learner, module_id).set_state(values)
    learner.updates = saved["counters"]["updates"]
    modules.set_timestep(learner, saved["counters"]["timestep"])
    learner.calls.load_state(saved["plugin_states"])
    set_random_state(saved["random"], learner.precision.device)


def _build_saved(learner: Tables, module_id: str, saved: Mapping[str, Any]) -> None:
    """Build a module that is lacking, with the spaces and options that it alone had."""
    spaces: dict[str, Any] = {}
    # Some are of types that cannot be made again.
    with suppress(RequestError):
        spaces = {name: space_from_dict(one) for name, one in saved["spaces"][module_id].items()}
    if not {"observation", "action"} <= spaces.keys():
        raise RequestError(
            f"the state has module {module_id!r}, which the learner lacks and no plugin built.",
            f"try: learner.add_module({module_id!r}, module=…) before",
        )
    learner.spaces[module_id] = spaces["observation"], spaces["action"]
    if "training" in spaces:
        learner.training_spaces[module_id] = spaces["training"]
    for plugin, values in saved["options"].get(module_id, {}).items():
        learner.calls.set_options(plugin, module_id, without_masked(values))
    modules.add_members(learner, [modules.make_member(learner, module_id)])


def _load_optimizers(
    learner: Tables,
    module_id: str,
    states: Mapping[str, Any],
    *,
    keep_settings: bool = False,
) -> None:
    """Load the states of all optimizers of a module, each of which is looked at before."""
    optimizers = learner.optimizers.of(module_id)
    here, there = sorted(optimizer.name for optimizer in optimizers), sorted(states)
    if here != there:
        raise misfit(f"module {module_id!r} has optimizers {there} in the state, {here} here.")
    for registered in optimizers:
        optimizer, state = registered.optimizer, states[registered.name]
        _check_moments(registered, state)
        before = [dict(group) for group in optimizer.param_groups]
        optimizer.load_state_dict(copy.deepcopy(state))
        moved = {"params", "initial_lr", "lr" if registered.scheduler is not None else ""}
        for group, own in zip(optimizer.param_groups, before, strict=True):
            kept = own.keys() - moved if keep_settings else ()
            group.update({name: own[name] for name in kept})


def _check_moments(registered: RegisteredOptimizer, state: Mapping[str, Any]) -> None:
    """Refuse moments of other shapes, which kernels would write past, and of other optimizers."""
    kind, groups = type(registered.optimizer), registered.optimizer.param_groups
    if state["kind"] != kind.__name__:
        raise misfit(f"{registered} is a {kind.__name__} here, a {state['kind']} in the state.")
    for here, there in zip(groups, state["param_groups"], strict=True):
        if issubclass(kind, LBFGS | Adafactor):
            continue
        for param, index in zip(here["params"], there["params"], strict=True):
            for name, moment in state["state"].get(index, {}).items():
                if isinstance(moment, Tensor) and moment.dim() and moment.shape != param.shape:
                    shapes = f"{tuple(moment.shape)} in the state, {tuple(param.shape)} here"
                    raise misfit(f"{name!r} of {registered} has shape {shapes}.")


# -- files, and parts of the state -----------------------------------------------------------------


def save_state(learner: Tables, folder: Path | str) -> None:
    """Write the whole state to a folder, completely or not at all."""
    path = absolute_path(Path(folder), "the folder of a state")
    try:
        replace_tree(path, get_state(learner))
    except (OSError, ValueError) as error:
        # ValueError: of a path that holds a null character.
        raise RequestError(
            f"the state cannot be saved in {path}: {type(error).__name__}: {error}.",
            "give a folder that can be made or written",
        ) from error


def load_state(learner: Tables, folder: Path | str) -> None:
    """Read the whole state back; see `set_state`."""
    set_state(learner, read_tree(absolute_path(Path(folder), "the folder of a state")))


def get_module_state(learner: Tables, module_ids: Iterable[str] | None = None) -> dict[str, Any]:
    """The weights of modules as NumPy arrays; None: of all torch modules."""
    if module_ids is None:
        module_ids = [name for name, member in learner.members.items() if member.is_torch]
    return {
        module_id: {
            name: value.detach().cpu().numpy().copy()
            for name, value in _torch_module(learner, module_id).state_dict().items()
        }
        for module_id in module_ids
    }


def set_module_state(learner: Tables, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Load weights from arrays or tensors; where any does not fit, all stay as they were."""
    with _restored_on_error(learner):
        for module_id, weights in saved.items():
            tensors = {name: torch.as_tensor(value) for name, value in weights.items()}
            load_part(_torch_module(learner, module_id), tensors, f"module {module_id!r}")


def _torch_module(learner: Tables, module_id: str) -> nn.Module:
    module: Any = member_of(learner, module_id).module
    if isinstance(module, nn.Module):
        return module
    kind = type(module).__name__
    raise RequestError(f"module {module_id!r} is a {kind}, which has no weights.", "leave it out")


def get_optimizer_state(
    learner: Tables, module_ids: Iterable[str] | None = None
) -> dict[str, dict[str, Any]]:
    """The states of optimizers, by module id and name; None: of all modules."""
    trained = all_trained(learner)
    ids = trained if module_ids is None else module_ids
    return copy.deepcopy({module_id: _optimizers(trained[module_id]) for module_id in ids})


def _optimizers(module: TrainedModule) -> dict[str, Any]:
    return {
        one.name: {"kind": type(one.optimizer).__name__, **one.optimizer.state_dict()}
        for one in module.cycle.optimizers
    }


def set_optimizer_state(learner: Tables, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Load states of optimizers; where any does not fit, all stay as they were."""
    with _restored_on_error(learner):
        for module_id, states in saved.items():
            _load_optimizers(learner, module_id, states)
    modules.set_timestep(learner, learner.timestep)


def get_generators(learner: Tables) -> dict[str, Any]:
    """All random generators: each learner of a run has its own."""
    shufflers = {name: module.shuffler for name, module in all_trained(learner).items()}
    return {
        "training": _states(learner.generators),
        "minibatches": _states(shufflers),
        "random": random_state(learner.precision.device),
    }


def set_generators(learner: Tables, saved: Mapping[str, Any]) -> None:
    """Put all generators back."""
    for module_id, state in saved["training"].items():
        modules.generator(learner, module_id).set_state(state)
    for module_id, module in all_trained(learner).items():
        module.shuffler.set_state(saved["minibatches"][module_id])
    set_random_state(saved["random"])


def _states(generators: Mapping[str, torch.Generator]) -> dict[str, Tensor]:
    return {name: held.get_state() for name, held in generators.items()}


# -- digests ---------------------------------------------------------------------------------------


def weight_digests(learner: Tables) -> dict[str, str]:
    """Digests of weights and statistics, by name: they are the same in all learners of a run.

    What batch normalization keeps is each learner's own.
    """
    held = {
        member.module_id: member.module for member in learner.members.values() if member.is_torch
    }
    for module_id, extras in learner.extra.items():
        held |= {f"{module_id}, {plugin}": extra for plugin, extra in extras.items()}
    digests = {}
    for label, module in held.items():
        own = {
            f"{name}.{buffer}".lstrip(".")
            for name, part in module.named_modules()
            if isinstance(part, nn.modules.batchnorm._NormBase)
            for buffer, _ in part.named_buffers()
        }
        for name, value in module.state_dict().items():
            if name not in own:
                digests[f"{label}: {name}"] = digest(value)
    return digests


def plugin_digests(calls: HookCalls) -> dict[str, dict[str, str]]:
    """Plugin → attribute → digest, for the plugins that do not save their state."""
    saved = {implementation.name for implementation in calls.implementations("save_state")}
    return {
        participant.name: {name: digest(value) for name, value in vars(participant.plugin).items()}
        for participant in calls.participants
        if participant.name not in saved and hasattr(participant.plugin, "__dict__")
    }


def refuse_unsaved(calls: HookCalls, before: Mapping[str, Mapping[str, str]]) -> None:
    """Raise if an update changed an attribute that no `save_state` hands over."""
    labels = {participant.name: participant.label for participant in calls.participants}
    for plugin, after in plugin_digests(calls).items():
        for name, value in after.items():
            if before.get(plugin, {}).get(name) != value:
                raise PluginError(
                    f"{labels[plugin]} changed its attribute {name!r} during an update, "
                    "but has no 'save_state': a resumed run would go on differently.",
                    "implement save_state and load_state, or keep it as a buffer of a module",
                )


def digest(value: Any) -> str:
    """A digest of a value: numbers by what they are, objects by what they hold."""
    hasher = hashlib.blake2b(digest_size=16)
    _add(hasher, value, _DEPTH)
    return hasher.hexdigest()


def _add(hasher: hashlib.blake2b, value: Any, depth: int) -> None:
    hasher.update(type(value).__qualname__.encode())
    if isinstance(value, torch.Generator):
        value = value.get_state()
    elif isinstance(value, numpy.random.Generator):
        value = value.bit_generator.state
    below: Iterable[Any] = ()
    if isinstance(value, Tensor | numpy.ndarray) and value.dtype != object:
        hasher.update(str((value.shape, value.dtype)).encode())
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        hasher.update(value.tobytes())
    elif isinstance(value, _PLAIN):
        hasher.update(repr(value).encode())
    elif isinstance(value, nn.Module):
        below = [value.state_dict()]
    elif isinstance(value, Mapping):
        below = [part for pair in value.items() for part in pair]
    elif isinstance(value, _COLLECTIONS):
        hasher.update(str(len(value)).encode())
        below = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        below = [vars(value)]
    for part in below if depth else ():
        _add(hasher, part, depth - 1)
