"""Add-ons under test: one that passes everything, and single bugs planted in it."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import nn

from rlplug import AddOn, RequestError, hookimpl, option
from rlplug.config import at_least
from rlplug.testing import Subject, checks_for
from rlplug.testing.checks import check_named
from rlplug.testing.conformance import mutant_test


@attrs.frozen(kw_only=True)
class ShrinkConfig:
    """Options of Shrink."""

    scale: float = option(0.5, "Factor of every gradient; 1 changes nothing.", at_least(0))


class Shrink(AddOn):
    """Multiplies every gradient by a factor."""

    Config: ClassVar[type[Any]] = ShrinkConfig
    neutral: ClassVar[dict[str, Any]] = {"scale": 1.0}

    def postprocess_gradients(self, gradients, config):
        for gradient in gradients.values():
            gradient.mul_(config.scale)


@attrs.frozen(kw_only=True)
class CuriosityConfig:
    """Options of Curiosity."""

    learning_rate: float = option(0.01, "Step size of the predictor.", at_least(0))
    scale: float = option(0.1, "Weight of the bonus; 0 adds none.", at_least(0))


class Curiosity(AddOn):
    """Adds to the reward how badly a small network foretells the next observation."""

    Config: ClassVar[type[Any]] = CuriosityConfig
    neutral: ClassVar[dict[str, Any]] = {"scale": 0.0}

    def build_extra(self, observation_space):
        width = observation_space.shape[0]
        return nn.Linear(width, width)

    def configure_optimizers_for_module(self, extra, config):
        return torch.optim.SGD(extra.parameters(), lr=config.learning_rate)

    def error(self, extra, batch):
        if "next_observations" not in batch:
            extended = batch.extended()
            here, there = extended.split(extended["observations"].to(extra.weight))
        else:
            here, there = (
                batch[name].to(extra.weight) for name in ("observations", "next_observations")
            )
        return ((extra(here) - there) ** 2).mean(1)

    def prepare_batch(self, extra, config, batch):
        bonus = config.scale * self.error(extra, batch)
        return {"rewards": batch["rewards"] + bonus.to(batch["rewards"].dtype)}

    def compute_loss_for_module(self, extra, batch):
        return self.error(extra, batch).mean()


SHRINK = {
    *("bonus_is_larger_for_what_is_new", "every_parameter_learns", "is_found_once"),
    *("losses_have_a_lower_bound", "schedules_are_followed"),
}


@pytest.mark.parametrize(
    ("kind", "passed_by"),
    [
        (Shrink, SHRINK),
        pytest.param(
            Curiosity, {"is_found_once", "schedules_are_followed"}, marks=pytest.mark.long
        ),
    ],
)
def test_an_add_on_passes_all_that_applies(kind: type[Any], passed_by: set[str]) -> None:
    subject = Subject.of(kind)
    outcomes = [check.outcome(subject) for check in checks_for(subject)]
    assert {one.check: one.text for one in outcomes if one.status == "failed"} == {}
    unchecked = {one.check for one in outcomes if one.status == "does not apply"}
    assert (
        unchecked
        - {"learns_on_a_gpu", "importing_is_quiet", "another_process_gives_the_same_numbers"}
        - {"targets_follow", "evaluated_module_follows_the_trained_one", "arrays_equal_torch"}
        == passed_by
    )


class NotNeutral(Shrink):
    def postprocess_gradients(self, gradients, config):
        for gradient in gradients.values():
            gradient.mul_(config.scale * (1 + 1e-6))


class OrderMatters(Shrink):
    """Bounds gradients whatever its options: harmless alone, not after one that doubles."""

    def postprocess_gradients(self, gradients, config):
        largest = max(float(gradient.abs().max()) for gradient in gradients.values())
        for gradient in gradients.values():
            gradient.mul_(config.scale).clamp_(-max(0.5 * largest, 1.0), max(0.5 * largest, 1.0))


class DropsGradients(Shrink):
    def postprocess_gradients(self, gradients, config):
        gradients.pop(next(iter(gradients)))
        super().postprocess_gradients(gradients, config)


class MovesOthers(Shrink):
    def additional_update(self, module):
        with torch.no_grad():
            for param in module.parameters():
                param.mul_(0.999)


class NeedsAnActor(Shrink):
    def additional_update(self, module):
        return {"width": module.actor[0].out_features}


class SaysThatItNeedsAnActor(Shrink):
    def build_extra(self, module):
        if not hasattr(module, "actor"):
            raise RequestError("it needs an actor, this module has none.", "try: --algo ppo")


class Forgetful(Shrink):
    def __init__(self, config=None):
        super().__init__(config)
        self.steps = 0

    def postprocess_gradients(self, gradients, config):
        self.steps += 1
        for gradient in gradients.values():
            gradient.mul_(config.scale + 1 / self.steps)


class Crowded(Shrink):
    """Two instances count together."""

    steps: ClassVar[list[int]] = []

    def postprocess_gradients(self, gradients, config):
        self.steps.append(1)
        for gradient in gradients.values():
            gradient.mul_(config.scale + 1 / len(self.steps))


class Replaces(AddOn):
    def build(self, observation_space):
        return nn.Linear(1, 1)


class ScaleUnused(Shrink):
    def postprocess_gradients(self, gradients):
        for gradient in gradients.values():
            gradient.mul_(0.5)


class NoOptimizer(Curiosity):
    @hookimpl
    def configure_optimizers_for_module(self):
        return None


class UnlearnsWhatItSaw(Curiosity):
    def compute_loss_for_module(self, extra, batch):
        return -self.error(extra, batch).mean()


class PenalizesTheNew(Curiosity):
    def prepare_batch(self, extra, config, batch):
        bonus = config.scale * self.error(extra, batch)
        return {"rewards": batch["rewards"] - bonus.to(batch["rewards"].dtype)}


class NeedsNextObservations(Curiosity):
    def error(self, extra, batch):
        there = batch["next_observations"].to(extra.weight)
        return ((extra(there) - there) ** 2).mean(1)


def test_an_add_on_that_claims_no_neutral_options_has_none() -> None:
    class Silent(AddOn):
        """Does nothing."""

    assert Silent.neutral is None
    assert Subject.of(Silent).neutral is None
    assert Subject.of(Shrink).neutral == {"scale": 1.0}


MUTANTS = [
    (UnlearnsWhatItSaw, "bonus_is_larger_for_what_is_new"),
    (PenalizesTheNew, "bonus_is_larger_for_what_is_new"),
    (NeedsNextObservations, "works_or_refuses_with_every_algorithm"),
    (NotNeutral, "neutral_options_change_nothing"),
    (OrderMatters, "neutral_options_change_nothing"),
    (DropsGradients, "works_or_refuses_with_every_algorithm"),
    (MovesOthers, "hooks_move_no_parameter"),
    (NeedsAnActor, "works_or_refuses_with_every_algorithm"),
    (Forgetful, "state_is_complete"),
    (Crowded, "same_seed_same_numbers"),
    (Replaces, "hooks_are_well_formed"),
    (ScaleUnused, "every_option_has_an_effect"),
    (NoOptimizer, "every_parameter_learns"),
]


test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(MUTANTS)


def test_a_refusal_in_words_is_no_failure() -> None:
    check_named("works_or_refuses_with_every_algorithm")(Subject.of(SaysThatItNeedsAnActor))
