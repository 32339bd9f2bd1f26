"""Checks of what options change: which values are tried, where, and what is said of idle ones."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import numpy
import torch
from gymnasium import spaces

from rlplug import AddOn, Batch, Loss, option
from rlplug.testing.algorithms import (
    PolicyGradient,
    PolicyGradientConfig,
)
from rlplug.testing.checks.effects import FirstFeatures
from tests.faulty import failure, passed_by, passes


def test_the_first_features_are_as_many_as_they_say() -> None:
    made = FirstFeatures(spaces.Box(0, 255, (3, 2, 2), numpy.uint8))
    found = made(torch.full((5, 3, 2, 2), 3, dtype=torch.uint8))
    assert found.shape == (5, made.out_features)
    assert bool((found.abs() < 1.001).all())
    assert bool((found[0] == found[1]).all())
    assert not torch.equal(found[:1], made(torch.zeros(1, 3, 2, 2)))


# -- where an effect is looked for -----------------------------------------------------------------


@attrs.frozen(kw_only=True)
class NothingConfig:
    """One option of no effect."""

    strength: float = option(0.5, "A strength.")


class Nothing(AddOn):
    """Changes nothing."""

    Config: ClassVar[type[Any]] = NothingConfig


# -- schedules -------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class BesideConfig(PolicyGradientConfig):
    """A schedule that matters beside another option."""

    weight_on: bool = option(False, "A switch.")
    weight_size: float = option(0.5, "A size.", schedulable=True)


class Beside(PolicyGradient):
    """Uses a schedule beside another option."""

    Config: ClassVar[type[Any]] = BesideConfig

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        if config.weight_on:
            config = attrs.evolve(config, vf_coef=self.size(config))
        return super().compute_loss_for_module(config, batch, fwd_out)

    def size(self, config: Any) -> float:
        """What holds now."""
        return float(config.weight_size)


class BesideAtFirst(Beside):
    """Uses what holds at the start."""

    def size(self, config: Any) -> float:
        return self.config.weight_size if isinstance(self.config.weight_size, float) else 0.5


def test_schedules_are_tried_where_they_have_an_effect() -> None:
    passes("schedules_are_followed", Beside)
    told = failure("schedules_are_followed", BesideAtFirst)
    assert told.looked_for == (
        "other weights or actions for weight_size = [[0, 0.5], [1, 0.25]] than for 0.5"
    )


def test_what_has_no_schedule_is_passed_by() -> None:
    assert passed_by("schedules_are_followed", Nothing) == (
        "it has no option with schedulable=True"
    )


# -- kinds of layers -------------------------------------------------------------------------------
