"""A digest of what plugins keep in their attributes, to find state that is not saved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor, nn

from rlplug.errors import PluginError

if TYPE_CHECKING:
    from rlplug.hooks.calls import HookCalls

__all__ = ["digests", "feed", "refuse_unsaved"]

_DEPTH = 8


def digests(calls: HookCalls) -> dict[str, dict[str, str]]:
    """Plugin → attribute → digest, for the plugins that do not save their state."""
    saved = {one.name for one in calls.implementations("save_state")}
    return {
        one.name: {name: _digest(value) for name, value in vars(one.plugin).items()}
        for one in calls.participants
        if one.name not in saved and hasattr(one.plugin, "__dict__")
    }


def refuse_unsaved(calls: HookCalls, before: Mapping[str, Mapping[str, str]]) -> None:
    """Raise if an update changed an attribute that no `save_state` hands over."""
    for plugin, after in digests(calls).items():
        known = before.get(plugin, {})
        changed = [name for name, digest in after.items() if known.get(name) != digest]
        if changed:
            label = next(one.label for one in calls.participants if one.name == plugin)
            raise PluginError(
                f"{label} changed its attribute {changed[0]!r} during an update, "
                "but has no 'save_state': a resumed run would go on differently.",
                "implement save_state and load_state, or keep it as a buffer of a module",
            )


def _digest(value: Any) -> str:
    found = hashlib.blake2b(digest_size=16)
    feed(found, value, _DEPTH)
    return found.hexdigest()


def feed(found: hashlib.blake2b, value: Any, depth: int) -> None:
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
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        found.update(repr(value).encode())
    elif isinstance(value, torch.Generator):
        feed(found, value.get_state(), depth)
    elif isinstance(value, numpy.random.Generator):
        feed(found, value.bit_generator.state, depth)
    elif depth == 0:
        return
    elif isinstance(value, nn.Module):
        feed(found, value.state_dict(), depth - 1)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            feed(found, key, depth - 1)
            feed(found, part, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        found.update(str(len(value)).encode())
        for part in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            feed(found, part, depth - 1)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        feed(found, vars(value), depth - 1)
