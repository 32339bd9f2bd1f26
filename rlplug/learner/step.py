"""One step of a module: its minibatches, their evaluation, clipping, and optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlplug.batch import Batch, minibatches
from rlplug.config.sections import LearnerSection
from rlplug.errors import RunFailedError
from rlplug.learner.device import Precision
from rlplug.learner.losses import MinibatchLoss
from rlplug.learner.member import Member
from rlplug.learner.optimizers import OptimizerCycle, RegisteredOptimizer, labelled
from rlplug.nn.targets import TargetNetwork
from rlplug.optim import clipping
from rlplug.plugin import ALL_MODULES

Names: TypeAlias = tuple[str, ...]
"""Names of optimizers."""

Terms: TypeAlias = dict[str, dict[str, Tensor]]
"""Gradients by term of the loss and name of the parameter."""


class Evaluation(NamedTuple):
    """What the minibatches of one step gave; the gradients are in the parameters."""

    weight: float = 0.0
    """The share of the rows that had a loss; 0: nothing moves in this step."""
    loss: Any = 0.0
    """The average over the minibatches that had one."""
    metrics: Sequence[dict[str, Any]] = ()
    """Of each minibatch; without `loss` where it had none."""
    rows: Sequence[dict[str, Tensor]] = ()
    """Per-row values of each minibatch, with their `indices`."""
    acting: Mapping[str, float] = {}
    """The optimizers that the losses move, each with the share of the rows that moves it."""
    stop: bool = False
    """Whether the epochs of this module end before the step."""
    terms: Terms = {}
    flat: NDArray[Any] | None = None
    """All gradients in one array, in the order of the optimizers' parameters."""
    clipped: Mapping[str, tuple[list[Tensor], bool | Tensor]] = {}
    """Optimizer → its gradients, and whether it must not step by them, perhaps on the device."""
    nonfinite: Sequence[Any] = ()
    """How many gradients were not finite: numbers, or tensors that are not read."""

    @property
    def told(self) -> dict[str, Any]:
        """The metrics to which norms of gradients are added: of the last minibatch with a loss."""
        told: dict[str, Any] = {}
        for told in reversed(self.metrics):
            if told:
                break
        return told


class Engine(Protocol):
    """Computes the losses and gradients of one module."""

    name: str
    """As users see it."""
    reason: str
    """Why it is this engine."""

    def prepare(self, batch: Batch, batches: Mapping[str, Batch]) -> Batch:
        """Run every plugin's `prepare_batch`; `batches` are those of all modules."""

    def gradients(self, minibatches: Sequence[Batch], names: Names) -> Evaluation:
        """Evaluate minibatches, and leave the gradients in the parameters of the module."""

    def get_state(self) -> dict[str, Any]:
        """What it has decided, as plain values."""


@dataclass(eq=False, slots=True)
class TrainedModule:
    """A module with optimizers, and what it keeps from update to update."""

    member: Member
    cycle: OptimizerCycle
    engine: Engine
    shuffler: torch.Generator
    targets: list[TargetNetwork]
    """Target networks, which follow after each step."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The results of the last update, for schedulers that monitor them."""

    def acting(self, names: Collection[str]) -> list[RegisteredOptimizer]:
        """The optimizers with these names."""
        return [optimizer for optimizer in self.cycle.optimizers if optimizer.name in names]

    def epoch_ended(self, evaluations: Sequence[Evaluation], registered: Mapping[str, Any]) -> None:
        """Move the schedulers that count passes over the batch."""
        for optimizer in self.cycle.optimizers:
            if optimizer.scheduler is not None and optimizer.stepped_in_epoch:
                history = [told for evaluation in evaluations for told in evaluation.metrics]
                metrics = {**self.metrics, **registered, **average(history)}
                optimizer.scheduler.epoch_ended(metrics, complete=bool(self.metrics))
            optimizer.stepped_in_epoch = False

    def results(self, evaluations: Sequence[Evaluation]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Averages over the minibatches of an update, with the learning rates; per-row values."""
        history: list[dict[str, Any]] = []
        nonfinite: list[Any] = []
        rows: dict[str, list[Tensor]] = {}
        for evaluation in evaluations:
            history += evaluation.metrics
            nonfinite += evaluation.nonfinite
            for told in evaluation.rows:
                for name, values in told.items():
                    rows.setdefault(name, []).append(values)
        metrics = average(history)
        for optimizer in self.cycle.optimizers:
            metrics[optimizer.rate_label] = float(optimizer.optimizer.param_groups[0]["lr"])
        skipped = 0
        for told in history:
            skipped += "loss" not in told
        if skipped and self.member.module_id != ALL_MODULES:
            metrics["skipped"] = skipped
        if nonfinite:
            on_device = isinstance(nonfinite[0], Tensor)
            metrics["nonfinite"] = torch.stack(nonfinite).sum() if on_device else sum(nonfinite)
        return metrics, {name: join(parts) for name, parts in rows.items()} if rows else {}


def join(parts: Sequence[Tensor]) -> Tensor:
    """The rows of several tensors one after the other."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


Window: TypeAlias = dict[TrainedModule, Sequence[Batch]]
"""The minibatches of one step, by module."""

Acting: TypeAlias = dict[TrainedModule, Names]
"""The optimizers that act at once, by module."""


# -- which minibatches and optimizers a step has ---------------------------------------------------


def windows(
    live: Mapping[TrainedModule, Batch],
    size: int,
    section: LearnerSection,
    most: Callable[[int], int],
) -> Iterator[Window]:
    """The steps of one epoch; `live` loses the modules that stop. `most` asks other learners."""

    epoch: dict[TrainedModule, list[Batch]] = {}
    longest = 0
    for module, batch in live.items():
        whole = module.member.sequences
        epoch[module] = parts = [*minibatches(batch, size, module.shuffler, whole_fragments=whole)]
        longest = max(longest, len(parts))
    for module, parts in epoch.items() if section.cycle_minibatches else ():
        whole = module.member.sequences
        while len(parts) < longest:
            more = minibatches(live[module], size, module.shuffler, whole_fragments=whole)
            parts += list(more)[: longest - len(parts)]
    for start in range(0, most(longest), section.accumulate):
        stop = start + section.accumulate
        window: Window = {}
        for module in live:
            window[module] = epoch[module][start:stop]
        if not window:
            return
        yield window


def turns(window: Window, shared: TrainedModule | None, section: LearnerSection) -> list[Acting]:
    """The optimizers that act at once: all whose turn it is in their cycle, or one by one.

    What modules share moves with all others, or in a turn of its own, the last.
    """
    acting: Acting = {}
    for module in window:
        acting[module] = module.cycle.acting()
    if section.optimizers == "together":
        if shared is not None:
            acting[shared] = shared.cycle.acting()
        return [acting]
    several: list[Acting] = []
    for turn in range(max(map(len, acting.values()))):
        each = {module: names[turn : turn + 1] for module, names in acting.items()}
        several.append({module: names for module, names in each.items() if names})
    if shared is not None:
        several.append({**dict.fromkeys(window, ()), shared: shared.cycle.acting()})
    return several


# -- what an engine does ---------------------------------------------------------------------------


def evaluate_minibatches(
    compute: Callable[[Batch, Names], MinibatchLoss | None],
    backward: Callable[[MinibatchLoss, Names, float], None],
    minibatches: Sequence[Batch],
    names: Names,
    *,
    has_shared: bool = False,
    flat: NDArray[Any] | None = None,
) -> Evaluation:
    """Losses and gradients of the minibatches of one step, and what they tell.

    `compute` gives the losses of a minibatch for the optimizers of these names; `backward` adds the
    gradients of a loss, weighted, to those of earlier minibatches.
    """
    several = len(minibatches) > 1
    total = sum(batch.rows for batch in minibatches) if several else 0
    metrics: list[dict[str, Any]] = []
    rows: list[dict[str, Tensor]] = []
    losses: list[tuple[Any, float]] = []
    acting: dict[str, float] = {}
    weight = 0.0
    for batch in minibatches:
        loss = compute(batch, names)
        if loss is None:
            metrics.append({})
            continue
        metrics.append(loss.metrics)
        if loss.rows and "indices" in batch:
            rows.append({"indices": batch["indices"], **loss.rows})
        if loss.stop is not None and bool(loss.stop):
            return Evaluation(metrics=metrics, rows=rows, stop=True)
        moved, share = names, batch.rows / total if several else 1.0
        if loss.own is not None:
            moved = tuple(loss.own)
        if not moved and not has_shared:
            continue
        # Of accumulated minibatches each may move others.
        for name in moved:
            acting[name] = acting.get(name, 0.0) + share
        backward(loss, moved, share)
        losses.append((loss.metrics["loss"], share))
        weight += share
    mean = losses[0][0] if len(losses) == 1 else sum(loss * (n / weight) for loss, n in losses)
    return Evaluation(weight, mean, metrics, rows, acting, flat=flat)


def normalize_gradients(module: TrainedModule, result: Evaluation) -> None:
    """Average the gradients of each optimizer over the minibatches that had a loss for it."""
    for optimizer in module.acting(result.acting):
        share = result.acting[optimizer.name]
        for param in optimizer.params if share != 1.0 else ():
            if param.grad is not None:
                param.grad.mul_(1.0 / share)


def merged(earlier: Evaluation, later: Evaluation) -> Evaluation:
    """What optimizers that act one after another on the same minibatches tell together.

    Of what several of them tell, the first one's stays.
    """
    nothing: dict[str, Any] = {}
    pairs = zip_longest(earlier.metrics, later.metrics, fillvalue=nothing)
    return later._replace(
        metrics=[{**first, **more, **first} for first, more in pairs],
        rows=earlier.rows or later.rows,
        nonfinite=earlier.nonfinite,
    )


def add_gradients(
    params: Sequence[nn.Parameter], gradients: Sequence[Tensor | None], weight: float
) -> None:
    """Add gradients to those of earlier minibatches of the same step."""
    for param, gradient in zip(params, gradients, strict=True):
        if gradient is None:
            continue
        if weight != 1.0:
            gradient = gradient * weight
        before = param.grad
        param.grad = like_parameter(
            gradient if before is None else clipping.added(before, gradient), param
        )


def like_parameter(gradient: Tensor, param: nn.Parameter) -> Tensor:
    """The gradient with the strides of its parameter.

    Fused optimizers walk through both as they lie, and `autograd.grad` gives transposed ones.
    Sparse ones have no strides.
    """
    if gradient.is_sparse or gradient.stride() == param.stride():
        return gradient
    return torch.empty_like(param, requires_grad=False).copy_(gradient)


# -- clipping and steps ----------------------------------------------------------------------------


def clip_gradients(
    optimizers: Sequence[RegisteredOptimizer],
    result: Evaluation,
    section: LearnerSection,
    precision: Precision,
) -> Evaluation:
    """Measure the gradients, apply the policy on non-finite ones, clip; the result with both."""
    flat, told, nonfinite = result.flat, result.told, list(result.nonfinite)
    held: dict[str, list[Tensor]] = {}
    for optimizer in optimizers:
        own = held[optimizer.name] = []
        for param in optimizer.params:
            gradient = param.grad
            if gradient is not None and flat is None and gradient.is_sparse:
                # Those of rows that come twice are not summed yet.
                gradient = param.grad = gradient.coalesce()
            if gradient is not None:
                own.append(gradient)
    groups, over_module = held, len(held) > 1 and section.clip_over == "module"
    if over_module:
        groups = {"default": [gradient for own in held.values() for gradient in own]}
    reads = precision.reads or section.nonfinite == "stop"
    skips: dict[str, bool | Tensor] = {}
    start = 0
    for name, gradients in groups.items():
        skip: bool | Tensor = False
        if not gradients:
            continue
        part = flat
        if flat is not None and len(groups) > 1:
            # Those of one optimizer lie side by side in the array of all.
            stop = start + sum(map(Tensor.numel, gradients))
            part, start = flat[start:stop], stop
        if section.nonfinite == "zero" and not reads:
            clipping.zero_nonfinite(gradients)
        norms = clipping.measure(gradients, section.norm_type, part)
        if precision.scaler is not None or not reads:
            bad = ~torch.isfinite(torch.as_tensor(norms.total))
            nonfinite.append(bad.to(torch.float32))
            # A scaler skips steps by itself.
            skip = bad if precision.scaler is None else False
        elif not math.isfinite(norms.total):
            nonfinite.append(1)
            skip = section.nonfinite != "zero"
            if not skip:
                clipping.zero_nonfinite(gradients)
                norms = clipping.measure(gradients, section.norm_type, part)
        told[labelled("grad_norm", name)] = norms.total
        if section.max_grad_norm and skip is not True:
            after = clipping.clip(norms, section.max_grad_norm, section.clip_by)
            told[labelled("grad_norm_clipped", name)] = after
        skips[name] = skip
    clipped = {}
    for name, own in held.items():
        clipped[name] = own, skips.get("default" if over_module else name, False)
    return result._replace(clipped=clipped, nonfinite=nonfinite)


def refuse_nonfinite(member: Member, terms: Sequence[str] = ()) -> None:
    """End the run because of gradients that are not finite; `terms` say where they come from."""
    names = [
        name
        for name, param in member.named.items()
        if param.grad is not None
        and not bool(torch.isfinite(*clipping.numbers_of([param.grad])).all())
    ]
    raise RunFailedError(
        f"gradients of module {member.module_id!r} are not finite: {', '.join(names)}.",
        *(dict.fromkeys(terms) or ["no loss term alone explains it: look at the hooks"]),
        "learner.nonfinite=skip would leave such steps out",
    )


def step_optimizers(
    module: TrainedModule,
    result: Evaluation,
    scaler: torch.amp.GradScaler | None,
    evaluate: Callable[[], Evaluation],
) -> None:
    """Step every optimizer that acts and has gradients; LBFGS evaluates again."""
    for optimizer in module.cycle.optimizers:
        name = optimizer.name
        gradients, skip = result.clipped.get(name, _NOTHING)
        if optimizer.needs_closure and name in result.acting:
            stepped = optimizer.step_with_closure(_closure(name, result, evaluate))
            if not stepped and skip is False:
                result.told["nonfinite"] = 1
        elif gradients:
            stepped = optimizer.step(gradients, skip, scaler)
        else:
            continue
        if stepped:
            optimizer.stepped_in_epoch = True
            if optimizer.scheduler is not None:
                known = module.metrics
                seen = {**known, **average(result.metrics)}
                optimizer.scheduler.stepped(seen, complete=bool(known))


def _closure(
    name: str, result: Evaluation, evaluate: Callable[[], Evaluation]
) -> Callable[[], float | None]:
    """The loss of the step, the first time as it was evaluated; None where it is not finite."""
    waiting = [result]

    def loss() -> float | None:
        now = waiting.pop() if waiting else evaluate()
        gradients, skip = now.clipped.get(name, _NOTHING)
        return float(now.loss) if gradients and not bool(skip) else None

    return loss


_NOTHING: tuple[list[Tensor], bool | Tensor] = [], False


# -- results ---------------------------------------------------------------------------------------


def average(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of every metric over the minibatches that have it."""
    if len(history) == 1:
        return dict(history[0])
    columns: dict[str, list[Any]] = {}
    for metrics in history:
        for name, value in metrics.items():
            columns.setdefault(name, []).append(value)
    means: dict[str, Any] = {}
    for name, values in columns.items():
        if len(values) == 1:
            means[name] = values[0]
        elif any(map(torch.is_tensor, values)):
            stacked = torch.stack(list(map(torch.as_tensor, values)))
            dtype = None if stacked.is_floating_point() else torch.float32
            means[name] = stacked.mean(dtype=dtype)
        else:
            means[name] = sum(values) / len(values)
    return means
