"""Numbers that remember the schedule they came from, so that an optimizer can follow it."""

from __future__ import annotations

from typing import Any

import attrs

from rlplug.config.schedule import ConfigT, Schedule

__all__ = ["Followed", "follow"]


class Followed(float):
    """A schedule's value at one step: an optimizer made with it as `lr` follows the schedule."""

    schedule: Schedule
    factor: float

    def __new__(cls, value: float, schedule: Schedule, factor: float = 1.0) -> Followed:
        number = super().__new__(cls, value)
        number.schedule = schedule
        number.factor = factor
        return number

    def __mul__(self, other: Any) -> Any:
        product = float(self) * other
        if not isinstance(product, float):
            return product
        return Followed(product, self.schedule, self.factor * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self * (1.0 / other)

    def at(self, step: int) -> float:
        """The value at another step."""
        return self.schedule.at(step) * self.factor


def follow(config: ConfigT, step: int) -> ConfigT:
    """The config with every schedule replaced by a `Followed` number; itself if it has none."""
    if config is None:
        return config
    changes = {
        field.name: Followed(value.at(step), value)
        for field in attrs.fields(type(config))  # type: ignore[arg-type] # any attrs class
        if isinstance(value := getattr(config, field.name), Schedule)
    }
    return attrs.evolve(config, **changes) if changes else config  # type: ignore[misc] # any attrs class
