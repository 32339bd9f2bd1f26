"""Checks of add-ons beside algorithms and other add-ons, and of what they do."""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.errors import RlplugError
from rlplug.hooks import hookimpl
from rlplug.plugin import AddOn, Module
from rlplug.testing.algorithms import (
    ArmMeans,
    PolicyGradient,
    QLearning,
    ReplayQLearning,
    RolloutGradient,
)
from rlplug.testing.cases import Case, act_input
from rlplug.testing.check import check
from rlplug.testing.comparison import cloned, first_difference, to_array
from rlplug.testing.harness import Harness, make_harness, participant_of
from rlplug.testing.probes import reward_by_action
from rlplug.testing.report import DoesNotApply, as_failure
from rlplug.testing.subject import Subject

ALGORITHMS = (PolicyGradient, QLearning, ArmMeans, RolloutGradient, ReplayQLearning)
FAMILIAR = 150
"""Updates after which observations are no longer new."""


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
        gradients.update(dict(gradients))

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
        gradients.update({name: gradient * 2.0 for name, gradient in gradients.items()})


@check()
def another_addon_may_take_part(subject: Subject) -> None:
    """Before or after it, an add-on that implements all hooks and does nothing changes nothing."""
    alone = _trained(make_harness(subject))
    idle, doubling = participant_of(NoOpAddOn), participant_of(DoubleGradients)
    for before, after in (([idle], []), ([], [idle])):
        beside = _trained(make_harness(subject, before=before, after=after))
        if found := first_difference(alone, beside):
            looked_for = "the same weights with an add-on that does nothing as without"
            raise subject.failure(looked_for, f"{'before' if before else 'after'} it: {found}")
    if subject.is_addon:
        _trained(make_harness(subject, before=[doubling]))
        _trained(make_harness(subject, after=[doubling]))


def _trained(harness: Harness) -> dict[str, Any]:
    harness.train(6)
    return harness.weights()


@check("addon")
def neutral_options_change_nothing(subject: Subject) -> None:
    """With its neutral options, algorithms learn the same without it, in whichever order."""
    if subject.neutral is None:
        raise DoesNotApply("it claims no options that change nothing: `neutral = {…}` would")
    config = subject.config(**subject.neutral)
    pairs = {
        f"with {one.__name__}, and without it": (
            Harness(participant_of(one), [], {"default": subject.case()}),
            make_harness(subject, config=config, algorithm=one),
        )
        for one in ALGORITHMS
    }
    others = [participant_of(DoubleGradients)]
    pairs["before and after an add-on that changes gradients"] = (
        make_harness(subject, config=config, before=others),
        make_harness(subject, config=config, after=others),
    )
    for what, harnesses in pairs.items():
        one, other = (_trained(harness)["default"] for harness in harnesses)
        if found := first_difference(one, other):
            looked_for = f"the same weights {what}, under {dict(subject.neutral)}"
            hooks = ("compute_loss_for_module", "postprocess_gradients")
            raise subject.failure(looked_for, found, "", *hooks)


@check("addon")
def works_or_refuses_with_every_algorithm(subject: Subject) -> None:
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
            looked_for = f"that it works with {algorithm.__name__}, or raises rlplug.RequestError"
            raise as_failure(error, f"{looked_for} in build_extra", subject.kind) from error
    if len(refused) == len(ALGORITHMS):
        looked_for = "an algorithm of the kit that it works with"
        raise subject.failure(looked_for, "; ".join(refused))


@check("addon")
def the_algorithm_still_learns(subject: Subject) -> None:
    """Beside it, a policy gradient learns which of two actions is rewarded."""
    case = Case(name="reward_by_action", make=reward_by_action, one_step=True)
    harness = make_harness(subject, case)
    harness.train(250)
    for name, one in (("the module", harness.module), ("what is evaluated", harness.evaluated)):
        chosen = to_array(one.forward_inference(act_input(one, case, 4, at=0)).actions)
        if not bool((chosen == 1).all()):
            raise subject.failure(
                f"action 1, which is rewarded, chosen by {name} after 250 updates",
                f"action {chosen.tolist()[0]}",
                "",
                *("postprocess_gradients", "compute_loss_for_module", "inference_module"),
            )


@check("addon")
def bonus_is_larger_for_what_is_new(subject: Subject) -> None:
    """A bonus that it adds to rewards falls for what is seen again and again."""
    harness = make_harness(subject)
    batch = harness.batch()
    mixed = _with_two_places(batch)
    familiar = torch.arange(batch.rows) % 2 == 0
    if not bool(_bonus(harness, mixed).any()):
        raise DoesNotApply("it changes no rewards")
    if not any(one.plugin == subject.found.name for one in harness.learner.optimizers):
        raise DoesNotApply("it learns nothing of its own")
    early = _bonus(harness, mixed)
    only_familiar = Batch({name: mixed[name][familiar] for name in mixed})
    for _ in range(FAMILIAR):
        harness.update(only_familiar)
    late = _bonus(harness, mixed)
    before, after = (float(one[familiar].mean() - one[~familiar].mean()) for one in (early, late))
    if not after < min(before, 0.0) - 1e-6:
        raise subject.failure(
            f"a smaller bonus for what was seen in {FAMILIAR} updates than for what is new",
            f"one that is larger by {after:.3g}, {before:.3g} before",
            "the signs of the bonus and of the loss, and which network is trained",
            *("prepare_batch", "compute_loss_for_module"),
        )
    shifted = mixed.with_columns({"rewards": mixed["rewards"] + 5.0})
    if not torch.allclose(_bonus(harness, shifted), late, 1e-3, 1e-4):
        looked_for, found = "a bonus that is added to rewards", "another one for higher rewards"
        raise subject.failure(looked_for, found, 'batch["rewards"] + bonus', "prepare_batch")


def _with_two_places(batch: Batch) -> Batch:
    """The batch with one place observed in even rows and next to them, another one in odd rows."""
    random = torch.Generator().manual_seed(4)
    columns: dict[str, Any] = {}
    for name in ("observations", "next_observations"):
        if name in batch:
            rows = torch.full_like(batch[name], 0.7)
            rows[1::2] = -0.7
            columns[name] = rows + 0.02 * torch.randn(rows.shape, generator=random)
    return batch.with_columns(columns)


def _bonus(harness: Harness, batch: Batch) -> Tensor:
    """What is added to the rewards of the batch."""
    with harness.undone():
        prepared = harness.prepare(batch)
    bonus: Tensor = prepared["rewards"].double() - batch["rewards"].double()
    return bonus.float()


@check("addon")
def losses_have_a_lower_bound(subject: Subject) -> None:
    """Updates on one batch do not drive its loss to minus infinity, nor its weights away."""
    harness = make_harness(subject)
    own = subject.found.name
    if not harness.parameters(own):
        raise DoesNotApply("it keeps no parameters of its own")
    batch = harness.batch()
    losses: list[float] = []
    for _ in range(3 * FAMILIAR):
        metrics = harness.update(batch)["default"]
        names = [name for name in metrics if "loss" in name and own in name]
        losses += [float(metrics[name]) for name in names[:1]]
    # What is not a number is not above the bound, either.
    if losses and not losses[-1] >= -1.0 - 20 * abs(losses[0]):
        found = f"{losses[0]:.3g} at first, {losses[-1]:.3g} after many updates on one batch"
        looked_for = "a loss that has a lower bound"
        raise subject.failure(looked_for, found, "its sign", "compute_loss_for_module")


@check("addon")
def evaluated_module_follows_the_trained_one(subject: Subject) -> None:
    """`inference_module` gives weights between those that the trained module has had."""
    harness = make_harness(subject)
    if harness.evaluated is harness.module:
        raise DoesNotApply("it evaluates the trained module itself")
    had: list[dict[str, Tensor]] = []
    evaluated: list[dict[str, Tensor]] = []
    found = ""
    for update in range(40):
        module, trained = harness.evaluated, dict(harness.module.named_parameters())
        had.append(cloned(trained))
        weights = dict(module.named_parameters())
        evaluated.append(cloned(weights))
        addresses = {param.data_ptr() for param in trained.values()}
        if any(param.data_ptr() in addresses for param in weights.values()):
            found = "weights that are the very tensors of the trained module"
        module.forward_inference(act_input(module, harness.case, 4))
        if first_difference(had[-1], cloned(trained)):
            found = "the trained module moved in evaluation"
        for name in weights.keys() & trained.keys():
            several = torch.stack([one[name] for one in had])
            low, high = several.amin(0), several.amax(0)
            margin = 1e-5 + 1e-3 * (high - low)
            if bool(((weights[name] < low - margin) | (weights[name] > high + margin)).any()):
                found = found or f"{name} lies beyond them after {update} updates"
        harness.train(1)
    if not first_difference(evaluated[0], evaluated[-1]):
        found = found or "they are the same after 40 updates"
    if found:
        raise subject.failure(
            "own weights to evaluate, between the lowest and the highest that were trained",
            found,
            "average = decay * average + (1 - decay) * weights, of a copy of the module",
            *("inference_module", "additional_update", "build_extra"),
        )
