"""Checkpoints of a run: written atomically, the oldest deleted."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.checkpoint.manifest import (
    CONFIG,
    MANIFEST,
    POLICY,
    TRAINING,
    Manifest,
    best_in,
    checkpoints_in,
)
from rlplug.learner import state

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Checkpoints", "save_module"]

_UNFINISHED = ".unfinished-*"


class Checkpoints:
    """Writes checkpoints into one folder; a crash at any time leaves earlier ones intact.

    The latest `keep` are kept, and the one with the best evaluation.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(_UNFINISHED):
            shutil.rmtree(leftover, ignore_errors=True)

    def write(
        self,
        manifest: Manifest,
        config: str,
        policy: Mapping[str, Any],
        training: Mapping[str, Any],
    ) -> Path:
        """Write a checkpoint, the manifest last, then rename it into place; once per step."""
        path = self.folder / f"step-{manifest.step:012d}"
        if path.exists():
            return path
        partial = self.folder / f".unfinished-{path.name}-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            files = {}
            for part, tree in ((POLICY, policy), (TRAINING, training)):
                for piece in state.pieces(tree):
                    _write_file(partial / part / piece.name, piece.content)
                    files[f"{part}/{piece.name}"] = piece.sha256
                _sync_folder(partial / part)
            _write_file(partial / CONFIG, config.encode())
            files[CONFIG] = state.sha256(config.encode())
            _write_file(partial / MANIFEST, attrs.evolve(manifest, files=files).content())
            _sync_folder(partial)
            partial.rename(path)
            _sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return path

    def prune(self) -> list[str]:
        """Delete checkpoints that are not kept, and return their names."""
        found = checkpoints_in(self.folder)
        kept = {*best_in(found), *found[-self._keep :]}
        gone = [one for one in found if one not in kept]
        for one in gone:
            # Renamed first, so that a half-deleted one is not taken for a checkpoint.
            aside = one.with_name(f".unfinished-{one.name}-old")
            with contextlib.suppress(OSError):
                one.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
        return [one.name for one in gone]


def save_module(module: nn.Module, folder: Path) -> Path:
    """Write the module's parameters and buffers to `module.safetensors`, atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_model

    path = folder / "module.safetensors"
    partial = path.with_suffix(".tmp")
    try:
        save_model(module, str(partial))
    except SafetensorError as error:
        # What safetensors raises for a full disk.
        raise OSError(str(error)) from error
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
    return path


def _write_file(path: Path, content: bytes) -> None:
    """Write a file and fsync it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """fsync a folder, which makes a rename durable, where the system supports it."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
