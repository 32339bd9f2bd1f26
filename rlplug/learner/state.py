"""What a learner's state holds beside modules: generators, and digests of what plugins keep."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from rlplug.errors import PluginError
from rlplug.hooks.calls import HookCalls

__all__ = [
    "digest",
    "plugin_digests",
    "random_problem",
    "random_state",
    "refuse_unsaved",
    "set_random_state",
    "update_digest",
]

_DEPTH = 8
_PLAIN = (bool, int, float, complex, str, bytes, numpy.generic)


# -- global generators ----------------------------------------------------------------------------


def random_state(device: torch.device) -> dict[str, Any]:
    """The global generators of torch, NumPy and Python."""
    state: Any = numpy.random.get_state()
    name, keys, position, has_gauss, gauss = state
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [name, torch.from_numpy(keys.astype(numpy.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def set_random_state(saved: Mapping[str, Any], device: torch.device | None = None) -> None:
    """Put the global generators back; on a GPU that of `device`, which need not be the first."""
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] is not None and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(saved["cuda"], device)
    name, keys, *rest = saved["numpy"]
    numpy.random.set_state((name, keys.numpy().astype(numpy.uint32), *rest))
    random.setstate(saved["python"])


def random_problem(saved: Mapping[str, Any]) -> str:
    """Why the global generators cannot be put back; empty if they can."""
    try:
        torch.Generator().set_state(saved["torch"])
        saved["cuda"]
        name, keys, *rest = saved["numpy"]
        numpy.random.RandomState().set_state((name, keys.numpy().astype(numpy.uint32), *rest))
        random.Random().setstate(saved["python"])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


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
