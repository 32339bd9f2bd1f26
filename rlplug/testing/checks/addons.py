"""Checks of how add-ons and algorithms get along."""

from __future__ import annotations

from typing import Any

from rlplug.errors import RlplugError
from rlplug.registry import Participant
from rlplug.testing.algorithms import ArmMeans, PolicyGradient, QLearning
from rlplug.testing.bench import Bench, bench_of, host_of
from rlplug.testing.bystanders import Bystander, Doubler
from rlplug.testing.comparing import first_difference
from rlplug.testing.report import CheckFailed, DoesNotApply, as_failure, place
from rlplug.testing.subject import Subject

__all__ = [
    "check_another_addon_may_take_part",
    "check_neutral_options_change_nothing",
    "check_order_makes_no_difference_when_neutral",
    "check_works_or_refuses_with_every_algorithm",
    "check_works_with_an_addon_that_changes_nothing",
]

HOSTS = (PolicyGradient, QLearning, ArmMeans)


def check_works_with_an_addon_that_changes_nothing(subject: Subject) -> None:
    """With an add-on that implements every hook and changes nothing, all numbers are the same."""
    alone, beside = bench_of(subject), bench_of(subject, beside=[_fresh(Bystander)])
    for bench in (alone, beside):
        bench.live(6)
    difference = first_difference(alone.weights(), beside.weights())
    if difference is not None:
        raise CheckFailed(
            "the same weights with and without an add-on that changes nothing",
            difference,
            place(subject.kind),
        )


def check_another_addon_may_take_part(subject: Subject) -> None:
    """Before or after another add-on, it works; one that changes nothing makes no difference."""
    alone = _lived(bench_of(subject))
    watched = {
        "after it": _lived(bench_of(subject, before=[_fresh(Bystander)])),
        "before it": _lived(bench_of(subject, beside=[_fresh(Bystander)])),
    }
    for order, weights in watched.items():
        difference = first_difference(alone, weights)
        if difference is not None:
            raise CheckFailed(
                "the same weights whether or not another add-on watches",
                f"{order}: {difference}",
                place(subject.kind),
            )
    _lived(bench_of(subject, before=[_fresh(Doubler)]))
    _lived(bench_of(subject, beside=[_fresh(Doubler)]))


def check_neutral_options_change_nothing(subject: Subject) -> None:
    """With the options by which it claims to change nothing, every algorithm learns the same."""
    config = subject.config(**_claimed(subject))
    for host in HOSTS:
        case = {"default": subject.case()}
        without = _lived(Bench(host_of(host), [], case))
        beside = _lived(bench_of(subject, config=config, host=host_of(host)))
        difference = first_difference(without["default"], beside["default"])
        if difference is not None:
            raise CheckFailed(
                f"the weights of {host.__name__} without it, under {dict(_claimed(subject))}",
                difference,
                place(subject.kind, "compute_loss_for_module", "postprocess_gradients"),
            )


def check_order_makes_no_difference_when_neutral(subject: Subject) -> None:
    """With neutral options it may stand before or after an add-on that changes gradients."""
    config = subject.config(**_claimed(subject))
    before = _lived(bench_of(subject, config=config, before=[_fresh(Doubler)]))
    after = _lived(bench_of(subject, config=config, beside=[_fresh(Doubler)]))
    difference = first_difference(before["default"], after["default"])
    if difference is not None:
        raise CheckFailed(
            f"the same weights in both orders, under {dict(_claimed(subject))}",
            difference,
            place(subject.kind, "postprocess_gradients"),
        )


def check_works_or_refuses_with_every_algorithm(subject: Subject) -> None:
    """With gradients, targets or closed forms it works, or says in words why it cannot."""
    refused = []
    for host in HOSTS:
        try:
            bench = bench_of(subject, host=host_of(host))
        except RlplugError as error:
            refused.append(f"{host.__name__}: {error.message}")
            continue
        try:
            bench.live(4)
        except Exception as error:
            failure = as_failure(error, "", subject.kind)
            raise CheckFailed(
                f"that it works with {host.__name__}, or raises rlplug.RequestError in build_extra",
                failure.found,
                failure.look_at,
            ) from error
    if len(refused) == len(HOSTS):
        raise CheckFailed(
            "an algorithm of the kit that it works with", "; ".join(refused), place(subject.kind)
        )


def _claimed(subject: Subject) -> Any:
    if subject.neutral is None:
        raise DoesNotApply("it claims no options that change nothing: `neutral = {…}` would")
    return subject.neutral


def _fresh(kind: type[Any]) -> Participant:
    return host_of(kind)


def _lived(bench: Bench) -> dict[str, Any]:
    bench.live(6)
    return bench.weights()
