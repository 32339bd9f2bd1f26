"""Checks of add-ons beside algorithms and other add-ons."""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping
from typing import Any

from torch import Tensor, nn

from rlplug.errors import RlplugError
from rlplug.hooks import hookimpl
from rlplug.plugin import AddOn, Module
from rlplug.testing.algorithms import ArmMeans, PolicyGradient, QLearning
from rlplug.testing.algorithms.other_feeds import ReplayQLearning, RolloutGradient
from rlplug.testing.comparison import require_equal
from rlplug.testing.harness import Harness, make_harness, participant_of
from rlplug.testing.report import CheckFailed, DoesNotApply, as_failure, location
from rlplug.testing.subject import Subject

__all__ = [
    "check_another_addon_may_take_part",
    "check_neutral_options_change_nothing",
    "check_order_makes_no_difference_when_neutral",
    "check_works_or_refuses_with_every_algorithm",
    "check_works_with_an_addon_that_changes_nothing",
]

ALGORITHMS = (PolicyGradient, QLearning, ArmMeans, RolloutGradient, ReplayQLearning)


class NoOpAddOn(AddOn):
    """Implements every hook and changes nothing."""

    @hookimpl(wrapper=True)
    def build(self) -> Generator[None, Module, Module]:
        """Return the module unchanged."""
        return (yield)

    def build_extra(self) -> None:
        """No extra."""

    def prepare_batch(self) -> Mapping[str, Tensor]:
        """No columns."""
        return {}

    def compute_loss_for_module(self) -> None:
        """No term."""

    def postprocess_gradients(self, gradients: MutableMapping[str, Tensor]) -> None:
        """Assign each gradient to itself."""
        for name, gradient in list(gradients.items()):
            gradients[name] = gradient

    def additional_update(self, extra: nn.Module | None) -> Mapping[str, Any]:
        """No metrics."""
        return {}

    def save_state(self) -> Mapping[str, Any]:
        """No state."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """No state."""

    def update_finished(self) -> None:
        """Ignore the event."""


class DoubleGradients(AddOn):
    """Doubles every gradient."""

    def postprocess_gradients(self, gradients: MutableMapping[str, Tensor]) -> None:
        """Multiply by 2, out of place."""
        for name, gradient in list(gradients.items()):
            gradients[name] = gradient * 2.0


def check_works_with_an_addon_that_changes_nothing(subject: Subject) -> None:
    """An add-on that implements every hook and changes nothing leaves all numbers the same."""
    require_equal(
        _trained(make_harness(subject)),
        _trained(make_harness(subject, after=[participant_of(NoOpAddOn)])),
        "the same weights with and without an add-on that changes nothing",
        location(subject.kind),
    )


def check_another_addon_may_take_part(subject: Subject) -> None:
    """It works before and after another add-on; one that changes nothing makes no difference."""
    alone = _trained(make_harness(subject))
    with_another = {
        "after it": _trained(make_harness(subject, before=[participant_of(NoOpAddOn)])),
        "before it": _trained(make_harness(subject, after=[participant_of(NoOpAddOn)])),
    }
    for order, weights in with_another.items():
        require_equal(
            alone,
            weights,
            "the same weights with and without an add-on that changes nothing",
            location(subject.kind),
            found=f"{order}: ",
        )
    _trained(make_harness(subject, before=[participant_of(DoubleGradients)]))
    _trained(make_harness(subject, after=[participant_of(DoubleGradients)]))


def check_neutral_options_change_nothing(subject: Subject) -> None:
    """With its neutral options, every algorithm learns the same weights as without it."""
    config = subject.config(**_neutral(subject))
    for algorithm in ALGORITHMS:
        without = Harness(participant_of(algorithm), [], {"default": subject.case()})
        beside = make_harness(subject, config=config, algorithm=algorithm)
        require_equal(
            _trained(without)["default"],
            _trained(beside)["default"],
            f"the weights of {algorithm.__name__} without it, under {dict(_neutral(subject))}",
            location(subject.kind, "compute_loss_for_module", "postprocess_gradients"),
        )


def check_order_makes_no_difference_when_neutral(subject: Subject) -> None:
    """With its neutral options it may come before or after an add-on that changes gradients."""
    config = subject.config(**_neutral(subject))
    last = make_harness(subject, config=config, before=[participant_of(DoubleGradients)])
    first = make_harness(subject, config=config, after=[participant_of(DoubleGradients)])
    require_equal(
        _trained(last)["default"],
        _trained(first)["default"],
        f"the same weights in both orders, under {dict(_neutral(subject))}",
        location(subject.kind, "postprocess_gradients"),
    )


def check_works_or_refuses_with_every_algorithm(subject: Subject) -> None:
    """It works with policy gradients, Q-learning and closed forms, on every feed, or refuses."""
    refused = []
    for algorithm in ALGORITHMS:
        try:
            harness = make_harness(subject, algorithm=algorithm)
        except RlplugError as error:
            refused.append(f"{algorithm.__name__}: {error.message}")
            continue
        try:
            harness.train(4)
        except Exception as error:
            failure = as_failure(error, "", subject.kind)
            raise CheckFailed(
                f"that it works with {algorithm.__name__}, "
                "or raises rlplug.RequestError in build_extra",
                failure.found,
                failure.look_at,
            ) from error
    if len(refused) == len(ALGORITHMS):
        raise CheckFailed(
            "an algorithm of the kit that it works with", "; ".join(refused), location(subject.kind)
        )


def _neutral(subject: Subject) -> Mapping[str, Any]:
    if subject.neutral is None:
        raise DoesNotApply("it claims no options that change nothing: `neutral = {…}` would")
    return subject.neutral


def _trained(harness: Harness) -> dict[str, Any]:
    harness.train(6)
    return harness.weights()
