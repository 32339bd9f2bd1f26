"""Checkpoints: the state of a run on disk, for evaluation, serving and new runs.

Torch is imported only for writing one: finding one must be quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.lazy import lazy_names

if TYPE_CHECKING:
    from rlplug.checkpoint.checkpoints import Checkpoints, save_module
    from rlplug.checkpoint.lookup import find_checkpoint
    from rlplug.checkpoint.manifest import Manifest, checkpoints_in, is_checkpoint, read_manifest

_MODULES = {
    "Checkpoints": "rlplug.checkpoint.checkpoints",
    "Manifest": "rlplug.checkpoint.manifest",
    "checkpoints_in": "rlplug.checkpoint.manifest",
    "find_checkpoint": "rlplug.checkpoint.lookup",
    "is_checkpoint": "rlplug.checkpoint.manifest",
    "read_manifest": "rlplug.checkpoint.manifest",
    "save_module": "rlplug.checkpoint.checkpoints",
}

__all__ = [
    "Checkpoints",
    "Manifest",
    "checkpoints_in",
    "find_checkpoint",
    "is_checkpoint",
    "read_manifest",
    "save_module",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
