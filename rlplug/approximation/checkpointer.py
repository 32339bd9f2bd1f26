"""Saves the weights of a model at regular intervals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from safetensors.torch import save_model
from torch import nn

from rlplug.errors import RequestError
from rlplug.quantities import is_whole_number

__all__ = ["Checkpointer", "DummyCheckpointer", "PeriodicCheckpointer"]


class Checkpointer(Protocol):
    """Called after each update of a model."""

    def init(self, model: nn.Module, filename: str | Path) -> None:
        """Set the model and its file."""

    def __call__(self) -> None:
        """Count an update, and save the model if it is due."""


class DummyCheckpointer:
    """Saves nothing."""

    def init(self, model: nn.Module, filename: str | Path) -> None:
        """Do nothing."""

    def __call__(self) -> None:
        """Do nothing."""


class PeriodicCheckpointer:
    """Saves the weights every `frequency` updates to one safetensors file, atomically.

    `safetensors.torch.load_model(model, filename)` reads them into the model that an approximation
    was given. It saves one model alone.
    """

    def __init__(self, frequency: int) -> None:
        if not is_whole_number(frequency) or frequency < 1:
            raise RequestError(
                f"a model is saved every 1 or more updates, not every {frequency!r}.",
                "try: PeriodicCheckpointer(200), or DummyCheckpointer()",
            )
        self.frequency = frequency
        self._updates = 0
        self.model: nn.Module | None = None
        self._file = Path()

    def init(self, model: nn.Module, filename: str | Path) -> None:
        """Set the model and its file."""
        self.model, self._file = model, Path(filename)

    def __call__(self) -> None:
        """Count an update, and save the model if it is due."""
        self._updates += 1
        if self.model is None or self._updates % self.frequency:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        save_model(self.model, str(unfinished))
        os.replace(unfinished, self._file)
