"""Checkpoints: the state of a run on disk, for evaluation, serving and new runs."""

from rlplug.checkpoint.checkpoints import Checkpoints, save_module
from rlplug.checkpoint.lookup import find_checkpoint
from rlplug.checkpoint.manifest import Manifest, checkpoints_in, is_checkpoint, read_manifest

__all__ = [
    "Checkpoints",
    "Manifest",
    "checkpoints_in",
    "find_checkpoint",
    "is_checkpoint",
    "read_manifest",
    "save_module",
]
