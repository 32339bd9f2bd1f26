"""Where approximations report their losses and learning rates."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torch import Tensor

__all__ = ["DummyWriter", "Writer"]


class Writer(Protocol):
    """Takes what approximations report; checkpoints go to its folder."""

    log_dir: Path

    def add_loss(self, name: str, value: Tensor) -> None:
        """One loss, still on its device."""

    def add_schedule(self, name: str, value: float) -> None:
        """One scheduled number, such as a learning rate."""


class DummyWriter:
    """Reports to nobody."""

    def __init__(self, log_dir: str | Path = "runs") -> None:
        self.log_dir = Path(log_dir)

    def add_loss(self, name: str, value: Tensor) -> None:
        """Nothing."""

    def add_schedule(self, name: str, value: float) -> None:
        """Nothing."""
