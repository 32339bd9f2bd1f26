"""Scheduled options, `[[step, value], …]`: piecewise linear in environment steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import attrs

from rlplug.errors import RequestError

ConfigT = TypeVar("ConfigT")


def _pairs(pairs: Sequence[Sequence[float]]) -> tuple[tuple[int, float], ...]:
    return tuple((int(step), float(value)) for step, value in pairs)


@attrs.frozen
class Schedule:
    """A piecewise linear function of the environment step, constant after its last point."""

    pairs: tuple[tuple[int, float], ...] = attrs.field(converter=_pairs)

    @pairs.validator
    def _check(self, attribute: attrs.Attribute[Any], pairs: Sequence[tuple[int, float]]) -> None:
        steps = [step for step, _ in pairs]
        if not steps:
            raise ValueError("a schedule needs at least one [step, value] pair")
        if steps[0] != 0:
            raise ValueError(f"a schedule starts at step 0, this one at {steps[0]}")
        if any(later <= sooner for sooner, later in pairwise(steps)):
            raise ValueError(f"the steps of a schedule must increase, got {steps}")

    def at(self, step: int) -> float:
        """The value at an environment step."""
        index = bisect_right(self.pairs, step, key=lambda pair: pair[0])
        if index == len(self.pairs):
            return self.pairs[-1][1]
        (start, before), (stop, after) = self.pairs[index - 1], self.pairs[index]
        return before + (after - before) * (step - start) / (stop - start)


def points(schedule: Schedule) -> list[float]:
    """The values at the schedule's points, which include its minimum and maximum."""
    return [value for _, value in schedule.pairs]


class ScheduledValue(float):
    """A schedule's value at one step; an optimizer with it as `lr` follows the schedule."""

    schedule: Schedule
    factor: float

    def __new__(cls, value: float, schedule: Schedule, factor: float = 1.0) -> ScheduledValue:
        number = super().__new__(cls, value)
        number.schedule = schedule
        number.factor = factor
        return number

    def __mul__(self, other: Any) -> Any:
        product = float(self) * other
        if not isinstance(product, float):
            return product
        return ScheduledValue(product, self.schedule, self.factor * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self * (1.0 / other)

    def at(self, step: int) -> float:
        """The value at another step."""
        return self.schedule.at(step) * self.factor


def resolve(
    config: ConfigT, step: int, value_at: Callable[[Schedule, int], float] = Schedule.at
) -> ConfigT:
    """The config with each schedule replaced by its value at this step; itself if it has none."""
    if config is None:
        return config
    if not attrs.has(type(config)):
        raise RequestError(
            f"options are an instance of a config class, found a {type(config).__name__}.",
            "try: the Config of the algorithm, with the options as its keywords",
        )
    changes = {
        field.name: value_at(value, step)
        for field in attrs.fields(type(config))  # type: ignore[arg-type] # any attrs class
        if isinstance(value := getattr(config, field.name), Schedule)
    }
    return attrs.evolve(config, **changes) if changes else config  # type: ignore[misc] # any attrs class


def resolve_scheduled(config: ConfigT, step: int) -> ConfigT:
    """The same with `ScheduledValue` numbers."""
    return resolve(config, step, lambda schedule, at: ScheduledValue(schedule.at(at), schedule))
