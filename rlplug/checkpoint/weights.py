"""Weights from elsewhere: files of other programs, and names that wrappers have prefixed."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlplug.durable import sync_all, sync_folder
from rlplug.errors import RequestError
from rlplug.trees import write_named

_PREFIXES = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put before the names of the module that they wrap."""


@attrs.frozen
class NotLoaded:
    """What `load_weights` left as it was."""

    missing: tuple[str, ...] = ()
    """Names of the module that the weights lack."""
    unexpected: tuple[str, ...] = ()
    """Names of the weights that the module lacks."""
    unfit: Mapping[str, str] = attrs.field(factory=dict)
    """Name → why the tensor does not fit: its shape or its type."""

    def lines(self) -> list[str]:
        """One line for each kind that there is."""
        unfit = [f"{name} ({reason})" for name, reason in self.unfit.items()]
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "do not fit": unfit}
        return [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]


def load_weights(
    module: nn.Module, source: str | Path | Mapping[str, Tensor], *, strict: bool = True
) -> NotLoaded:
    """Load parameters and buffers from a state dict, a `.safetensors` file or one of `torch.save`.

    `load_weights(policy.module, "pretrained.safetensors")`. Files are read without unpickling
    (`weights_only=True`). The prefixes of DataParallel and torch.compile are ignored in names,
    there and in the module. With `strict`, all that does not fit is named in one error, and nothing
    is loaded; without, what fits is loaded, and the rest returned.
    """
    own = {name: one for name, one in module.state_dict().items() if isinstance(one, Tensor)}
    named = source if isinstance(source, Mapping) else _read(Path(source))
    bare = {_without_prefixes(name): name for name in own}
    # Names that are the same count more: a part of a network may be called `module`.
    targets = {name: name if name in own else bare.get(_without_prefixes(name)) for name in named}
    weights = {target: named[name] for name, target in targets.items() if target is not None}
    weights |= {name: named[name] for name in own if name in named}
    reasons = {name: _misfit(tensor, own[name]) for name, tensor in weights.items()}
    fitting = {name: tensor for name, tensor in weights.items() if not reasons[name]}
    # Of tied parameters a file may hold one.
    there = {_place(own[name]) for name in weights}
    rest = NotLoaded(
        tuple(name for name in own if _place(own[name]) not in there),
        tuple(name for name, target in targets.items() if target is None),
        {name: reason for name, reason in reasons.items() if reason},
    )
    if (strict and rest != NotLoaded()) or (own and not fitting):
        origin = "the state dict" if isinstance(source, Mapping) else str(source)
        raise RequestError(
            f"the weights of {origin} do not fit {type(module).__name__}:",
            *rest.lines(),
            "try: weights of the same network, or strict=False, which loads what fits",
        )
    module.load_state_dict(fitting, strict=False)
    return rest


def save_module(module: nn.Module, folder: Path) -> Path:
    """Write the module's parameters and buffers to `module.safetensors`, atomically."""
    name, _ = write_named(folder, "module", module.state_dict(), {"format": "pt"})
    sync_all([folder / name])
    path = (folder / name).replace(folder / "module.safetensors")
    sync_folder(folder)
    return path


def _read(path: Path) -> Mapping[str, Tensor]:
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
        # As Lightning and many others write it.
        weights: Mapping[str, Tensor] = content.get("state_dict", content)
        if all(isinstance(one, Tensor) for one in weights.values()):
            return weights
        reason = f"it holds no state dict, but {', '.join(map(str, content))}"
    except pickle.UnpicklingError:
        # Its message advises to unpickle all the same.
        reason = "it is damaged, or holds more than tensors and plain values"
    except Exception as error:
        # Of a damaged file, torch and safetensors may raise anything.
        reason = str(error).partition("\n")[0] or type(error).__name__
    raise RequestError(
        f"the weights in {str(path)!r} cannot be read: {reason}.",
        "try: a .safetensors file, or one of torch.save(module.state_dict())",
    )


def _without_prefixes(name: str) -> str:
    """The name without prefixes, at its beginning and before its parts."""
    parts = f".{name}"
    before = ""
    while parts != before:
        before = parts
        for prefix in _PREFIXES:
            parts = parts.replace(f".{prefix}", ".")
    return parts


def _misfit(there: Tensor, here: Tensor) -> str:
    """Why a tensor cannot take the place of another; empty if it can."""
    if there.shape != here.shape:
        return f"{tuple(there.shape)} there, {tuple(here.shape)} here"
    # Other precisions are converted; a mask must not become a weight.
    if there.is_floating_point() != here.is_floating_point():
        return f"{there.dtype} there, {here.dtype} here"
    return ""


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor lies; the same for tied parameters."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
