"""Checks of losses, gradients, metrics and updates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import tree_map
from rlplug.config.sections import ComputeSection
from rlplug.plugin import ALL_MODULES
from rlplug.testing.cases import act_input
from rlplug.testing.check import check
from rlplug.testing.comparison import cloned, first_difference, largest_difference, tensors_of
from rlplug.testing.harness import Harness, each_harness, make_harness
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject

_READING = ("prepare_batch", "compute_loss_for_module", "postprocess_gradients")


@check()
def metrics_are_finite_numbers(subject: Subject) -> None:
    """Twenty updates give finite weights, and the same metrics each time, all finite numbers."""
    for harness in each_harness(subject):
        names: tuple[set[str], set[str]] = set(), set()
        for index, result in enumerate(harness.train(20)):
            for module_id, metrics in result.items():
                for name, value in metrics.items():
                    _require_number(subject, name, value, f"update {index + 1} {harness.note}")
                names[index >= 10].update(metrics if module_id != ALL_MODULES else ())
        for path, weight in tensors_of(harness.weights()).items():
            if not bool(weight.double().isfinite().all()):
                looked_for = f"finite weights after 20 updates {harness.note}"
                raise subject.failure(looked_for, f"{path} is not finite")
        if sometimes := ", ".join(sorted(names[0] ^ names[1])):
            looked_for = f"the same metrics in early and late updates {harness.note}"
            raise subject.failure(looked_for, f"only sometimes: {sometimes}")


def _require_number(subject: Subject, name: str, value: Any, where: str) -> None:
    is_number = isinstance(value, Tensor | int | float) and torch.as_tensor(value).dim() == 0
    if not is_number or not math.isfinite(float(value)):
        raise subject.failure("metrics that are finite numbers", f"{name} is {value!r} in {where}")
    if name != name.lower() or " " in name:
        raise subject.failure("metric names in lower case without spaces", repr(name))


@check()
def every_parameter_learns(subject: Subject) -> None:
    """Every parameter that requires a gradient is in an optimizer, gets one and changes."""
    harness = make_harness(subject)
    before, weights = cloned(harness.parameters()), harness.weights()
    reached: set[str] = set()
    for _ in range(10):
        harness.train(1)
        for name, param in harness.parameters().items():
            if param.grad is not None and bool(param.grad.any()):
                reached.add(name)
    parameters = harness.parameters(subject.found.name if subject.is_addon else "")
    if not parameters and subject.is_addon:
        raise DoesNotApply("it keeps no parameters of its own")
    if not parameters and not first_difference(weights, harness.weights()):
        raise subject.failure("a module that learns", "ten updates changed nothing")
    held = {id(param) for one in harness.learner.optimizers for param in one.params}
    for name, param in parameters.items():
        why = "did not move" if torch.equal(param, before[name]) else ""
        why = why if name in reached else "got no gradient: no loss reaches it"
        why = why if id(param) in held else "is in no optimizer"
        if why:
            raise subject.failure(
                "parameters that are in an optimizer, get a gradient and move within ten updates",
                f"{name!r} {why}",
                "look for detach() and no_grad(); requires_grad_(False) if it is not to be trained",
                *("compute_loss_for_module", "additional_update", "build"),
                *("configure_optimizers_for_module",) * (id(param) not in held),
            )


@check()
def hooks_move_no_parameter(subject: Subject) -> None:
    """Only optimizers and closed-form updates change parameters, no other hook does."""
    harnesses: list[Harness] = []

    def protected(arguments: Any) -> dict[str, Any]:
        return {
            name: param
            for member in harnesses[0].learner.members.values()
            for name, param in member.named.items()
            if not subject.is_addon or member.owners[name] != subject.found.name
        }

    names = (*_READING, "additional_update") if subject.is_addon else _READING
    guarded = _guarded(subject, names, protected, "moved parameters of others")
    harnesses.append(make_harness(subject, kind=guarded))
    harnesses[0].train(3)


@check()
def batches_stay_as_they_are(subject: Subject) -> None:
    """No hook writes into the batch, which later epochs read again."""

    def columns(arguments: Any) -> list[Any]:
        batches = [one for one in arguments if isinstance(one, Batch)]
        return [{name: batch[name] for name in batch} for batch in batches]

    names = ("prepare_batch", "compute_loss_for_module", "additional_update")
    guarded = _guarded(subject, names, columns, "wrote to the batch")
    for harness in each_harness(subject, kind=guarded):
        dtype = harness.learner.dtype if harness.has_optimizers else None
        for _ in range(4):
            # On the learner's device and in its dtype: it makes no copy, which would hide a write.
            harness.update(harness.batch().to(harness.learner.device, dtype))


def _guarded(
    subject: Subject, names: tuple[str, ...], read: Callable[[Any], Any], what: str
) -> type[Any]:
    """The plugin, whose hooks fail the check where they change what is read."""

    def guard(name: str) -> Callable[..., Any]:
        method = getattr(subject.kind, name)

        @functools.wraps(method)
        def hook(*arguments: Any) -> Any:
            before = cloned(read(arguments))
            answer = method(*arguments)
            if found := first_difference(before, read(arguments)):
                raise subject.failure("a hook that only reads", f"{name} {what}: {found}", "", name)
            return answer

        return hook

    kind = subject.kind
    hooks = {name: guard(name) for name in names if hasattr(kind, name)}
    return type(kind.__name__, (kind,), {**hooks, "__doc__": "Guarded."})


@check()
def loss_is_a_mean(subject: Subject) -> None:
    """The loss is a mean over rows: a sum would scale the step with the batch size."""
    harness = make_harness(subject)
    harness.train(3)
    batch = harness.batch()
    norms = []
    for times in (1, 4):
        gradients = harness.gradients(harness.prepare(_repeated(batch, times)))
        if gradients is None:
            raise DoesNotApply("no plugin returns a loss: nothing is learned by gradients")
        norms.append(math.sqrt(sum(float((one.double() ** 2).sum()) for one in gradients.values())))
    small, large = norms
    # A sum is four times as large; what is drawn for minibatches makes smaller differences.
    if small > 0 and not 0.5 < large / small < 2:
        raise subject.failure(
            "the same gradient for a batch and for the batch repeated four times",
            f"its norm grows from {small:.4g} to {large:.4g}: the loss is summed over rows",
            "try .mean()",
            "compute_loss_for_module",
        )


def _repeated(batch: Batch, times: int) -> Batch:
    """The batch repeated, the copies as further fragments."""
    columns: Mapping[str, Any] = {
        name: tree_map(lambda column: torch.cat([column] * times), batch[name]) for name in batch
    }
    if "fragments" in batch:
        shifts = [batch["fragments"] + batch.rows * index for index in range(times)]
        columns = {**columns, "fragments": torch.cat(shifts)}
    return Batch(columns)


@check(tier="gold")
def arrays_equal_torch(subject: Subject) -> None:
    """Small networks learn the same on arrays, the fast engine, as in torch."""
    harness = _beside_torch(subject, "on arrays", arrays="auto")
    for name, reason in harness.learner.engines.values():
        if name != "arrays":
            raise DoesNotApply(f"it runs in torch: {reason}")


@check(tier="silver")
def learns_with_float64(subject: Subject) -> None:
    """With `compute.dtype = "float64"` it builds, acts and learns, all weights in float64."""
    compute = ComputeSection(device="cpu", dtype="float64", arrays="off")
    harness = make_harness(subject, compute=compute)
    harness.train(3)
    for name, param in harness.parameters().items():
        if param.is_floating_point() and param.dtype != torch.float64:
            found = f"{name!r} is {param.dtype}"
            raise subject.failure("weights in float64", found, "", "build", "build_extra")


@check(tier="silver")
def learns_on_a_gpu(subject: Subject) -> None:
    """On a CUDA device it learns the same weights as on the CPU, up to rounding."""
    if not torch.cuda.is_available():
        raise DoesNotApply("there is no CUDA device here")
    drawn = make_harness(subject)
    drawn.reseed(1)
    # A GPU draws other random numbers: what it learns may differ as much as with another seed.
    _beside_torch(subject, "on a GPU", drawn, device="cuda", tf32=False)


def _beside_torch(
    subject: Subject, how: str, drawn: Harness | None = None, **compute: Any
) -> Harness:
    """A harness with these options that learned the same as one without, or else as `drawn`."""
    usual = make_harness(subject)
    if not usual.has_optimizers and drawn is None:
        raise DoesNotApply("nothing is learned by gradients")
    other = make_harness(subject, compute=ComputeSection(**{"device": "cpu", **compute}))
    harnesses = (usual, other, *([drawn] if drawn else []))
    for _ in range(4):
        batches = usual.collect()
        for harness in harnesses:
            harness.update(batches)
    for harness in harnesses:
        # What is derived from sums may be due to be computed again.
        harness.module.forward_inference(act_input(harness.module, harness.case, 1))
    by_chance = 0.0 if drawn is None else largest_difference(usual.weights(), drawn.weights())[1]
    allowed = 1e-3 if drawn is None else 1e-2 + 3 * by_chance
    path, error = largest_difference(usual.weights(), other.weights())
    if not error <= allowed:
        found = f"{path} differs by {error:.1%} of its size"
        raise subject.failure(f"the same weights {how} as in torch on the CPU", found)
    return other
