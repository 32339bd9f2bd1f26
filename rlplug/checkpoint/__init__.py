"""Checkpoints: what is kept of a run on disk, so that it can be used and gone on with."""

from rlplug.checkpoint.checkpoints import Checkpoints
from rlplug.checkpoint.finding import find_checkpoint
from rlplug.checkpoint.manifest import Manifest, checkpoints_in, is_checkpoint, read_manifest
from rlplug.checkpoint.module import save_module

__all__ = [
    "Checkpoints",
    "Manifest",
    "checkpoints_in",
    "find_checkpoint",
    "is_checkpoint",
    "read_manifest",
    "save_module",
]
