"""Checks of options, spaces, instances, seeds and add-ons: what they say of faulty plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import pytest
import torch

from rlplug import AddOn, Batch, option
from rlplug.config import at_least
from rlplug.feeds import Feed, Stream
from rlplug.testing import CheckFailed, Subject
from rlplug.testing.algorithms import PolicyGradient
from rlplug.testing.checks import check_named
from tests.faulty import failure, passed_by, passes

# -- options ---------------------------------------------------------------------------------------


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


# -- seeds, instances, processes -------------------------------------------------------------------


class DrawsOfTorch(PolicyGradient):
    """Draws from the one that checkpoints hold."""

    def additional_update(self) -> None:
        torch.rand(1)


SEEN: list[float] = []


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
