"""Checks of what add-ons do: bonuses, the module that is evaluated, and what is learned with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.plugin import Module
from rlplug.testing.cases import Case
from rlplug.testing.checks.effects import acting_inputs
from rlplug.testing.collector import to_array
from rlplug.testing.comparison import cloned, first_difference
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.probes import RewardByAction
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject

__all__ = [
    "check_bonus_is_larger_for_what_is_new",
    "check_evaluated_module_follows_the_trained_one",
    "check_losses_have_a_lower_bound",
    "check_the_algorithm_still_learns",
]

FAMILIAR = 150
"""Updates after which observations are no longer new."""


def check_the_algorithm_still_learns(subject: Subject) -> None:
    """Beside it, a policy gradient learns which of two actions is rewarded."""
    case = Case(name="reward_by_action", make=RewardByAction, one_step=True)
    harness = make_harness(subject, case)
    harness.train(250)
    learner = harness.learner
    module = harness.calls.inference_module("default", harness.module, learner)
    act = next(iter(acting_inputs(module, case, 4)))
    for name, one in (("the module", harness.module), ("the module that is evaluated", module)):
        chosen = to_array(one.forward_inference(act).actions)
        if not bool((chosen == 1).all()):
            raise CheckFailed(
                f"action 1, which is rewarded, chosen by {name} after 250 updates",
                f"action {chosen.tolist()[0]}",
                location(
                    subject.kind,
                    "inference_module" if one is not harness.module else "postprocess_gradients",
                    "compute_loss_for_module",
                    "prepare_batch",
                ),
            )


def check_bonus_is_larger_for_what_is_new(subject: Subject) -> None:
    """A bonus that it adds to rewards falls for what is seen again and again."""
    harness = make_harness(subject)
    batch = harness.collect()["default"]
    mixed = _with_two_places(batch)
    familiar = torch.arange(batch.rows) % 2 == 0
    if torch.equal(_bonus(harness, mixed), torch.zeros(batch.rows)):
        raise DoesNotApply("it changes no rewards")
    if not any(one.plugin == subject.found.name for one in harness.learner.optimizers):
        raise DoesNotApply("it learns nothing of its own")
    early = _bonus(harness, mixed)
    only_familiar = _rows_where(mixed, familiar)
    for _ in range(FAMILIAR):
        harness.update(only_familiar)
    late = _bonus(harness, mixed)
    before = float(early[familiar].mean() - early[~familiar].mean())
    after = float(late[familiar].mean() - late[~familiar].mean())
    if not after < min(before, 0.0) - 1e-6:
        raise CheckFailed(
            f"a smaller bonus for what was seen in {FAMILIAR} updates than for what is new",
            f"{float(late[familiar].mean()):.3g} and {float(late[~familiar].mean()):.3g}; "
            f"{float(early[familiar].mean()):.3g} and {float(early[~familiar].mean()):.3g} before",
            location(subject.kind, "prepare_batch", "compute_loss_for_module")
            + ": the signs of the bonus and of the loss, and which network is trained",
        )
    shifted = mixed.with_columns({"rewards": mixed["rewards"] + 5.0})
    if not torch.allclose(_bonus(harness, shifted), _bonus(harness, mixed), 1e-3, 1e-4):
        raise CheckFailed(
            "a bonus that is added to the rewards",
            "another bonus for rewards that are 5 higher",
            location(subject.kind, "prepare_batch") + ': batch["rewards"] + bonus',
        )


def check_losses_have_a_lower_bound(subject: Subject) -> None:
    """Updates on one batch do not drive its loss to minus infinity, nor its weights away."""
    harness = make_harness(subject)
    own = {
        name
        for member in harness.learner.members.values()
        for name in member.names_of(subject.found.name)
    }
    parameters = {name: part for name, part in harness.parameters().items() if name in own}
    if not parameters:
        raise DoesNotApply("it keeps no parameters of its own")
    batch = harness.collect()["default"]
    losses = []
    for _ in range(3 * FAMILIAR):
        results = harness.update(batch)
        losses += [
            float(value)
            for name, value in results["default"].items()
            if name == f"loss/{subject.found.name}"
            or (name.endswith("loss") and subject.found.name in name)
        ][:1]
    # What is not a number is not above the bound, either.
    if losses and not losses[-1] >= -1.0 - 20 * abs(losses[0]):
        raise CheckFailed(
            "a loss that has a lower bound",
            f"{losses[0]:.3g} at first, {losses[-1]:.3g} after {len(losses)} updates on one batch",
            location(subject.kind, "compute_loss_for_module") + ": its sign",
        )


def check_evaluated_module_follows_the_trained_one(subject: Subject) -> None:
    """`inference_module` gives weights between those that the trained module has had."""
    harness = make_harness(subject)
    if not harness.calls.implements("inference_module"):
        raise DoesNotApply("it has no inference_module")
    where = location(subject.kind, "inference_module", "additional_update", "build_extra")
    lowest = {name: part.detach().clone() for name, part in harness.module.named_parameters()}
    highest = cloned(lowest)
    first: dict[str, Tensor] = {}
    for update in range(40):
        module = _evaluated(harness, where)
        if module is harness.module:
            raise DoesNotApply("it evaluates the trained module itself")
        if _shares_memory(module, harness.module):
            raise CheckFailed(
                "a module to evaluate with weights of its own",
                "weights that are the very tensors of the trained module",
                location(subject.kind, "build_extra", "inference_module")
                + ": copy.deepcopy(module), or param.detach().clone()",
            )
        weights = {name: part.detach().clone() for name, part in module.named_parameters()}
        first = first or weights
        for name, part in weights.items():
            if name not in lowest:
                continue
            margin = 1e-5 + 1e-3 * (highest[name] - lowest[name])
            outside = (part < lowest[name] - margin) | (part > highest[name] + margin)
            if bool(outside.any()):
                raise CheckFailed(
                    "evaluated weights between the lowest and the highest that were trained",
                    f"{name} lies beyond them after {update} updates",
                    f"{where}: average = decay * average + (1 - decay) * weights",
                )
        before = cloned(harness.module.state_dict())
        module.forward_inference(next(iter(acting_inputs(module, _case(harness), 4))))
        if first_difference(before, harness.module.state_dict()) is not None:
            raise CheckFailed("a trained module that evaluation leaves alone", "it moved", where)
        harness.train(1)
        for name, part in harness.module.named_parameters():
            lowest[name] = torch.minimum(lowest[name], part.detach())
            highest[name] = torch.maximum(highest[name], part.detach())
    last = dict(_evaluated(harness, where).named_parameters())
    if all(torch.equal(part, last[name]) for name, part in first.items()):
        raise CheckFailed(
            "evaluated weights that follow what is trained", "the same after 40 updates", where
        )


def _evaluated(harness: Harness, where: str) -> Module:
    module = harness.calls.inference_module("default", harness.module, harness.learner)
    if not isinstance(module, Module):
        raise CheckFailed("an rlplug.Module from inference_module", type(module).__name__, where)
    return module


def _case(harness: Harness) -> Case:
    return next(iter(harness.cases.values()))


def _shares_memory(one: nn.Module, other: nn.Module) -> bool:
    held = {param.data_ptr() for param in other.parameters()}
    return any(param.data_ptr() in held for param in one.parameters())


def _with_two_places(batch: Batch) -> Batch:
    """The batch with one place observed in even rows and next to them, another one in odd rows."""
    random = torch.Generator().manual_seed(4)
    columns: dict[str, Any] = {}
    for name in ("observations", "next_observations"):
        if name in batch:
            rows = torch.full_like(batch[name], 0.7)
            rows[1::2] = -0.7
            noise = 0.02 * torch.randn(rows.shape, generator=random)
            columns[name] = rows + noise.to(rows.dtype)
    return batch.with_columns(columns)


def _rows_where(batch: Batch, chosen: Tensor) -> Batch:
    return Batch({name: batch[name][chosen] for name in batch})


def _bonus(harness: Harness, batch: Batch) -> Tensor:
    """What is added to the rewards of the batch."""
    start = harness.learner.get_state()
    try:
        prepared = harness.prepare(batch)
        bonus: Tensor = prepared["rewards"].double() - batch["rewards"].double()
        return bonus.float()
    finally:
        harness.learner.set_state(start)
