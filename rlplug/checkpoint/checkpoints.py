"""The checkpoints of a run that goes on: written beside, moved into place, the oldest deleted."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint.manifest import MANIFEST, Manifest, best_in, checkpoints_in
from rlplug.learner import state

__all__ = ["CONFIG", "POLICY", "TRAINING", "Checkpoints"]

POLICY = "policy"
"""The folder with what acting takes: weights, extras, spaces, normalisation."""
TRAINING = "training"
"""The folder with what going on takes besides: optimizers, generators, counters."""
CONFIG = "config.toml"

_UNFINISHED = ".unfinished-*"


class Checkpoints:
    """Writes checkpoints into one folder; a crash at any moment leaves the earlier ones intact.

    `keep` of them are kept, besides the one whose evaluation was best.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(_UNFINISHED):
            shutil.rmtree(left, ignore_errors=True)

    def write(
        self,
        manifest: Manifest,
        config: str,
        policy: Mapping[str, Any],
        training: Mapping[str, Any],
    ) -> Path:
        """Write a checkpoint, the manifest last, and move it into place; a step is written once."""
        path = self.folder / f"step-{manifest.step:012d}"
        if path.exists():
            return path
        beside = self.folder / f".unfinished-{path.name}-{os.getpid()}"
        shutil.rmtree(beside, ignore_errors=True)
        try:
            files = {}
            for part, tree in ((POLICY, policy), (TRAINING, training)):
                for piece in state.pieces(tree):
                    _put(beside / part / piece.name, piece.content)
                    files[f"{part}/{piece.name}"] = piece.sha256
                _sync(beside / part)
            _put(beside / CONFIG, config.encode())
            files[CONFIG] = state.sha256(config.encode())
            _put(beside / MANIFEST, attrs.evolve(manifest, files=files).content())
            _sync(beside)
            beside.rename(path)
            _sync(self.folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        return path

    def prune(self) -> list[str]:
        """Delete what need not be kept, and return the names of what was deleted."""
        found = checkpoints_in(self.folder)
        kept = {*best_in(found), *found[-self._keep :]}
        gone = [one for one in found if one not in kept]
        for one in gone:
            # Renamed first, so that nobody takes half of it for a checkpoint.
            aside = one.with_name(f".unfinished-{one.name}-old")
            with contextlib.suppress(OSError):
                one.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
        return [one.name for one in gone]


def _put(path: Path, content: bytes) -> None:
    """Write a file, down to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """A rename lasts only once the folder is on the disk; not every system can ask for that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
