"""Checks of what an update does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.plugin import ALL_MODULES
from rlplug.testing.bench import Bench, bench_of, copied
from rlplug.testing.comparing import first_difference
from rlplug.testing.report import CheckFailed, DoesNotApply, place
from rlplug.testing.subject import Subject

__all__ = [
    "check_batches_stay_as_they_are",
    "check_every_parameter_learns",
    "check_loss_is_a_mean",
    "check_metrics_are_finite_numbers",
    "check_targets_follow",
]

_LEARNING = ("compute_loss_for_module", "additional_update", "prepare_batch")


def check_metrics_are_finite_numbers(subject: Subject) -> None:
    """Twenty updates leave finite weights, and metrics that are finite numbers of stable names."""
    bench = bench_of(subject)
    where = place(subject.kind, *_LEARNING)
    results = bench.live(20)
    for update, result in enumerate(results, start=1):
        for module_id, metrics in result.items():
            for name, value in metrics.items():
                _check_metric(f"{module_id}: {name}", value, f"update {update}", where)
    for name, weight in bench.module.state_dict().items():
        if isinstance(weight, Tensor) and not bool(torch.isfinite(weight.double()).all()):
            raise CheckFailed("finite weights after 20 updates", f"{name} is not finite", where)
    early, late = (_names(part) for part in (results[:10], results[10:]))
    if early != late:
        raise CheckFailed(
            "the same metrics in early and late updates",
            f"only sometimes: {', '.join(sorted(early ^ late))}",
            where,
        )


def check_every_parameter_learns(subject: Subject) -> None:
    """Every parameter that wants a gradient is in an optimizer, gets one and moves."""
    bench = bench_of(subject)
    before = bench.state()["modules"], copied(bench.parameters())
    reached = _reached(bench, updates=10)
    where = place(subject.kind, "compute_loss_for_module", "additional_update", "build")
    if not bench.parameters() or (subject.is_addon and not _own(bench, subject)):
        if subject.is_addon:
            raise DoesNotApply("it keeps no parameters of its own")
        if first_difference(before[0], bench.state()["modules"]) is None:
            raise CheckFailed("a module that learns", "ten updates changed nothing", where)
        return
    held = {id(param) for one in bench.learner.optimizers for param in one.params}
    for name, param in bench.parameters().items():
        if subject.is_addon and name not in _own(bench, subject):
            continue
        if id(param) not in held:
            raise CheckFailed(
                "an optimizer for every parameter that requires a gradient",
                f"{name!r} is in none: it will never learn",
                place(subject.kind, "configure_optimizers_for_module", "build")
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
    """No hook writes into the batch: the next epoch would learn from something else."""
    bench = bench_of(subject)
    bench.live(1)
    for batch in (bench.play()["default"] for _ in range(2)):
        # As the learner wants them, so that it need not copy and every write is seen.
        dtype = bench.learner.dtype if bench.learner.optimizers.of("default") else None
        given = batch.to(bench.learner.device, dtype)
        before = {name: copied(given[name]) for name in given}
        bench.update(given)
        after = {name: given[name] for name in given}
        difference = first_difference(before, after)
        if difference is not None:
            raise CheckFailed(
                "a batch that is only read",
                f"column {difference}",
                place(subject.kind, *_LEARNING),
            )


def check_loss_is_a_mean(subject: Subject) -> None:
    """Every row twice gives the same loss: a sum would make the step depend on the batch size."""
    bench = bench_of(subject)
    bench.live(3)
    batch = bench.play()["default"]
    once, twice = (bench.gradients(_repeated(batch, times)) for times in (1, 4))
    if once is None or twice is None:
        raise DoesNotApply("nobody has a loss: nothing is learned by gradients")
    small, large = (_norm(gradients) for _, gradients in (once, twice))
    if small > 0 and not 0.6 < large / small < 1.6:
        raise CheckFailed(
            "the same gradient for a batch and for the batch repeated four times",
            f"its norm grows from {small:.4g} to {large:.4g}: the loss is summed over rows",
            place(subject.kind, "compute_loss_for_module") + ": try .mean()",
        )


def check_targets_follow(subject: Subject) -> None:
    """A frozen copy of a trained network is renewed sooner or later."""
    bench = bench_of(subject)
    copies = _frozen_copies(bench)
    if not copies:
        raise DoesNotApply("it keeps no frozen copy of a trained network")
    before = {name: copied(part.state_dict()) for name, part in copies.items()}
    for _ in range(10):
        bench.live(10, steps=2)
        still = [
            name
            for name, part in copies.items()
            if first_difference(before[name], part.state_dict()) is None
        ]
        if not still:
            return
    raise CheckFailed(
        "target networks that follow what is trained within 100 updates",
        f"{still[0]!r} is still as it was built",
        place(subject.kind, "additional_update", "build"),
    )


def _reached(bench: Bench, updates: int) -> set[str]:
    """The parameters that some gradient reached."""
    reached: set[str] = set()
    for _ in range(updates):
        bench.live(1)
        for name, param in bench.parameters().items():
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


def _names(results: Sequence[Mapping[str, Mapping[str, Any]]]) -> set[str]:
    return {
        name
        for result in results
        for module_id, metrics in result.items()
        if module_id != ALL_MODULES
        for name in metrics
    }


def _own(bench: Bench, subject: Subject) -> set[str]:
    return {
        name
        for member in bench.learner.members.values()
        for name in member.names_of(subject.found.name)
    }


def _repeated(batch: Batch, times: int) -> Batch:
    """Every row so many times, as further fragments."""
    rows = batch.rows

    def again(column: Any) -> Any:
        if isinstance(column, Mapping):
            return {name: again(part) for name, part in column.items()}
        if isinstance(column, tuple):
            return tuple(again(part) for part in column)
        return torch.cat([column] * times)

    columns = {name: again(batch[name]) for name in batch if name != "fragments"}
    if "fragments" in batch:
        shifts = [batch["fragments"] + rows * index for index in range(times)]
        columns["fragments"] = torch.cat(shifts)
    return Batch(columns)


def _norm(gradients: Mapping[nn.Parameter, Tensor]) -> float:
    return math.sqrt(sum(float((one.double() ** 2).sum()) for one in gradients.values()))


def _frozen_copies(bench: Bench) -> dict[str, nn.Module]:
    """Submodules without anything to train that look like one with everything to train."""
    shapes: dict[tuple[Any, ...], list[tuple[str, nn.Module]]] = {}
    for name, part in bench.module.named_modules():
        own = tuple((path, tuple(param.shape)) for path, param in part.named_parameters())
        if own:
            shapes.setdefault(own, []).append((name, part))
    copies: dict[str, nn.Module] = {}
    for alike in shapes.values():
        trained = [one for one in alike if all(p.requires_grad for p in one[1].parameters())]
        frozen = [one for one in alike if not any(p.requires_grad for p in one[1].parameters())]
        if trained:
            copies.update(frozen)
    return copies
