"""The complete state of a learner: asked of every part, put back into every part."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor, nn

from rlplug.learner import storage
from rlplug.learner.fitting import FORMAT, check_origin, check_weights, compare
from rlplug.plugin import ALL_MODULES

if TYPE_CHECKING:
    from rlplug.learner.owned import Owned
    from rlplug.learner.stage import Stage

__all__ = ["get_state", "load", "module_state", "save", "set_module_state", "set_state"]


def get_state(learner: Owned) -> dict[str, Any]:
    """Everything that the next update depends on."""
    scaler = learner.precision.scaler
    # A snapshot: state dicts hold the very tensors that training goes on to change.
    return copy.deepcopy(
        {
            "format": FORMAT,
            "plugins": {one.name: one.found.package for one in learner.calls.participants},
            "counters": {"timestep": learner.timestep, "updates": learner.updates},
            "modules_to_train": _ids(learner),
            "frozen": [one.module_id for one in learner.members.values() if not one.trainable],
            "modules": {
                module_id: module.state_dict()
                for module_id, module in learner.modules.items()
                if isinstance(module, nn.Module)
            },
            "extra": {
                module_id: {plugin: extra.state_dict() for plugin, extra in extras.items()}
                for module_id, extras in learner.extra.items()
                if extras
            },
            "optimizers": {
                module_id: {
                    one.name: one.optimizer.state_dict() for one in learner.optimizers.of(module_id)
                }
                for module_id in (*learner.members, ALL_MODULES)
            },
            "stages": {
                module_id: _stage_state(stage) for module_id, stage in _stages(learner).items()
            },
            "scaler": {} if scaler is None else scaler.state_dict(),
            "plugin_states": {
                name: dict(part) for name, part in learner.calls.save_state().items()
            },
            "random": random_state(learner.device),
        }
    )


def set_state(learner: Owned, saved: Mapping[str, Any]) -> None:
    """Put everything back; modules come and go as the state has them.

    What does not fit is refused before anything is changed.
    """
    check_origin(learner, saved)
    learner.build()
    check_weights(learner, saved)
    for module_id in [one for one in learner.members if one not in saved["modules"]]:
        if isinstance(learner.modules[module_id], nn.Module):
            learner.remove_module(module_id)
    for module_id in saved["modules"]:
        if module_id not in learner.members:
            learner.add_module(module_id, like=next(iter(learner.members)))
        learner.members[module_id].trainable = module_id not in saved["frozen"]
        learner.modules[module_id].load_state_dict(saved["modules"][module_id])
        for plugin, extra in learner.extra[module_id].items():
            extra.load_state_dict(saved["extra"][module_id][plugin])
    _set_optimizers(learner, saved)
    if saved["modules_to_train"] is not None:
        learner.modules_to_train = set(saved["modules_to_train"])
    if learner.precision.scaler is not None and saved["scaler"]:
        learner.precision.scaler.load_state_dict(saved["scaler"])
    learner.calls.load_state(saved["plugin_states"])
    learner.updates = saved["counters"]["updates"]
    learner.timestep = saved["counters"]["timestep"]
    learner.calls.at_step(learner.timestep)
    set_random_state(saved["random"])


def module_state(learner: Owned, module_ids: Sequence[str] | None = None) -> dict[str, Any]:
    """The weights of modules as NumPy arrays."""
    ids = list(learner.modules) if module_ids is None else module_ids
    return {
        module_id: {
            name: value.detach().cpu().numpy().copy()
            for name, value in learner.member(module_id).module.state_dict().items()
        }
        for module_id in ids
    }


def set_module_state(learner: Owned, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Take weights back, from arrays or tensors."""
    for module_id, weights in saved.items():
        tensors = {name: torch.as_tensor(value) for name, value in weights.items()}
        _fill(learner.member(module_id).module, tensors, f"module {module_id!r}")


def save(learner: Owned, folder: Path) -> None:
    """Write the whole state to a folder, completely or not at all."""
    storage.write(folder, get_state(learner))


def load(learner: Owned, folder: Path) -> None:
    """Read the whole state back."""
    set_state(learner, storage.read(folder))


def random_state(device: torch.device) -> dict[str, Any]:
    """The global generators of torch, NumPy and Python."""
    name, keys, position, has_gauss, gauss = _numpy_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [name, torch.from_numpy(keys.astype(numpy.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def set_random_state(saved: Mapping[str, Any]) -> None:
    """Put the global generators back."""
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])
    name, keys, *rest = saved["numpy"]
    numpy.random.set_state((name, keys.numpy().astype(numpy.uint32), *rest))
    random.setstate(saved["python"])


def _numpy_state() -> Any:
    return numpy.random.get_state()


def _ids(learner: Owned) -> list[str] | None:
    wanted = learner.modules_to_train
    return None if wanted is None or callable(wanted) else sorted(wanted)


def _stages(learner: Owned) -> dict[str, Stage]:
    shared = learner.shared_stage
    return learner.stages if shared is None else {**learner.stages, ALL_MODULES: shared}


def _stage_state(stage: Stage) -> dict[str, Any]:
    return {
        "turns": dict(stage.turns.places),
        "shuffler": stage.shuffler.get_state(),
        "unanswered": {one.name: one.unanswered for one in stage.member.optimizers},
        "schedulers": {
            one.name: one.scheduler.state_dict()
            for one in stage.member.optimizers
            if one.scheduler is not None
        },
    }


def _set_optimizers(learner: Owned, saved: Mapping[str, Any]) -> None:
    for module_id, stage in _stages(learner).items():
        states = saved["optimizers"].get(module_id, {})
        part = saved["stages"][module_id]
        stage.turns.places.update(part["turns"])
        stage.shuffler.set_state(part["shuffler"])
        for one in stage.member.optimizers:
            one.optimizer.load_state_dict(copy.deepcopy(states[one.name]))
            one.unanswered = part["unanswered"][one.name]
            if one.scheduler is not None:
                one.scheduler.load_state_dict(part["schedulers"][one.name])


def _fill(module: nn.Module, saved: Mapping[str, Tensor], what: str) -> None:
    compare(module, saved, what)
    module.load_state_dict(dict(saved))
