"""Saves the weights of a model every so often."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from safetensors.torch import save_model
from torch import nn

from rlplug.errors import RequestError

__all__ = ["Checkpointer", "DummyCheckpointer", "PeriodicCheckpointer"]


class Checkpointer(Protocol):
    """Is told of a model once, then called after each of its updates."""

    def init(self, model: nn.Module, filename: str | Path) -> None:
        """Save this model to this file."""

    def __call__(self) -> None:
        """One more update was made."""


class DummyCheckpointer:
    """Saves nothing."""

    def init(self, model: nn.Module, filename: str | Path) -> None:
        """Nothing."""

    def __call__(self) -> None:
        """Nothing."""


class PeriodicCheckpointer:
    """Saves the weights every `frequency` updates, in one file of safetensors.

    `safetensors.torch.load_model(model, filename)` reads them. A new file takes the place of the
    old one only when it is whole.
    """

    def __init__(self, frequency: int) -> None:
        if frequency < 1:
            raise RequestError(
                f"a model is saved every 1 or more updates, not every {frequency}.",
                "try: PeriodicCheckpointer(200), or DummyCheckpointer()",
            )
        self.frequency = frequency
        self._updates = 0
        self._model: nn.Module | None = None
        self._file = Path()

    def init(self, model: nn.Module, filename: str | Path) -> None:
        """Save this model to this file."""
        self._model, self._file = model, Path(filename)

    def __call__(self) -> None:
        """One more update was made."""
        self._updates += 1
        if self._model is None or self._updates % self.frequency:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        save_model(self._model, str(unfinished))
        os.replace(unfinished, self._file)
