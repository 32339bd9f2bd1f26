"""Alike modules updated together: one vectorised pass instead of one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.learner.stage import Stage

__all__ = ["Alike", "Group"]


class Group:
    stages: Sequence[Stage]

    def take(self, parts: Any) -> list[tuple[Stage, float]]:
        return []


class Alike:
    """Finds the modules of a minibatch that can go together."""

    def __init__(self, learner: Any) -> None: ...

    def of(
        self, window: list[tuple[Stage, list[Batch]]]
    ) -> list[tuple[Group, list[tuple[Stage, list[Batch]]]]]:
        return []
