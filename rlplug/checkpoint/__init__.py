"""Checkpoints: the state of a run on disk, for evaluation, serving and new runs.

What is imported here needs no torch: finding one must be quick.
"""

from __future__ import annotations

from rlplug.checkpoint.lookup import find_checkpoint, lasting_name
from rlplug.checkpoint.manifest import Manifest, checkpoints_in, read_manifest

__all__ = ["Manifest", "checkpoints_in", "find_checkpoint", "lasting_name", "read_manifest"]
