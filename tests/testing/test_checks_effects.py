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
from rlplug.testing.algorithms import PolicyGradient, PolicyGradientModule, QLearning
from rlplug.testing.algorithms.policy_gradient import PolicyGradientConfig
from rlplug.testing.cases import CASES
from rlplug.testing.checks.effects import (
    FirstFeatures,
    _contexts,
    _others,
    _supports_other_spaces,
    acting_inputs,
    fingerprint,
)
from rlplug.testing.collector import RUN_STEPS
from rlplug.testing.harness import make_harness
from tests.faulty import failure, passed_by, passes

DISCRETE, MASKED = (
    next(one for one in CASES if one.name == name and not one.one_step)
    for name in ("box, discrete", "box, masked discrete")
)


@attrs.frozen(kw_only=True)
class ManyConfig(PolicyGradientConfig):
    """Options of many kinds."""

    flag: bool = option(True, "A flag.")
    off: bool = option(False, "A flag.")
    rate: float = option(0.4, "A rate.")
    none: float = option(0.0, "A rate.")
    one: float = option(1.0, "A rate.")
    count: int = option(6, "A count.")
    nothing: int = option(0, "A count.")
    sizes: tuple[int, ...] = option((4, 4), "Sizes.")
    empty: tuple[int, ...] = option((), "Sizes.")
    kind: Literal["a", "b", "c"] = option("a", "A kind.")
    encoder: str = option("", "An encoder.")
    other: str = option("", "A text.")


class Many(PolicyGradient):
    """Has options of many kinds."""

    Config: ClassVar[type[Any]] = ManyConfig


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("flag", [False]),
        ("off", [True]),
        ("rate", [0.2, 1.2000000000000002, 0.1, 1.0, 0.9, 0.0, 5.4]),
        ("none", [0.1, 0.001, 0.1, 1.0, 0.9, 5.0]),
        ("one", [0.5, 3.0, 0.1, 0.9, 0.0, 6.0]),
        ("count", [7, 3, 1, 24, 0, 4 * RUN_STEPS]),
        ("nothing", [1, 1, 4 * RUN_STEPS]),
        ("sizes", [(4, 4, 8), (8,)]),
        ("empty", []),
        ("kind", ["b", "c"]),
        ("encoder", ["rlplug.testing.checks.effects:FirstFeatures"]),
        ("other", []),
    ],
)
def test_other_values_follow_from_the_type_of_an_option(name: str, values: list[Any]) -> None:
    found = _others(Subject.of(Many), name)
    assert [set(one) for one in found] == [{name}] * len(values)
    assert [type(one[name]) for one in found] == list(map(type, values))
    assert [one[name] for one in found] == values


def test_the_first_features_are_as_many_as_they_say() -> None:
    made = FirstFeatures(spaces.Box(0, 255, (3, 2, 2), numpy.uint8))
    found = made(torch.full((5, 3, 2, 2), 3, dtype=torch.uint8))
    assert found.shape == (5, made.out_features)
    assert bool((found.abs() < 1.001).all())
    assert bool((found[0] == found[1]).all())
    assert not torch.equal(found[:1], made(torch.zeros(1, 3, 2, 2)))


def test_the_same_observations_are_acted_on_at_moments_of_a_run() -> None:
    module = make_harness(Subject.of(PolicyGradient), MASKED).module
    acts = list(acting_inputs(module, MASKED, 3, seed=2))
    times = [0, RUN_STEPS // 20, RUN_STEPS // 4, RUN_STEPS // 2, RUN_STEPS]
    assert [one.timestep for one in acts] == times
    assert {one.steps for one in acts} == {RUN_STEPS}
    assert len({float(one.random.random()) for one in acts}) == 1
    assert float(acts[0].random.random()) != float(numpy.random.default_rng(0).random(2)[1])
    environment = MASKED.make()
    for row in range(3):
        observation, info = environment.reset(seed=2000 + row)
        for act in acts:
            assert numpy.array_equal(act.observations[row], observation)
            assert numpy.array_equal(act.action_mask[row], info["action_mask"])


# -- where an effect is looked for -----------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PlacesConfig(PolicyGradientConfig):
    """Options of which one has words of another one."""

    noise_on: bool = option(False, "A switch.")
    noise_size: float = option(0.5, "A size.")
    far: bool = option(False, "A switch.")


class Places(PolicyGradient):
    """Has options that matter beside others."""

    Config: ClassVar[type[Any]] = PlacesConfig


def test_effects_are_looked_for_in_likely_places_first() -> None:
    found = [
        (dict(setting), case.name, kind)
        for setting, case, kind in _contexts(Subject.of(Places), "noise_size")
    ]
    first, other = "box, discrete", "box, masked discrete"
    assert found == [
        ({}, first, PolicyGradient),
        ({"noise_on": True}, first, PolicyGradient),
        ({}, other, PolicyGradient),
        ({"far": True}, first, PolicyGradient),
        ({"noise_on": True}, other, PolicyGradient),
        ({"far": True}, other, PolicyGradient),
    ]


@attrs.frozen(kw_only=True)
class NothingConfig:
    """One option of no effect."""

    strength: float = option(0.5, "A strength.")


class Nothing(AddOn):
    """Changes nothing."""

    Config: ClassVar[type[Any]] = NothingConfig


def test_effects_of_add_ons_are_looked_for_beside_two_algorithms() -> None:
    found = [
        (dict(setting), case.name, kind)
        for setting, case, kind in _contexts(Subject.of(Nothing), "strength")
    ]
    assert found == [
        ({}, "box, discrete", PolicyGradient),
        ({}, "box, discrete", QLearning),
        ({}, "box, masked discrete", PolicyGradient),
    ]


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


def test_support_of_other_spaces_is_an_effect() -> None:
    assert _supports_other_spaces(Subject.of(OfSpaces), {"images": True})
    assert not _supports_other_spaces(Subject.of(OfSpaces), {"gamma": 0.5})
    assert not _supports_other_spaces(Subject.of(OfSpaces), {"gamma": 7.0})
    assert not _supports_other_spaces(Subject.of(Nothing), {"strength": 0.1})


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
