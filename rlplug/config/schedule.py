"""Options that change while a run goes on: `[[step, value], …]`, straight lines in between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import attrs

__all__ = ["Schedule", "points", "resolve"]

ConfigT = TypeVar("ConfigT")


def _pairs(pairs: Sequence[Sequence[float]]) -> tuple[tuple[int, float], ...]:
    return tuple((int(step), float(value)) for step, value in pairs)


@attrs.frozen
class Schedule:
    """A value per environment step: linear between its points, constant outside of them."""

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
        """The value that holds at an environment step."""
        index = bisect_right(self.pairs, step, key=lambda pair: pair[0])
        if index == len(self.pairs):
            return self.pairs[-1][1]
        (start, before), (stop, after) = self.pairs[index - 1], self.pairs[index]
        return before + (after - before) * (step - start) / (stop - start)


def points(schedule: Schedule) -> list[float]:
    """The values a schedule passes through: its extremes are among them."""
    return [value for _, value in schedule.pairs]


def resolve(config: ConfigT, step: int) -> ConfigT:
    """The config with every schedule replaced by its value at this step; itself if it has none."""
    changes = {
        field.name: value.at(step)
        for field in attrs.fields(type(config))  # type: ignore[arg-type] # any attrs class
        if isinstance(value := getattr(config, field.name), Schedule)
    }
    return attrs.evolve(config, **changes) if changes else config  # type: ignore[misc] # any attrs class
