"""Checks of losses, gradients, metrics and updates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.batch.nested import tree_map
from rlplug.hooks.binding import HOOKS
from rlplug.plugin import ALL_MODULES
from rlplug.testing.comparison import cloned, first_difference, require_equal
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject

__all__ = [
    "check_batches_stay_as_they_are",
    "check_every_parameter_learns",
    "check_hooks_move_no_parameter",
    "check_loss_is_a_mean",
    "check_metrics_are_finite_numbers",
]

_UPDATE_HOOKS = ("compute_loss_for_module", "additional_update", "prepare_batch")
_READ_ONLY_HOOKS = ("prepare_batch", "compute_loss_for_module", "postprocess_gradients")


def check_metrics_are_finite_numbers(subject: Subject) -> None:
    """Twenty updates give finite weights, and the same metrics each time, all finite numbers."""
    harness = make_harness(subject)
    where = location(subject.kind, *_UPDATE_HOOKS)
    results = harness.train(20)
    for update, result in enumerate(results, start=1):
        for module_id, metrics in result.items():
            for name, value in metrics.items():
                _check_metric(f"{module_id}: {name}", value, f"update {update}", where)
    for name, weight in harness.module.state_dict().items():
        if isinstance(weight, Tensor) and not bool(torch.isfinite(weight.double()).all()):
            raise CheckFailed("finite weights after 20 updates", f"{name} is not finite", where)
    early, late = (_metric_names(part) for part in (results[:10], results[10:]))
    if early != late:
        raise CheckFailed(
            "the same metrics in early and late updates",
            f"only sometimes: {', '.join(sorted(early ^ late))}",
            where,
        )


def check_every_parameter_learns(subject: Subject) -> None:
    """Every parameter that requires a gradient is in an optimizer, gets one and changes."""
    harness = make_harness(subject)
    before = harness.state()["modules"], cloned(harness.parameters())
    reached = _names_with_gradients(harness, updates=10)
    where = location(subject.kind, "compute_loss_for_module", "additional_update", "build")
    if not harness.parameters() or (subject.is_addon and not _owned(harness, subject)):
        if subject.is_addon:
            raise DoesNotApply("it keeps no parameters of its own")
        if first_difference(before[0], harness.state()["modules"]) is None:
            raise CheckFailed("a module that learns", "ten updates changed nothing", where)
        return
    held = {id(param) for one in harness.learner.optimizers for param in one.params}
    for name, param in harness.parameters().items():
        if subject.is_addon and name not in _owned(harness, subject):
            continue
        if id(param) not in held:
            raise CheckFailed(
                "an optimizer for every parameter that requires a gradient",
                f"{name!r} is in none: it will never learn",
                location(subject.kind, "configure_optimizers_for_module", "build")
                + ": add it, or requires_grad_(False) if it is not to be trained",
            )
        if name not in reached or torch.equal(param, before[1][name]):
            raise CheckFailed(
                "parameters that get a gradient and move within ten updates",
                f"{name!r} "
                + ("did not move" if name in reached else "got none: no loss reaches it"),
                where + ": look for detach() and no_grad(); requires_grad_(False) if it is not "
                "to be trained",
            )


def check_batches_stay_as_they_are(subject: Subject) -> None:
    """No hook writes into the batch, which later epochs read again."""
    hooks = {
        name: _writing_nothing(getattr(subject.kind, name), name, subject)
        for name in ("prepare_batch", "compute_loss_for_module", "additional_update")
        if hasattr(subject.kind, name)
    }
    guarded = type(subject.kind.__name__, (subject.kind,), {**hooks, "__doc__": "Guarded."})
    harness = make_harness(subject, kind=guarded)
    harness.train(1)
    for batch in (harness.collect()["default"] for _ in range(2)):
        # On the learner's device and in its dtype: it makes no copy, which would hide a write.
        dtype = harness.learner.dtype if harness.learner.optimizers.of("default") else None
        placed = batch.to(harness.learner.device, dtype)
        before = {name: cloned(placed[name]) for name in placed}
        harness.update(placed)
        require_equal(
            before,
            {name: placed[name] for name in placed},
            "a batch that is only read",
            location(type(harness.module), "forward_train"),
            found="column ",
        )


def check_loss_is_a_mean(subject: Subject) -> None:
    """The loss is a mean over rows: a sum would scale the step with the batch size."""
    harness = make_harness(subject)
    harness.train(3)
    batch = harness.collect()["default"]
    once, repeated = (harness.gradients(_repeated(batch, times)) for times in (1, 4))
    if once is None or repeated is None:
        raise DoesNotApply("no plugin returns a loss: nothing is learned by gradients")
    small, large = (_norm(gradients) for gradients in (once, repeated))
    # A sum is four times as large; what is drawn for minibatches makes smaller differences.
    if small > 0 and not 0.5 < large / small < 2:
        raise CheckFailed(
            "the same gradient for a batch and for the batch repeated four times",
            f"its norm grows from {small:.4g} to {large:.4g}: the loss is summed over rows",
            location(subject.kind, "compute_loss_for_module") + ": try .mean()",
        )


def check_hooks_move_no_parameter(subject: Subject) -> None:
    """Only optimizers and closed-form updates change parameters, no other hook does."""
    harnesses: list[Harness] = []
    kind = subject.kind
    names = _READ_ONLY_HOOKS if not subject.is_addon else (*_READ_ONLY_HOOKS, "additional_update")
    hooks = {
        name: _guarded(getattr(kind, name), name, subject, harnesses)
        for name in names
        if name in HOOKS and hasattr(kind, name)
    }
    guarded = type(kind.__name__, (kind,), {**hooks, "__doc__": kind.__doc__})
    harnesses.append(make_harness(subject, kind=guarded))
    harnesses[0].train(3)


def _names_with_gradients(harness: Harness, updates: int) -> set[str]:
    """The parameters that got a gradient other than zero."""
    reached: set[str] = set()
    for _ in range(updates):
        harness.train(1)
        for name, param in harness.parameters().items():
            if param.grad is not None and bool(param.grad.any()):
                reached.add(name)
    return reached


def _check_metric(name: str, value: Any, when: str, where: str) -> None:
    if isinstance(value, Tensor) and value.dim():
        raise CheckFailed("metrics that are numbers", f"{name} has {tuple(value.shape)}", where)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise CheckFailed("metrics that are numbers", f"{name} is {value!r}", where) from None
    if not math.isfinite(number):
        raise CheckFailed("finite metrics", f"{name} is {number} in {when}", where)
    last = name.rpartition(": ")[2]
    if last != last.lower() or " " in last:
        raise CheckFailed("metric names in lower case without spaces", repr(last), where)


def _metric_names(results: Sequence[Mapping[str, Mapping[str, Any]]]) -> set[str]:
    return {
        name
        for result in results
        for module_id, metrics in result.items()
        if module_id != ALL_MODULES
        for name in metrics
    }


def _owned(harness: Harness, subject: Subject) -> set[str]:
    return {
        name
        for member in harness.learner.members.values()
        for name in member.names_of(subject.found.name)
    }


def _repeated(batch: Batch, times: int) -> Batch:
    """The batch repeated, the copies as further fragments."""
    rows = batch.rows
    columns = {
        name: tree_map(lambda column: torch.cat([column] * times), batch[name])
        for name in batch
        if name != "fragments"
    }
    if "fragments" in batch:
        shifts = [batch["fragments"] + rows * index for index in range(times)]
        columns["fragments"] = torch.cat(shifts)
    return Batch(columns)


def _norm(gradients: Mapping[nn.Parameter, Tensor]) -> float:
    return math.sqrt(sum(float((one.double() ** 2).sum()) for one in gradients.values()))


def _writing_nothing(method: Callable[..., Any], name: str, subject: Subject) -> Callable[..., Any]:
    """The hook, which fails the check if a batch that it is given changes in it."""
    where = location(subject.kind, name)

    @functools.wraps(method)
    def hook(*arguments: Any) -> Any:
        batches = [one for one in arguments if isinstance(one, Batch)]
        before = [{key: cloned(batch[key]) for key in batch} for batch in batches]
        answer = method(*arguments)
        after = [{key: batch[key] for key in batch} for batch in batches]
        for one, other in zip(before, after, strict=True):
            require_equal(one, other, "a batch that is only read", where, found="column ")
        return answer

    return hook


def _guarded(
    method: Callable[..., Any], name: str, subject: Subject, harnesses: list[Harness]
) -> Callable[..., Any]:
    looked_for = (
        f"{name} leaves the parameters of others alone"
        if subject.is_addon
        else f"{name} leaves parameters to the optimizers"
    )
    where = location(subject.kind, name)

    @functools.wraps(method)
    def hook(*arguments: Any) -> Any:
        parameters = _protected(harnesses[0], subject)
        before = cloned(parameters)
        answer = method(*arguments)
        require_equal(before, parameters, looked_for, where, found="it moved ")
        return answer

    return hook


def _protected(harness: Harness, subject: Subject) -> dict[str, Any]:
    """Parameters that a hook may not change: all, or for an add-on those of other plugins."""
    return {
        name: param
        for member in harness.learner.members.values()
        for name, param in member.named.items()
        if not subject.is_addon or member.owners[name] != subject.found.name
    }
