"""The global random generators: kept apart for each learner under test, and watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlplug.learner.state import random_state, set_random_state
from rlplug.seeding import forked
from rlplug.testing.comparing import first_difference

__all__ = ["Draws", "moved_generators"]

_CPU = torch.device("cpu")


class Draws:
    """Global generators of one learner's own: what runs inside neither sees nor moves others'."""

    def __init__(self, seed: int) -> None:
        with forked(seed):
            self._state = random_state(_CPU)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        outside = random_state(_CPU)
        set_random_state(self._state)
        try:
            yield
        finally:
            self._state = random_state(_CPU)
            set_random_state(outside)


@contextmanager
def moved_generators() -> Iterator[list[str]]:
    """Fills the list with the names of the global generators that were drawn from or seeded."""
    before = random_state(_CPU)
    seed = torch.initial_seed()
    moved: list[str] = []
    yield moved
    after = random_state(_CPU)
    names = {"torch": "torch", "numpy": "numpy.random", "python": "random"}
    moved += [
        name
        for part, name in names.items()
        if first_difference(before[part], after[part]) is not None
    ]
    if torch.initial_seed() != seed:
        moved.append("torch.manual_seed")
    set_random_state(before)
