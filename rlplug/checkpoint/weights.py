"""Weights from elsewhere: files of other programs, and names that wrappers have prefixed."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlplug.durable import write_durably
from rlplug.errors import RequestError

__all__ = ["NotLoaded", "load_weights", "misfit", "save_module"]

PREFIXES = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put before the names of the module that they wrap."""

_SHOWN = 10


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
        kinds = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "do not fit": [f"{name} ({why})" for name, why in self.unfit.items()],
        }
        return [f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names]


def load_weights(
    module: nn.Module,
    source: str | Path | Mapping[str, Tensor],
    *,
    strict: bool = True,
    prefixes: Sequence[str] = PREFIXES,
) -> NotLoaded:
    """Load parameters and buffers from a state dict, a `.safetensors` file or one of `torch.save`.

    `load_weights(policy.module, "pretrained.safetensors")`. Files are read without unpickling
    (`weights_only=True`). `prefixes` count for nothing in names, there and in the module. With
    `strict`, all that does not fit is named in one error, and nothing is loaded; without, what
    fits is loaded, and the rest returned.
    """
    own = {name: one for name, one in module.state_dict().items() if isinstance(one, Tensor)}
    named = source if isinstance(source, Mapping) else _read(Path(source))
    origin = "the state dict" if isinstance(source, Mapping) else str(source)
    weights, unexpected = _matched(named, own, prefixes, origin)
    reasons = {name: misfit(tensor, own[name]) for name, tensor in weights.items()}
    unfit = {name: reason for name, reason in reasons.items() if reason is not None}
    fitting = {name: tensor for name, tensor in weights.items() if name not in unfit}
    # Of tied parameters a file may hold one.
    there = {_place(own[name]) for name in weights}
    missing = tuple(name for name in own if _place(own[name]) not in there)
    rest = NotLoaded(missing, tuple(unexpected), unfit)
    if (strict and rest != NotLoaded()) or (own and not fitting):
        raise RequestError(
            f"the weights of {origin} do not fit {type(module).__name__}:",
            *rest.lines(),
            "try: weights of the same network, other prefixes, or strict=False, which loads what "
            "fits",
        )
    module.load_state_dict(fitting, strict=False)
    return rest


def save_module(module: nn.Module, folder: Path) -> Path:
    """Write the module's parameters and buffers to `module.safetensors`, atomically."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    firsts: dict[Any, str] = {}
    shared = {}
    for name, tensor in module.state_dict().items():
        first = firsts.setdefault(_place(tensor), name) if tensor.numel() else name
        if first == name:
            # On a GPU the weights of an LSTM are parts of one storage, which would be refused.
            tensors[name] = tensor.cpu().clone().contiguous()
        else:
            # As in files of safetensors.torch.save_model.
            shared[name] = first
    path = folder / "module.safetensors"
    write_durably(path, save(tensors, metadata={"format": "pt", **shared}))
    return path


def _read(path: Path) -> Mapping[str, Tensor]:
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        read: Any = torch.load(path, map_location="cpu", weights_only=True)
        # As Lightning and many others write it.
        inner: Mapping[str, Tensor] = read.get("state_dict", read)
        if all(isinstance(one, Tensor) for one in inner.values()):
            return inner
        reason = f"it holds no state dict, but {_listed(read)}"
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


def _matched(
    named: Mapping[str, Tensor], own: Mapping[str, Tensor], prefixes: Sequence[str], origin: str
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights by the names of the module, and the names that it lacks."""
    bare = {_without(name, prefixes): name for name in own}
    weights: dict[str, Tensor] = {}
    unexpected = []
    # Names that are the same come first: a part of a network may be called `module`.
    for name in sorted(named, key=lambda name: name not in own):
        target = name if name in own else bare.get(_without(name, prefixes))
        if target is None:
            unexpected.append(name)
        elif target in weights:
            raise RequestError(
                f"{origin} has several weights for {target!r}, one of them {name!r}.",
                "try: a state dict with one of them",
            )
        else:
            weights[target] = named[name]
    return weights, unexpected


def _without(name: str, prefixes: Sequence[str]) -> str:
    """The name without prefixes, at its beginning and before its parts."""
    before = ""
    while name != before:
        before = name
        for prefix in prefixes:
            name = name.removeprefix(prefix).replace(f".{prefix}", ".")
    return name


def misfit(there: Tensor, here: Tensor) -> str | None:
    """Why a tensor cannot take the place of another; None if it can."""
    if there.shape != here.shape:
        return f"{tuple(there.shape)} there, {tuple(here.shape)} here"
    # Other precisions are converted; a mask must not become a weight.
    if there.is_floating_point() != here.is_floating_point():
        return f"{there.dtype} there, {here.dtype} here"
    return None


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor lies; the same for tied parameters."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _listed(names: Any) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:_SHOWN]) + (", …" if len(listed) > _SHOWN else "")
