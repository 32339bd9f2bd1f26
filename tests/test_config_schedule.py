"""Schedules, and numbers that follow one: what an optimizer's learning rate may be made of."""

from __future__ import annotations

from typing import Any

import attrs
import numpy
import pytest

from rlplug import option
from rlplug.config import Schedule, at_least
from rlplug.config.schedule import points, resolve, resolve_scheduled


@attrs.frozen(kw_only=True)
class Options:
    learning_rate: float = option(0.1, "Step size.", at_least(0), schedulable=True)
    gamma: float = option(0.99, "Weight of the future.")


def test_a_schedule_of_several_points_is_read_between_the_two_around_a_step() -> None:
    schedule = Schedule([(0, 4.0), (10, 2.0), (20, 3.0), (40, 1.0)])
    assert [schedule.at(step) for step in (0, 5, 9, 10, 11, 15, 20, 30, 39, 40, 41)] == [
        *(4.0, 3.0, pytest.approx(2.2)),
        *(2.0, pytest.approx(2.1), 2.5),
        *(3.0, 2.0, pytest.approx(1.1)),
        *(1.0, 1.0),
    ]
    assert points(schedule) == [4.0, 2.0, 3.0, 1.0]


def test_resolving_leaves_other_options_alone_and_takes_none_for_none() -> None:
    options = Options(learning_rate=Schedule([(0, 1.0), (10, 0.0)]), gamma=0.5)
    assert resolve(options, 5) == Options(learning_rate=0.5, gamma=0.5)
    assert resolve(None, 5) is None


@pytest.mark.parametrize(
    ("made", "at_5"),
    [
        (lambda rate: rate * 4, 2.0),
        (lambda rate: 4 * rate, 2.0),
        (lambda rate: rate / 4, 0.125),
        (lambda rate: rate * 4 / 2 * 3, 3.0),
        (lambda rate: rate * numpy.float64(4), 2.0),
    ],
)
def test_a_multiple_of_a_scheduled_number_follows_the_schedule(made: Any, at_5: float) -> None:
    # From 1 to 0 in ten steps: at 5 it is half of what it was at 0.
    options = Options(learning_rate=Schedule([(0, 1.0), (10, 0.0)]))
    rate: Any = resolve_scheduled(options, 0).learning_rate
    number = made(rate)
    assert (float(rate), rate.at(5)) == (1.0, 0.5)
    assert (float(number), number.at(5)) == (2 * at_5, at_5)
