"""Checks of what options change: which values are tried, where, and what is said of idle ones."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs
import numpy
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlplug import AddOn, Batch, Loss, option
from rlplug.testing import Subject
from rlplug.testing.algorithms import (
    PolicyGradient,
    PolicyGradientConfig,
    PolicyGradientModule,
)
from rlplug.testing.cases import CASES
from rlplug.testing.checks.effects import FirstFeatures, fingerprint
from tests.faulty import failure, passed_by, passes

DISCRETE, MASKED = (
    next(one for one in CASES if one.name == name and not one.one_step)
    for name in ("box, discrete", "box, masked discrete")
)


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


def test_options_without_an_effect_are_told_with_the_settings_tried() -> None:
    told = failure("every_option_has_an_effect", Nothing)
    assert told.looked_for == (
        "another feed, other weights or other actions for another value of each option"
    )
    assert told.found == "the same ones whatever 'strength' is, in 3 settings"
    assert told.look_at.startswith("NothingConfig (")
    assert told.look_at.endswith(
        "): follow 'strength' to where it is used; if it matters only beside other options, name "
        "them in `variants`; if no environment of the kit can show it, name it in "
        "`untested_options`"
    )


@attrs.frozen(kw_only=True)
class TwoConfig:
    """Two options of no effect."""

    strict: bool = option(True, "A flag.")
    twice: bool = option(False, "A flag.")
    waived: int = option(2, "Times.")


class TwoOfNothing(AddOn):
    """Changes nothing."""

    Config: ClassVar[type[Any]] = TwoConfig
    untested_options: ClassVar[tuple[str, ...]] = ("waived",)


def test_all_options_without_an_effect_are_named_but_those_that_are_not_tested() -> None:
    told = failure("every_option_has_an_effect", TwoOfNothing)
    assert told.found == "the same ones whatever 'strict', 'twice' are, in 7 settings"


@attrs.frozen(kw_only=True)
class SpacesConfig(PolicyGradientConfig):
    """An option for what is supported."""

    images: bool = option(False, "Whether images are supported.")


class OfSpaces(PolicyGradient):
    """Supports more with an option, which changes nothing else."""

    Config: ClassVar[type[Any]] = SpacesConfig

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        if self.config.images and len(observation_space.shape or ()) == 3:
            return None
        return super().supports(observation_space, action_space)


def test_fingerprints_tell_effects_apart() -> None:
    subject = Subject.of(OfSpaces)
    usual = fingerprint(subject, {}, DISCRETE)
    assert usual == fingerprint(subject, {"images": True}, DISCRETE)
    assert usual.is_of_updates
    assert "gamma" in usual.read
    assert usual.digest != fingerprint(subject, {"gamma": 0.3}, DISCRETE).digest
    assert fingerprint(subject, {"gamma": 7.0}, DISCRETE).digest == ""
    image = next(one for one in CASES if one.name == "image, discrete")
    assert fingerprint(subject, {}, image).digest == "not supported"


# -- schedules -------------------------------------------------------------------------------------


class OnlyTheFirst(PolicyGradient):
    """Uses the coefficient that holds at the start, also of a schedule."""

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        first = self.config.ent_coef
        if not isinstance(first, float):
            first = Subject.of(PolicyGradient).config().ent_coef
        return super().compute_loss_for_module(attrs.evolve(config, ent_coef=first), batch, fwd_out)


class FailsWithASchedule(PolicyGradient):
    """Computes with the schedule as if it were a number."""

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        assert self.config.ent_coef + 1
        return super().compute_loss_for_module(config, batch, fwd_out)


HINT = (
    "read 'ent_coef' of the hook's argument `config`, each time: self.config has the schedule; an "
    "optimizer follows `lr=config.NAME` itself, but no number computed from it"
)


def test_schedules_that_are_not_followed_are_told() -> None:
    passes("schedules_are_followed", PolicyGradient)
    told = failure("schedules_are_followed", OnlyTheFirst)
    assert told.looked_for == (
        "other weights or actions for ent_coef = [[0, 0.01], [1, 0.005]] than for 0.01"
    )
    assert told.found == "the same ones"
    assert told.look_at.startswith("PolicyGradientConfig (")
    assert told.look_at.endswith(f"): {HINT}")


def test_schedules_that_are_taken_for_numbers_are_told() -> None:
    told = failure("schedules_are_followed", FailsWithASchedule)
    assert told.looked_for == "a run with {'ent_coef': [[0, 0.01], [1, 0.005]]}"
    assert told.found.startswith("TypeError: ")
    assert told.look_at.endswith(f": {HINT}")


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


@attrs.frozen(kw_only=True)
class LayersConfig(PolicyGradientConfig):
    """An option for all networks."""

    activation: Literal["tanh", "relu"] = option("tanh", "Between layers.")


class WithLayers(PolicyGradient):
    """Networks with a kind of layer that may be chosen."""

    Config: ClassVar[type[Any]] = LayersConfig
    followed: ClassVar[tuple[str, ...]] = ("actor", "critic")

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        inputs, actions = spaces.flatdim(observation_space), spaces.flatdim(action_space)
        module = PolicyGradientModule(inputs, actions, config.width)
        for name in self.followed:
            kind = nn.ReLU if config.activation == "relu" else nn.Tanh
            getattr(module, name)[1] = kind()
        return module


class OnlyTheActor(WithLayers):
    """Forgets its second network."""

    followed: ClassVar[tuple[str, ...]] = ("actor",)


class Neither(WithLayers):
    """Forgets both."""

    followed: ClassVar[tuple[str, ...]] = ()


class Waived(OnlyTheActor):
    """Means it for the actor alone."""

    untested_options: ClassVar[tuple[str, ...]] = ("activation",)


def test_networks_that_keep_other_layers_are_told() -> None:
    passes("networks_follow_their_options", WithLayers)
    told = failure("networks_follow_their_options", OnlyTheActor)
    assert told.looked_for == "'relu' for activation in every network"
    assert told.found == "'critic' still has Tanh, which other networks have no more"
    assert told.look_at.startswith("OnlyTheActor.build (")
    assert told.look_at.endswith(
        "): hand 'activation' on to it; if it is not meant for all networks, name it in "
        "`untested_options`"
    )


@pytest.mark.parametrize("plugin", [Neither, Waived, PolicyGradient])
def test_options_for_layers_that_change_none_are_passed_by(plugin: type[Any]) -> None:
    assert passed_by("networks_follow_their_options", plugin) == (
        "it has no option activation or encoder"
    )
