"""Checks of losses, gradients, metrics and updates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
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
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial

_LEARNING = ("prepare_batch", "compute_loss_for_module", "additional_update")


@check()
def metrics_are_finite_numbers(subject: Subject) -> None:
    """Twenty updates give finite weights, and the same metrics each time, all finite numbers."""
    for setting, case in subject.places():
        trial = Trial(subject, case, setting)
        names: tuple[set[str], set[str]] = set(), set()
        for index, result in enumerate(trial.train(20)):
            for module_id, metrics in result.items():
                for name, value in metrics.items():
                    _require_number(trial, name, value)
                names[index >= 10].update(metrics if module_id != ALL_MODULES else ())
        for path, weight in tensors_of(trial.weights()).items():
            if not bool(weight.double().isfinite().all()):
                raise trial.failure("finite weights after 20 updates", f"{path} is not finite")
        if sometimes := ", ".join(sorted(names[0] ^ names[1])):
            looked_for = "the same metrics in early and late updates"
            raise trial.failure(looked_for, f"only sometimes: {sometimes}")


def _require_number(trial: Trial, name: str, value: Any) -> None:
    is_number = isinstance(value, Tensor | int | float) and torch.as_tensor(value).dim() == 0
    if not is_number or not math.isfinite(float(value)):
        raise trial.failure("metrics that are finite numbers", f"{name} is {value!r}")
    if name != name.lower() or " " in name:
        raise trial.failure("metric names in lower case without spaces", repr(name))


@check()
def every_parameter_learns(subject: Subject) -> None:
    """Every parameter that requires a gradient is in an optimizer, gets one and changes."""
    trial = Trial(subject)
    before, weights = cloned(trial.parameters()), trial.weights()
    reached: set[str] = set()
    for _ in range(10):
        trial.train(1)
        for name, param in trial.parameters().items():
            if param.grad is not None and bool(param.grad.any()):
                reached.add(name)
    parameters = trial.parameters(subject.found.name if subject.is_addon else "")
    if not parameters and subject.is_addon:
        raise DoesNotApply("it keeps no parameters of its own")
    if not parameters and not first_difference(weights, trial.weights()):
        raise trial.failure("a module that learns", "ten updates changed nothing")
    held = {id(param) for one in trial.learner.optimizers for param in one.params}
    for name, param in parameters.items():
        why = "did not move" if torch.equal(param, before[name]) else ""
        why = why if name in reached else "got no gradient: no loss reaches it"
        why = why if id(param) in held else "is in no optimizer"
        if why:
            raise trial.failure(
                "parameters that are in an optimizer, get a gradient and move within ten updates",
                f"{name!r} {why}",
                "look for detach() and no_grad(); requires_grad_(False) if it is not to be trained",
                *("compute_loss_for_module", "additional_update", "build"),
                *("configure_optimizers_for_module",) * (id(param) not in held),
            )


@check()
def hooks_only_read(subject: Subject) -> None:
    """No hook writes into the batch, or moves parameters: optimizers and closed forms do that."""
    kind, trials = subject.kind, list[Trial]()

    def readable(name: str, arguments: Any) -> dict[str, Any]:
        """Batches, and parameters: all of them before `additional_update`, else those of others."""
        seen: dict[str, Any] = {"batch": [one.columns for one in arguments if type(one) is Batch]}
        for member in trials[-1].learner.members.values() if trials else ():
            for param, values in member.named.items():
                is_own = member.owners[param] == subject.found.name
                if name != "additional_update" if is_own and not subject.is_addon else not is_own:
                    seen[param] = values
        return seen

    def guard(name: str) -> Callable[..., Any]:
        method = getattr(kind, name)

        @functools.wraps(method)
        def hook(*arguments: Any) -> Any:
            before = cloned(readable(name, arguments))
            answer = method(*arguments)
            if found := first_difference(before, readable(name, arguments)):
                raise subject.failure("a hook that only reads", f"{name} changed {found}", "", name)
            return answer

        return hook

    hooks = {
        name: guard(name) for name in (*_LEARNING, "postprocess_gradients") if hasattr(kind, name)
    }
    guarded = type(kind.__name__, (kind,), {**hooks, "__doc__": "Guarded."})
    for setting, case in subject.places():
        trials.append(trial := Trial(subject, case, setting, kind=guarded))
        dtype = trial.learner.dtype if trial.has_optimizers else None
        for _ in range(4):
            # On the learner's device and in its dtype: it makes no copy, which would hide a write.
            trial.update(trial.next_batch().to(trial.learner.device, dtype))


@check()
def loss_is_a_mean(subject: Subject) -> None:
    """The loss is a mean over rows: a sum would scale the step with the batch size."""
    trial = Trial(subject, updates=3)
    norms = []
    for times in (1, 4):
        gradients = trial.gradients(trial.prepare(_repeated(trial.batch, times))).values()
        norms.append(math.sqrt(sum(float((one.double() ** 2).sum()) for one in gradients)))
        if not gradients:
            raise DoesNotApply("no plugin returns a loss: nothing is learned by gradients")
    small, large = norms
    # A sum is four times as large; what is drawn for minibatches makes smaller differences.
    if small > 0 and not 0.5 < large / small < 2:
        raise trial.failure(
            "the same gradient for a batch and for the batch repeated four times",
            f"its norm grows from {small:.4g} to {large:.4g}: the loss is summed over rows",
            "try .mean()",
            "compute_loss_for_module",
        )


def _repeated(batch: Batch, times: int) -> Batch:
    """The batch repeated, the copies as further fragments."""
    columns = {
        name: tree_map(lambda column: torch.cat([column] * times), batch[name]) for name in batch
    }
    if "fragments" in batch:
        shifts = [batch["fragments"] + batch.rows * index for index in range(times)]
        columns["fragments"] = torch.cat(shifts)
    return Batch(columns)


@check(tier="gold")
def arrays_equal_torch(subject: Subject) -> None:
    """Small networks learn the same on arrays, the fast engine, as in torch."""
    trial = _beside_torch(subject, "on arrays", 1e-3, arrays="auto")
    if not trial.has_optimizers:
        raise DoesNotApply("nothing is learned by gradients")
    for name, reason in trial.learner.engines.values():
        if name != "arrays":
            raise DoesNotApply(f"it runs in torch: {reason}")


@check(tier="silver")
def learns_with_float64(subject: Subject) -> None:
    """With `compute.dtype = "float64"` it builds, acts and learns, all weights in float64."""
    compute = ComputeSection(device="cpu", dtype="float64", arrays="off")
    trial = Trial(subject, compute=compute, updates=3)
    for name, param in trial.parameters().items():
        if param.is_floating_point() and param.dtype != torch.float64:
            found = f"{name!r} is {param.dtype}"
            raise trial.failure("weights in float64", found, "", "build", "build_extra")


@check(tier="silver")
def learns_on_a_gpu(subject: Subject) -> None:
    """On a CUDA device it learns the same weights as on the CPU, up to rounding."""
    if not torch.cuda.is_available():
        raise DoesNotApply("there is no CUDA device here")
    # A GPU draws other random numbers: what it learns may differ as much as with another seed.
    _beside_torch(subject, "on a GPU", 1e-2, by_chance=3.0, device="cuda", tf32=False)


def _beside_torch(
    subject: Subject, how: str, allowed: float, *, by_chance: float = 0.0, **compute: Any
) -> Trial:
    """A trial with these options that learned the same as one without.

    `by_chance`: how many times the difference of two seeds is allowed as well.
    """
    usual, drawn = Trial(subject), Trial(subject)
    drawn.reseed(1)
    other = Trial(subject, compute=ComputeSection(**{"device": "cpu", **compute}))
    for _ in range(4):
        batches = usual.collect()
        for trial in (usual, other, drawn):
            trial.update(batches)
    for trial in (usual, other, drawn):
        # What is derived from sums may be due to be computed again.
        trial.module.forward_inference(act_input(trial.module, trial.case, 1))
    if by_chance:
        allowed += by_chance * largest_difference(usual.weights(), drawn.weights())[1]
    path, error = largest_difference(usual.weights(), other.weights())
    if not error <= allowed:
        found = f"{path} differs by {error:.1%} of its size"
        raise trial.failure(f"the same weights {how} as in torch on the CPU", found)
    return other
