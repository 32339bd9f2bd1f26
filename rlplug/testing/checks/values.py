"""Checks of losses of action values: quantiles, conservative penalties, kinds of errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.nn import QuantileHead
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, named, trials

__all__ = [
    "check_conservative_penalty_lowers_other_actions",
    "check_larger_errors_pull_more",
    "check_loss_is_the_one_that_is_named",
    "check_quantiles_follow_their_fractions",
    "gradients_of_outputs",
]

_FAR = 1e3
"""Of rewards: further from what is predicted than any loss takes for near."""
_NEAR = torch.linspace(-4.0, 4.0, 17).tolist()
"""Rewards around what is predicted: errors below and above the threshold of a Huber loss."""


def check_quantiles_follow_their_fractions(subject: Subject) -> None:
    """The q-th output of a `QuantileHead` is pulled up q times as much as it is pulled down."""
    applies = False
    for trial in trials(subject):
        heads = [one for one in trial.harness.module.modules() if isinstance(one, QuantileHead)]
        if not heads:
            continue
        fractions = heads[0].fractions.double().cpu()
        for sign, wanted in ((1.0, fractions), (-1.0, 1 - fractions)):
            rewards = torch.full_like(trial.batch["rewards"], sign * _FAR)
            pulls = _pull_per_quantile(trial, trial.batch.with_columns({"rewards": rewards}))
            if pulls is None or len(pulls) != len(fractions):
                continue
            applies = True
            if not torch.allclose(pulls / pulls.sum(), wanted / wanted.sum(), 0.02, 1e-6):
                raise CheckFailed(
                    f"gradients in proportion to {'q' if sign > 0 else '1 - q'} for the outputs of "
                    f"quantiles q, where targets are far {'above' if sign > 0 else 'below'} them"
                    + named(trial.setting),
                    f"{_ratio(pulls)} times as much for the highest q as for the lowest, not "
                    f"{_ratio(wanted)} times",
                    location(subject.kind, "compute_loss_for_module")
                    + ": the sign of errors = target - quantile, and |q - (error < 0)|",
                )
    if not applies:
        raise DoesNotApply("it has no rlplug.nn.QuantileHead, or gives no output of it")


def check_conservative_penalty_lowers_other_actions(subject: Subject) -> None:
    """With `cql_alpha`, values of actions in the batch are raised, those of others are lowered."""
    applies = False
    for trial in _with_option(subject, "cql_alpha", 100.0):
        prepared = trial.prepare(trial.batch)
        count = getattr(trial.case.action_space, "n", 0)
        first = int(getattr(trial.case.action_space, "start", 0))
        taken = torch.nn.functional.one_hot(prepared["actions"].long() - first, int(count)).bool()
        allowed = prepared["action_mask"] != 0 if "action_mask" in prepared else taken | True
        for name, gradient in gradients_of_outputs(trial, prepared, taken.shape).items():
            if gradient.dim() != taken.dim():
                continue
            applies = True
            # Where one action is allowed, there is no other one to lower.
            several = (allowed.sum(1, keepdim=True) > 1).expand_as(allowed)
            raised, lowered = taken & several, allowed & ~taken
            if (
                bool((gradient[raised] >= 0).any())
                or bool((gradient[lowered] <= 0).any())
                or bool(gradient[~allowed].any())
            ):
                raise CheckFailed(
                    f"{name!r} that rise for actions taken and fall for all others that are allowed"
                    + named(trial.setting),
                    f"gradients of {float(gradient[raised].mean()):.2g} and "
                    f"{float(gradient[lowered].mean()):.2g}",
                    location(subject.kind, "compute_loss_for_module")
                    + ": log Σ exp Q(s, ·) − Q(s, a) over allowed actions, which is added to the "
                    "loss",
                )
    if not applies:
        raise DoesNotApply("it has no option cql_alpha")


def check_larger_errors_pull_more(subject: Subject) -> None:
    """The further a target is above an action value or quantile, the more the loss raises it."""
    applies = False
    for trial in trials(subject):
        if not _gives_values(trial):
            # With other options, forward_train gives the same names.
            break
        pulls = [pull for reward in _NEAR for pull in _pulls_at(trial, reward)]
        if not pulls:
            continue
        applies = True
        # Gradients: the more they pull up, the lower they are.
        steps = torch.stack(pulls).diff(dim=0)
        largest = float(torch.stack(pulls).abs().max())
        at, worst = int(steps.reshape(len(steps), -1).max(1).values.argmax()), float(steps.max())
        if worst > 1e-3 * largest:
            raise CheckFailed(
                "gradients of action values that fall as the target rises" + named(trial.setting),
                f"they rise by {worst:.2g}, of at most {largest:.2g}, where the rewards of last "
                f"steps rise from {_NEAR[at]:g} to {_NEAR[at + 1]:g}",
                location(subject.kind, "compute_loss_for_module")
                + ": the sign of the error; both parts of a Huber loss have the same slope at its "
                "threshold",
            )
    if not applies:
        raise DoesNotApply("forward_train gives no q_values or quantiles that get gradients")


def check_loss_is_the_one_that_is_named(subject: Subject) -> None:
    """For `loss`, "mse" has gradients that grow with errors, those of "huber" have a bound."""
    applies = False
    for name, growth in (("mse", 2.0), ("huber", 1.0)):
        for trial in _with_option(subject, "loss", name):
            norms = []
            for size in (_FAR, 2 * _FAR):
                rewards = torch.full_like(trial.batch["rewards"], size)
                found = trial.gradients(trial.batch.with_columns({"rewards": rewards}))
                norms.append(sum(float((one.double() ** 2).sum()) for one in found.values()) ** 0.5)
            if not norms[0]:
                continue
            applies = True
            if abs(norms[1] / norms[0] - growth) > 0.1:
                raise CheckFailed(
                    f"gradients {growth:g} times as large for errors twice as large, with "
                    f"loss = {name!r}" + named(trial.setting),
                    f"{norms[1] / norms[0]:.2g} times",
                    location(subject.kind, "compute_loss_for_module"),
                )
    if not applies:
        raise DoesNotApply("it has no option loss = 'mse' or 'huber'")


def gradients_of_outputs(trial: Trial, prepared: Batch, shape: Any) -> dict[str, Tensor]:
    """The gradient of each output of `forward_train` whose first dimensions are these."""
    harness, found = trial.harness, dict[str, Tensor]()
    batches = {next(iter(harness.learner.modules)): prepared}
    with harness.generators():
        outputs = harness.learner.forward_train(batches)

        def keep(gradient: Tensor, name: str) -> None:
            found[name] = found.get(name, 0) + gradient

        for name, value in next(iter(outputs.values()), {}).items():
            if (
                isinstance(value, Tensor)
                and value.requires_grad
                and value.shape[: len(shape)] == shape
            ):
                value.register_hook(partial(keep, name=name))  # type: ignore[no-untyped-call] # torch's
        losses = harness.learner.compute_loss(outputs, batches)
        if losses:
            harness.learner.compute_gradients(losses)
    return found


def _gives_values(trial: Trial) -> bool:
    """Whether forward_train gives action values, or has a head for quantiles."""
    harness = trial.harness
    batches = {next(iter(harness.learner.modules)): trial.prepare(trial.batch)}
    with harness.generators(), torch.no_grad():
        outputs = harness.learner.forward_train(batches)
    heads = [one for one in harness.module.modules() if isinstance(one, QuantileHead)]
    return bool(heads) or any("q_values" in one for one in outputs.values())


def _pulls_at(trial: Trial, reward: float) -> Iterator[Tensor]:
    """The gradients of action values, or of quantiles, where all rows end with this reward."""
    if trial.of_fragments or not trial.has_next:
        return
    count = getattr(trial.case.action_space, "n", 0)
    batch = trial.batch.with_columns(
        {
            "rewards": torch.full_like(trial.batch["rewards"], reward),
            "terminated": torch.ones_like(trial.batch["terminated"]),
            "truncated": torch.zeros_like(trial.batch["truncated"]),
        }
    )
    prepared = trial.prepare(batch)
    heads = [one for one in trial.harness.module.modules() if isinstance(one, QuantileHead)]
    ends = (len(heads[0].fractions),) if heads else ()
    shape = torch.Size((prepared.rows, int(count), *ends))
    for name, gradient in gradients_of_outputs(trial, prepared, shape).items():
        if gradient.shape == shape and (heads or name == "q_values"):
            yield gradient.double().cpu()
            return


def _pull_per_quantile(trial: Trial, batch: Batch) -> Tensor | None:
    """The size of the gradient of each output of a row and an action, over both."""
    count = int(getattr(trial.case.action_space, "n", 0))
    prepared = trial.prepare(batch)
    heads = [one for one in trial.harness.module.modules() if isinstance(one, QuantileHead)]
    shape = torch.Size((prepared.rows, count, len(heads[0].fractions)))
    for gradient in gradients_of_outputs(trial, prepared, shape).values():
        return gradient.double().abs().sum((0, 1)).cpu()
    return None


def _with_option(subject: Subject, option: str, value: Any) -> Iterator[Trial]:
    """A trial per setting with this value of an option, where it is accepted and may be noticed."""
    if not hasattr(subject.kind.Config(), option):
        return
    for setting in ({}, *subject.worth_training):
        changed: Mapping[str, Any] = {**setting, option: value}
        if not subject.accepts(changed):
            continue
        for masked in (False, True) if not setting else (False,):
            cases = [one for one in subject.cases if one.masked is masked and not one.one_step]
            case = subject.case_for(setting, cases)
            if case is not None:
                yield Trial(subject, changed, case)


def _ratio(column: Tensor) -> str:
    return f"{float(column[-1] / column[0]):.3g}"
