"""Checks of add-ons beside algorithms and other add-ons, and of what they do."""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

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
from rlplug.testing.probes import reward_by_action
from rlplug.testing.report import DoesNotApply, as_failure
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial

ALGORITHMS = (PolicyGradient, QLearning, ArmMeans, RolloutGradient, ReplayQLearning)
FAMILIAR = 150
"""Updates after which observations are no longer new."""
_CHANGING = ("compute_loss_for_module", "postprocess_gradients", "prepare_batch")


class NoOpAddOn(AddOn):
    """Implements hooks of every kind and changes nothing."""

    @hookimpl(wrapper=True)
    def build(self) -> Generator[None, Module, Module]:
        """Return the module unchanged."""
        return (yield)

    def prepare_batch(self) -> Mapping[str, Tensor]:
        """No columns."""
        return {}

    def postprocess_gradients(self, gradients: MutableMapping[str, Tensor]) -> None:
        """Assign each gradient to itself."""
        gradients.update(dict(gradients))

    def additional_update(self) -> None:
        """No metrics."""

    def save_state(self) -> Mapping[str, Any]:
        """No state."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """No state."""


class DoubleGradients(AddOn):
    """Doubles every gradient."""

    def postprocess_gradients(self, gradients: MutableMapping[str, Tensor]) -> None:
        """Multiply by 2, out of place."""
        gradients.update({name: gradient * 2.0 for name, gradient in gradients.items()})


@check()
def another_addon_may_take_part(subject: Subject) -> None:
    """An add-on before or after it that does nothing changes nothing; one that does, may."""
    idle, doubling = (Subject.of(kind).participant() for kind in (NoOpAddOn, DoubleGradients))
    alone = _trained(subject)
    for place in ("before", "after"):
        if found := first_difference(alone, _trained(subject, **{place: [idle]})):
            looked_for = "the same weights with an add-on that does nothing as without"
            raise subject.failure(looked_for, f"{place} it: {found}")
    if not subject.is_addon or subject.neutral is None:
        return
    pair = [_trained(subject, subject.neutral, **{p: [doubling]}) for p in ("before", "after")]
    if found := first_difference(*pair):
        looked_for = "with neutral options, the same weights before and after another add-on"
        raise subject.failure(looked_for, found, "", *_CHANGING)


def _trained(subject: Subject, setting: Any = None, case: Any = None, **arguments: Any) -> Any:
    """The weights of the module after six updates."""
    return Trial(subject, case, setting, updates=6, **arguments).weights()["default"]


@check("addon")
def works_or_refuses_with_every_algorithm(subject: Subject) -> None:
    """It works with policy gradients, Q-learning and closed forms, on every feed, or refuses.

    With its `neutral` options, they learn the same as without it.
    """
    refusals = []
    for algorithm in ALGORITHMS:
        try:
            trial = Trial(subject, algorithm=algorithm)
        except RlplugError as error:
            refusals.append(f"{algorithm.__name__}: {error.message}")
            continue
        try:
            trial.train(4)
        except Exception as error:
            looked_for = f"that it works with {algorithm.__name__}, or raises rlplug.RequestError"
            raise as_failure(error, f"{looked_for} in build_extra", subject.kind) from error
        if subject.neutral is None:
            continue
        alone = _trained(Subject.of(algorithm), None, trial.case, seed=trial.seed)
        beside = _trained(subject, subject.neutral, algorithm=algorithm)
        if found := first_difference(alone, beside):
            looked_for = f"the same weights as {algorithm.__name__} alone, under {subject.neutral}"
            raise subject.failure(looked_for, found, "", *_CHANGING)
    if len(refusals) == len(ALGORITHMS):
        looked_for = "an algorithm of the kit that it works with"
        raise subject.failure(looked_for, "; ".join(refusals))


@check("addon")
def the_algorithm_still_learns(subject: Subject) -> None:
    """Beside it, a policy gradient learns which of two actions is rewarded."""
    case = Case(name="reward_by_action", make=reward_by_action, one_step=True)
    trial = Trial(subject, case, updates=250)
    for name, one in (("the module", trial.module), ("what is evaluated", trial.evaluated)):
        chosen = to_array(one.forward_inference(act_input(one, case, 4, at=0)).actions)
        if not bool((chosen == 1).all()):
            raise trial.failure(
                f"action 1, which is rewarded, chosen by {name} after 250 updates",
                f"action {chosen.tolist()[0]}",
                "",
                *("postprocess_gradients", "compute_loss_for_module", "inference_module"),
            )


@check("addon")
def bonus_is_larger_for_what_is_new(subject: Subject) -> None:
    """A bonus that it adds to rewards falls for what is seen again and again."""
    trial = Trial(subject)
    mixed = _with_two_places(trial.batch)
    familiar = torch.arange(mixed.rows) % 2 == 0
    early = _bonus(trial, mixed)
    if not bool(early.any()):
        raise DoesNotApply("it changes no rewards")
    if not any(one.plugin == subject.found.name for one in trial.learner.optimizers):
        raise DoesNotApply("it learns nothing of its own")
    for _ in range(FAMILIAR):
        trial.update(Batch({name: mixed[name][familiar] for name in mixed}))
    late = _bonus(trial, mixed)
    before, after = (float(one[familiar].mean() - one[~familiar].mean()) for one in (early, late))
    if not after < min(before, 0.0) - 1e-6:
        raise trial.failure(
            f"a smaller bonus for what was seen in {FAMILIAR} updates than for what is new",
            f"one that is larger by {after:.3g}, {before:.3g} before",
            "the signs of the bonus and of the loss, and which network is trained",
            *("prepare_batch", "compute_loss_for_module"),
        )
    shifted = mixed.with_columns({"rewards": mixed["rewards"] + 5.0})
    if not torch.allclose(_bonus(trial, shifted), late, 1e-3, 1e-4):
        looked_for, found = "a bonus that is added to rewards", "another one for higher rewards"
        raise trial.failure(looked_for, found, 'batch["rewards"] + bonus', "prepare_batch")


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


def _bonus(trial: Trial, batch: Batch) -> Tensor:
    """What is added to the rewards of the batch."""
    bonus: Tensor = trial.prepare(batch)["rewards"].double() - batch["rewards"].double()
    return bonus.float()


@check("addon")
def evaluated_module_follows_the_trained_one(subject: Subject) -> None:
    """`inference_module` gives weights between those that the trained module has had."""
    trial = Trial(subject)
    if trial.evaluated is trial.module:
        raise DoesNotApply("it evaluates the trained module itself")
    had: list[dict[str, Tensor]] = []
    start = cloned(dict(trial.evaluated.named_parameters()))
    for _ in range(40):
        had.append(cloned(dict(trial.module.named_parameters())))
        trial.train(1)
    trained = dict(trial.module.named_parameters())
    had.append(cloned(trained))
    weights = dict(trial.evaluated.named_parameters())
    found = "" if first_difference(start, weights) else "they are the same after 40 updates"
    for name in weights.keys() & trained.keys():
        several = torch.stack([one[name] for one in had])
        low, high = several.amin(0), several.amax(0)
        margin = 1e-5 + 1e-3 * (high - low)
        if bool(((weights[name] < low - margin) | (weights[name] > high + margin)).any()):
            found = f"{name} lies beyond them after 40 updates"
        if weights[name].data_ptr() == trained[name].data_ptr():
            found = "weights that are the very tensors of the trained module"
    if found:
        raise trial.failure(
            "own weights to evaluate, between the lowest and the highest that were trained",
            found,
            "average = decay * average + (1 - decay) * weights, of a copy of the module",
            *("inference_module", "additional_update", "build_extra"),
        )
