"""Checkpoints: the state of a run on disk, for evaluation, serving and new runs.

Torch is imported only for writing one: finding one must be quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.lazy import lazy_names

if TYPE_CHECKING:
    from rlplug.checkpoint.checkpoints import Checkpoints, Committed, Snapshot, save_module
    from rlplug.checkpoint.lookup import find_checkpoint, lasting_name
    from rlplug.checkpoint.manifest import Manifest, checkpoints_in, is_checkpoint, read_manifest
    from rlplug.checkpoint.training import newest_valid, read_training, restore_feed

_MODULES = {
    "Checkpoints": "rlplug.checkpoint.checkpoints",
    "Committed": "rlplug.checkpoint.checkpoints",
    "Manifest": "rlplug.checkpoint.manifest",
    "Snapshot": "rlplug.checkpoint.checkpoints",
    "checkpoints_in": "rlplug.checkpoint.manifest",
    "find_checkpoint": "rlplug.checkpoint.lookup",
    "is_checkpoint": "rlplug.checkpoint.manifest",
    "lasting_name": "rlplug.checkpoint.lookup",
    "newest_valid": "rlplug.checkpoint.training",
    "read_manifest": "rlplug.checkpoint.manifest",
    "read_training": "rlplug.checkpoint.training",
    "restore_feed": "rlplug.checkpoint.training",
    "save_module": "rlplug.checkpoint.checkpoints",
}

__all__ = [
    "Checkpoints",
    "Committed",
    "Manifest",
    "Snapshot",
    "checkpoints_in",
    "find_checkpoint",
    "is_checkpoint",
    "lasting_name",
    "newest_valid",
    "read_manifest",
    "read_training",
    "restore_feed",
    "save_module",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
