"""The averaged module."""

from __future__ import annotations

from rlplug.nn import PolyakTarget

__all__ = ["Average"]


class Average(PolyakTarget):
    """Follows a module by `1 - decay` of its distance at each optimizer step; faster at first.

    The first steps have decays of 2/11, 3/12, … so that the average forgets the initial weights
    (as `tf.train.ExponentialMovingAverage` with `num_updates`).
    """

    def __init__(self, decay: float) -> None:
        super().__init__(1 - decay)
        self.decay = decay

    def update(self, timestep: int | None = None) -> bool:
        """Count one step, and follow the module."""
        steps = int(self.clock) + 1
        self.rate = 1 - min(self.decay, (1 + steps) / (10 + steps))
        return super().update(timestep)
