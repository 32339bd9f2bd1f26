"""Checks of options, spaces, instances, seeds and add-ons: what they say of faulty plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy
import pytest
import torch

from rlplug import AddOn, Batch, RequestError, option
from rlplug.config import at_least
from rlplug.feeds import Feed, Stream
from rlplug.testing import CheckFailed, Subject
from rlplug.testing.algorithms import PolicyGradient, PolicyGradientConfig
from rlplug.testing.checks import check_named
from tests.faulty import failure, passed_by, passes

# -- options ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class CopiedConfig(PolicyGradientConfig):
    """One option more."""

    best_of: int = option(1, "Draws of which the best one is taken.")


class OnlyCopies(PolicyGradient):
    """Hands a copy of its options on, of which nobody reads one."""

    Config: ClassVar[type[Any]] = CopiedConfig

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Any:
        half = attrs.evolve(config, vf_coef=0.5 * config.vf_coef)
        return super().compute_loss_for_module(half, batch, fwd_out)


def test_options_that_are_only_copied_are_not_read() -> None:
    assert failure("every_option_has_an_effect", OnlyCopies).found == "nobody read 'best_of'"


@attrs.frozen(kw_only=True)
class HalfConfig:
    """A default that is not of its type."""

    count: int = option(2.5, "A count.")  # type: ignore[arg-type, assignment]


class OfHalves(PolicyGradient):
    """Has such an option."""


def test_defaults_that_cannot_be_read_back_are_told() -> None:
    OfHalves.Config = HalfConfig
    subject = attrs.evolve(Subject.of(PolicyGradient), kind=OfHalves)
    with pytest.raises(CheckFailed) as raised:
        check_named("options_are_typed_and_documented")(subject)
    assert raised.value.looked_for == "defaults that can be written as TOML and read back"
    assert raised.value.found == ".count expected int, got float 2.5"
    assert raised.value.look_at.startswith("HalfConfig (")


class OtherFeed(PolicyGradient):
    """Means another number by the name of the feed, where it is changed."""

    def feed(self) -> Feed:
        return Stream(steps_per_update=min(self.config.steps_per_update, 1))


def test_options_of_the_feed_are_compared_where_they_are_changed() -> None:
    told = failure("feed_has_the_options", OtherFeed)
    assert told.looked_for == (
        "Stream(steps_per_update=2) for the option steps_per_update = 2 with steps_per_update = 2"
    )
    assert told.found == "steps_per_update=1"
    assert passed_by("feed_has_the_options", OfNoOption) == (
        "its options have none of the feed's names"
    )


@attrs.frozen(kw_only=True)
class NoneConfig:
    """No option."""


class OfNoOption(PolicyGradient):
    """Has no option."""

    Config: ClassVar[type[Any]] = NoneConfig

    def feed(self) -> Feed:
        return Stream()


# -- spaces ----------------------------------------------------------------------------------------


class OneBaseline(PolicyGradient):
    """A mean reward on `self`, which two modules share."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.mean = 0.0

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        self.mean += 0.1 * (float(batch["rewards"].mean()) - self.mean)
        lower = batch["rewards"] - self.mean
        return super().prepare_batch(module, config, batch.with_columns({"rewards": lower}))

    def save_state(self) -> Mapping[str, Any]:
        return {"mean": self.mean}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.mean = state["mean"]


class Forgets(OneBaseline):
    """Loads nothing."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Forget it."""


def test_what_modules_share_is_told() -> None:
    passes("modules_of_several_spaces", PolicyGradient)
    told = failure("modules_of_several_spaces", OneBaseline)
    assert told.looked_for == "a module that learns the same beside another one as alone"
    assert " differs by " in told.found
    assert told.look_at.startswith("OneBaseline (")
    assert told.look_at.endswith("key it by module_id, or keep it in the module")


# -- seeds, instances, processes -------------------------------------------------------------------


class OwnSeed(PolicyGradient):
    """Begins with the same weights always."""

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        torch.manual_seed(0)
        return super().build(observation_space, action_space, config)


class DrawsInFeed(PolicyGradient):
    """Draws where it should only describe."""

    def feed(self) -> Feed:
        numpy.random.random()
        return super().feed()


class DrawsOfNumpy(PolicyGradient):
    """Draws from a generator that no checkpoint holds."""

    def additional_update(self) -> None:
        numpy.random.random()


class DrawsOfTorch(PolicyGradient):
    """Draws from the one that checkpoints hold."""

    def additional_update(self) -> None:
        torch.rand(1)


SEEN: list[float] = []


class OfAllInstances(PolicyGradient):
    """Has a mean of what all instances see."""

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        SEEN.append(float(batch["rewards"].mean()))
        lower = batch["rewards"] - sum(SEEN[-5:]) / 5
        return super().prepare_batch(module, config, batch.with_columns({"rewards": lower}))


@pytest.mark.parametrize(
    ("check", "plugin", "looked_for", "found", "look_at"),
    [
        (
            "seed_is_used",
            OwnSeed,
            "other initial weights for another seed",
            "'actor.0.weight' is the same for two seeds, with 128 values",
            "OwnSeed.build (",
        ),
        (
            "generators_of_others_stay",
            DrawsInFeed,
            "no random numbers drawn in the constructor, feed() and supports()",
            "drawn from or seeded: numpy.random",
            "DrawsInFeed.__init__ (",
        ),
        (
            "generators_of_others_stay",
            DrawsOfNumpy,
            "updates that draw from torch's global generator alone",
            "drawn from or seeded: numpy.random",
            "DrawsOfNumpy.compute_loss_for_module (",
        ),
        (
            "same_seed_same_numbers",
            OfAllInstances,
            "the same weights with and without a second instance",
            "default.",
            "OfAllInstances (",
        ),
        (
            "state_is_complete",
            Forgets,
            "two learners that are the same after ",
            "at once: plugin_states",
            "Forgets.save_state (",
        ),
    ],
)
def test_what_is_not_repeated_is_told(
    check: str, plugin: type[Any], looked_for: str, found: str, look_at: str
) -> None:
    passes(check, PolicyGradient)
    told = failure(check, plugin)
    assert told.looked_for.startswith(looked_for)
    assert told.found.startswith(found)
    assert told.look_at.startswith((look_at, look_at.replace(".__init__", ".feed")))


def test_updates_may_draw_from_the_generator_that_checkpoints_hold() -> None:
    passes("generators_of_others_stay", DrawsOfTorch)
    passes("state_is_complete", OneBaseline)


# -- several learners, agents and policies ---------------------------------------------------------


# -- add-ons ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ShrinkConfig:
    """Options of Shrink."""

    scale: float = option(0.5, "Factor of every gradient; 1 changes nothing.", at_least(0))


class Shrink(AddOn):
    """Multiplies every gradient by a factor."""

    Config: ClassVar[type[Any]] = ShrinkConfig
    neutral: ClassVar[dict[str, Any]] = {"scale": 1.0}

    def factor(self, config: Any) -> float:
        """Of gradients."""
        return float(config.scale)

    def postprocess_gradients(self, gradients: Any, config: Any) -> None:
        for gradient in gradients.values():
            gradient.mul_(self.factor(config))


class NotNeutral(Shrink):
    """Changes a little always."""

    def factor(self, config: Any) -> float:
        return float(config.scale) * (1 + 1e-6)


class Clips(Shrink):
    """Bounds gradients whatever its options."""

    def postprocess_gradients(self, gradients: Any, config: Any) -> None:
        largest = max(float(gradient.abs().max()) for gradient in gradients.values())
        for gradient in gradients.values():
            gradient.mul_(config.scale).clamp_(-max(0.5 * largest, 1.0), max(0.5 * largest, 1.0))


class NeedsAnActor(Shrink):
    """Reads what Q-learning has not."""

    def additional_update(self, module: Any) -> Mapping[str, Any]:
        return {"width": module.actor[0].out_features}


class RefusesAll(Shrink):
    """Refuses whatever there is."""

    def build_extra(self, module: Any) -> Any:
        raise RequestError("it needs another module.", "try: none")


class MovesOthers(Shrink):
    """Shrinks the parameters of others."""

    def additional_update(self, module: Any) -> None:
        with torch.no_grad():
            for param in module.parameters():
                param.mul_(0.999)


@pytest.mark.parametrize(
    ("check", "plugin", "looked_for", "found", "look_at"),
    [
        (
            "neutral_options_change_nothing",
            NotNeutral,
            "the weights of PolicyGradient without it, under {'scale': 1.0}",
            "actor.",
            "NotNeutral.postprocess_gradients (",
        ),
        (
            "neutral_options_change_nothing",
            Clips,
            "the same weights in both orders, under {'scale': 1.0}",
            "",
            "Clips.postprocess_gradients (",
        ),
        (
            "works_or_refuses_with_every_algorithm",
            NeedsAnActor,
            "that it works with QLearning, or raises rlplug.RequestError in build_extra",
            "AttributeError: ",
            "tests/testing/test_checks_repeat.py:",
        ),
        (
            "works_or_refuses_with_every_algorithm",
            RefusesAll,
            "an algorithm of the kit that it works with",
            "PolicyGradient: it needs another module.; QLearning: it needs another module.; ",
            "RefusesAll (",
        ),
        (
            "hooks_move_no_parameter",
            MovesOthers,
            "additional_update leaves the parameters of others alone",
            "it moved actor.0.weight: ",
            "MovesOthers.additional_update (",
        ),
    ],
)
def test_add_ons_that_do_more_than_they_say_are_told(
    check: str, plugin: type[Any], looked_for: str, found: str, look_at: str
) -> None:
    told = failure(check, plugin)
    assert told.looked_for == looked_for
    assert told.found.startswith(found)
    assert told.look_at.startswith(look_at)


class Silent(AddOn):
    """Claims nothing."""


def test_add_ons_that_claim_nothing_are_passed_by() -> None:
    for check in ("neutral_options_change_nothing", "neutral_options_change_nothing"):
        passes(check, Shrink)
        assert passed_by(check, Silent) == (
            "it claims no options that change nothing: `neutral = {…}` would"
        )
    passes("another_addon_may_take_part", Shrink)
    passes("another_addon_may_take_part", PolicyGradient)
