"""What is kept of a run on disk: written beside, synced, then moved into place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = ["save_module"]


def save_module(module: nn.Module, folder: Path) -> Path:
    """Write the module's weights and statistics as `module.safetensors`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_model

    path = folder / "module.safetensors"
    beside = path.with_suffix(".tmp")
    try:
        save_model(module, str(beside))
    except SafetensorError as error:
        # It has no errors of its own for what a disk refuses.
        raise OSError(str(error)) from error
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    beside.replace(path)
    return path
