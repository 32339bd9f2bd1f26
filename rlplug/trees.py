"""Trees of tensors and plain values in files: what states are saved as.

Tensors are written in the safetensors format, to files named after their content: equal trees give
equal files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor

from rlplug.durable import sync_all, sync_folder, write_content
from rlplug.errors import RequestError

INDEX = "state.json"

_TREE = "tree"
"""The metadata of a file that holds a tree of its own."""
_BYTES = "bytes:"
"""Begins the names of tensors that are bytes, such as pickles."""

_DAMAGE = (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError)
"""What reading a file raises whose content is not what it should be."""


@attrs.frozen
class WrittenTree:
    """The files of a tree."""

    files: Mapping[str, str]
    """Name → SHA-256; the index, which names the others, is the last."""
    content: bytes
    """What tells whether two trees are equal: digests of tensors, and plain values."""


def write_tree(folder: Path, tree: Mapping[str, Any]) -> WrittenTree:
    """Write a tree to new files in a folder, which are to be synced."""
    # Without parents: a run's folder that was deleted meanwhile is not to come back in part.
    folder.mkdir(exist_ok=True)
    tensors: dict[str, Tensor] = {}
    plain = pack(tree, tensors)
    aside = {name: tensors.pop(name) for name in list(tensors) if not compared(name)}
    name, digest = write_named(folder, "tensors", tensors)
    files = {name: digest}
    index: dict[str, Any] = {"tensors": name, "sha256": digest, "tree": plain}
    if aside:
        name, digest = write_named(folder, "aside", aside)
        index["aside"] = {"tensors": name, "sha256": digest}
        files[name] = digest
    files[INDEX] = write_content(folder / INDEX, json.dumps(index).encode())
    comparable = [index["sha256"], _without_clock(plain, "")]
    return WrittenTree(files, json.dumps(comparable).encode())


def replace_tree(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write a tree over an earlier one; until the last rename, the earlier one stays valid."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{os.getpid()}"
    unfinished.mkdir(exist_ok=True)
    try:
        files = write_tree(unfinished, tree).files
        sync_all([unfinished / name for name in files])
        for name in files:
            if name == INDEX:
                sync_folder(folder)
            (unfinished / name).replace(folder / name)
    finally:
        for left in unfinished.iterdir():
            left.unlink()
        unfinished.rmdir()
    sync_folder(folder)
    for old in folder.glob("*-*.safetensors"):
        if old.name not in files:
            old.unlink(missing_ok=True)


def read_tree(folder: Path) -> dict[str, Any]:
    """Read a tree back; nothing is unpickled."""
    if not os.path.exists(folder / INDEX):
        raise RequestError(
            f"there is no saved state at {folder / INDEX}.", "give the folder that save_state wrote"
        )
    with _reading(folder / INDEX):
        index = json.loads(_content(folder, INDEX))
        tensors: dict[str, Tensor] = {}
        for part in [index, *([index["aside"]] if "aside" in index else [])]:
            tensors.update(load_tensors(_content(folder, part["tensors"], part["sha256"])))
        return dict(unpack(index["tree"], tensors))


def write_file(folder: Path, kind: str, tree: Mapping[str, Any]) -> tuple[str, str]:
    """Write a tree to one file, named after its content and synced; returns name and SHA-256."""
    tensors: dict[str, Tensor] = {}
    plain = json.dumps(pack(tree, tensors))
    name, digest = write_named(folder, kind, tensors, {_TREE: plain})
    sync_all([folder / name])
    return name, digest


def read_file(path: Path, sha256: str) -> dict[str, Any]:
    """Read the tree that `write_file` wrote to a file with this digest."""
    with _reading(path):
        content = _content(path.parent, path.name, sha256)
        length = int.from_bytes(content[:8], "little")
        plain = json.loads(content[8 : 8 + length])["__metadata__"][_TREE]
        return dict(unpack(json.loads(plain), load_tensors(content)))


def _content(folder: Path, name: str, sha256: str | None = None) -> bytes:
    """The content of a file of this folder: to read a pipe or a device would take forever."""
    path = folder / name
    if path.name != name or not path.is_file():
        raise _damaged(path, "it is no file of its folder")
    content = path.read_bytes()
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise _damaged(path, "its content is not what was written")
    return content


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def compared(name: str) -> bool:
    """Whether a tensor of this path counts when states are compared.

    Readings of the clock of a run do not, and neither do bytes: equal objects may have different
    pickles.
    """
    first, *others = name.lstrip("/").split("/")
    return not name.startswith(_BYTES) and not (first == "run" and "clock" in others)


# -- tensors and plain values apart ---------------------------------------------------------------


def pack(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The value for JSON, its tensors put aside under their paths, without a copy."""
    if isinstance(value, Tensor):
        if value.is_complex():
            raise _not_saved(f"a tensor of {value.dtype}", path)
        tensors[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, numpy.ndarray):
        tensors[path] = _tensor_of(value, path)
        return {"array": path}
    if isinstance(value, numpy.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        tensors[_BYTES + path] = torch.from_numpy(numpy.frombuffer(bytearray(value), numpy.uint8))
        return {"bytes": path}
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
    raise _not_saved(type(value).__name__, path)


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
    if kind == "bytes":
        return tensors[_BYTES + content].numpy().tobytes()
    if kind == "tuple":
        return tuple(unpack(part, tensors) for part in content)
    return {unpack(key, tensors): unpack(part, tensors) for key, part in content}


def _tensor_of(array: Any, path: str) -> Tensor:
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise _not_saved(f"an array of {array.dtype}", path)
    array = numpy.ascontiguousarray(array).reshape(array.shape)
    if not array.flags.writeable or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array)


def _not_saved(what: str, path: str) -> RequestError:
    return RequestError(
        f"the state at {path.lstrip('/')} is {what}, which is not saved.",
        "give tensors, arrays, numbers, texts, and lists or mappings of them",
    )


def _without_clock(value: Any, path: str) -> Any:
    """The packed value without readings of the clock, mappings in the order of their keys."""
    if isinstance(value, list):
        return [_without_clock(part, f"{path}/{n}") for n, part in enumerate(value)]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return {kind: _without_clock(content, path)}
    if kind != "pairs":
        return value
    pairs = [
        [key, _without_clock(part, f"{path}/{key}")]
        for key, part in content
        if compared(f"{path}/{key}")
    ]
    return {kind: sorted(pairs, key=lambda pair: json.dumps(pair[0]))}


# -- one file of tensors --------------------------------------------------------------------------


def write_named(
    folder: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str] | None = None,
) -> tuple[str, str]:
    """Write tensors to a file named after its content, not synced; returns name and SHA-256."""
    separate: dict[str, Tensor] = {}
    storages = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        # Tensors that share memory would be refused.
        own = tensor.clone() if storage in storages else tensor
        separate[name] = own.cpu().contiguous()
        storages.add(storage)
    unfinished = folder / f".unfinished-{kind}-{os.getpid()}"
    try:
        save_file(separate, unfinished, metadata)
        with unfinished.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        name = f"{kind}-{digest[:16]}.safetensors"
        unfinished.replace(folder / name)
    except BaseException as error:
        # The error that led here is the one to be told.
        with suppress(OSError):
            unfinished.unlink()
        # Such as that of a full disk: `… (os error 28)`.
        if code := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
        raise
    return name, digest


def _damaged(path: Path, reason: str) -> RequestError:
    return RequestError(
        f"the saved state {path} cannot be read: {reason}.",
        "it is damaged or cut short: use an older checkpoint",
    )
