"""A tree of tensors and plain values in a folder: one JSON file and one of tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from rlplug.errors import RequestError

__all__ = ["Piece", "pack", "pieces", "read", "sha256", "unpack", "write"]

INDEX = "state.json"


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of a tree."""

    name: str
    content: bytes
    sha256: str


def pieces(tree: Mapping[str, Any]) -> list[Piece]:
    """The files that hold a tree; the index, which names the others, is the last."""
    tensors: dict[str, Tensor] = {}
    plain = pack(tree, tensors)
    payload = save_tensors(tensors)
    digest = sha256(payload)
    name = f"tensors-{digest[:16]}.safetensors"
    index = json.dumps({"tensors": name, "sha256": digest, "tree": plain}).encode()
    return [Piece(name, payload, digest), Piece(INDEX, index, sha256(index))]


def write(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write the tree; until the last rename, what was there before stays valid."""
    folder.mkdir(parents=True, exist_ok=True)
    written = pieces(tree)
    for piece in written:
        _replace(folder / piece.name, piece.content)
    for old in folder.glob("tensors-*.safetensors"):
        if old.name != written[0].name:
            old.unlink(missing_ok=True)


def sha256(content: bytes) -> str:
    """The digest of a content in hexadecimal."""
    import hashlib

    return hashlib.sha256(content).hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """Read a tree back; nothing is unpickled."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_bytes())
        path = folder / index["tensors"]
        payload = path.read_bytes()
        if sha256(payload) != index["sha256"]:
            raise _damaged(path, "its content is not what was written")
        tree: dict[str, Any] = unpack(index["tree"], load_tensors(payload))
    except FileNotFoundError as error:
        raise RequestError(
            f"there is no saved state at {path}.", "give the folder that save_state wrote"
        ) from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    return tree


def pack(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The value for JSON, its tensors put aside under their paths."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"tensor": path}
    if isinstance(value, numpy.ndarray):
        tensors[path] = torch.from_numpy(numpy.array(value))
        return {"array": path}
    if isinstance(value, numpy.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        # Pairs keep keys that are no texts (torch numbers its parameters) and their order.
        pairs = [
            [pack(key, tensors), pack(part, tensors, f"{path}/{key}")]
            for key, part in value.items()
        ]
        return {"pairs": pairs}
    if isinstance(value, tuple):
        return {"tuple": [pack(part, tensors, f"{path}/{n}") for n, part in enumerate(value)]}
    if isinstance(value, list):
        return [pack(part, tensors, f"{path}/{n}") for n, part in enumerate(value)]
    raise RequestError(
        f"the state at {path.lstrip('/')} is {type(value).__name__}, which is not saved.",
        "give tensors, arrays, numbers, texts, and lists or mappings of them",
    )


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `pack` was given."""
    if isinstance(value, list):
        return [unpack(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "tuple":
        return tuple(unpack(part, tensors) for part in content)
    return {unpack(key, tensors): unpack(part, tensors) for key, part in content}


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):
        # The rename itself is safe only once the folder is.
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _damaged(path: Path, reason: str) -> RequestError:
    return RequestError(
        f"the saved state {path} cannot be read: {reason}.",
        "it is damaged or cut short: use an older checkpoint",
    )
