"""The loss hooks of all plugins: called for one minibatch, checked, summed, averaged."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.errors import PluginError, RequestError, did_you_mean
from rlplug.hooks.binding import HOOKS
from rlplug.hooks.calls import HookCalls
from rlplug.learner.member import Member
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.nn.arrays import Array
from rlplug.plugin import LearnerView, Loss

__all__ = [
    "LossHooks",
    "MinibatchLoss",
    "Reduce",
    "Results",
    "acting_on",
    "as_tensors",
    "average",
    "mean_results",
    "nonfinite_terms",
    "reduced",
]

Results: TypeAlias = dict[str, dict[str, Any]]
"""Module id → metric → value."""

Reduce: TypeAlias = Callable[[Sequence[Mapping[str, Mapping[str, Any]]]], Results]
"""Reduces the results of all minibatches to one mapping."""

_HOOK = "compute_loss_for_module"


@dataclass(slots=True)
class MinibatchLoss:
    """The losses of all plugins for one minibatch, summed, and what they report."""

    total: Any = None
    """The sum of all losses."""
    common: list[Any] = field(default_factory=list)
    """Losses that move every acting optimizer."""
    named: dict[str, Any] = field(default_factory=dict)
    """Losses that move one optimizer each."""
    plugins: list[str] = field(default_factory=list)
    """Those that gave a loss."""
    mapped: list[str] = field(default_factory=list)
    """Plugins some of whose optimizers a mapping names: those that it leaves out rest."""
    terms: dict[str, Any] = field(default_factory=dict)
    """The common losses term by term."""
    metrics: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)
    stop: Any = None

    def for_optimizer(self, name: str) -> Any:
        """The loss that moves one optimizer: its own plus the common ones; None if it has none."""
        losses = [*self.common, self.named[name]] if name in self.named else self.common
        return reduce(operator.add, losses) if losses else None


class LossHooks:
    """Runs a module's forward pass and every plugin's loss hook on a minibatch."""

    def __init__(self, calls: HookCalls, learner: LearnerView) -> None:
        self._calls = calls
        self.learner = learner
        """Passed to hooks, and not used here."""

    def __call__(
        self,
        member: Member,
        batch: Batch,
        optimizers: tuple[str, ...],
        *,
        fwd_out: Mapping[str, Any] | None = None,
    ) -> MinibatchLoss | None:
        """The summed loss; None if every plugin returned None.

        `fwd_out` is a forward pass that was made already.
        """
        if fwd_out is None:
            fwd_out = member.module.forward_train(batch)
        answers = self._calls.compute_loss_for_module(
            member.module_id, member.module, batch, fwd_out, optimizers, self.learner
        )
        if not answers:
            return None
        return _combine(answers, member, optimizers)

    def traced(
        self,
        member: Member,
        batch: Batch,
        optimizers: tuple[str, ...],
        configs: Mapping[str, Any],
    ) -> MinibatchLoss | None:
        """The same for torch.compile to trace: the hooks' functions and nothing else."""
        fwd_out = member.module.forward_train(batch)
        answers = []
        for one in self._calls.implementations(_HOOK):
            offered = (
                member.module_id,
                member.module,
                member.extras.get(one.name),
                configs[one.name],
                batch,
                fwd_out,
                optimizers,
                self.learner,
            )
            answer = one.function(*[offered[HOOKS[_HOOK].index(name)] for name in one.arguments])
            if answer is not None:
                answers.append((one.name, answer))
        return _combine(answers, member, optimizers) if answers else None


def acting_on(
    ready: Sequence[RegisteredOptimizer], loss: MinibatchLoss
) -> list[RegisteredOptimizer]:
    """The optimizers that a minibatch's losses move.

    A plugin's optimizers rest where a mapping names some of them and leaves them out.
    """
    if not loss.mapped:
        return list(ready)
    # torch before 2.13 cannot trace bool() of a list.
    common = len(loss.common) > 0
    return [
        one for one in ready if one.name in loss.named or (common and one.plugin not in loss.mapped)
    ]


def nonfinite_terms(loss: MinibatchLoss, member: Member) -> list[str]:
    """One line per loss term that is not finite, or whose gradient of some parameter is not."""
    params = {name: param for name, param in member.named.items() if param.requires_grad}
    lines = []
    for term, value in {**loss.terms, **loss.named}.items():
        if not torch.isfinite(value):
            lines.append(f"loss term {term!r} is {float(value.detach())}")
            continue
        if not value.requires_grad:
            continue
        gradients = torch.autograd.grad(
            value, list(params.values()), allow_unused=True, retain_graph=True
        )
        for name, gradient in zip(params, gradients, strict=True):
            if gradient is not None and not bool(torch.isfinite(gradient).all()):
                lines.append(f"loss term {term!r} is finite, its gradient of {name!r} is not")
                break
    return lines


def mean_results(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> Results:
    """The mean of every metric of every module, over the minibatches that have it."""
    ids = dict.fromkeys(module_id for part in parts for module_id in part)
    return {
        module_id: average([part[module_id] for part in parts if module_id in part])
        for module_id in ids
    }


def reduced(
    whole: Results,
    histories: Mapping[str, Sequence[dict[str, Any]]],
    reduce_fn: Reduce | None,
) -> Results | list[Results]:
    """The results of all minibatches as `reduce_fn` reduces them, and what only `whole` has.

    `histories` are the metrics of each module's minibatches; without `reduce_fn` they are given
    back, minibatch by minibatch.
    """
    longest = max(map(len, histories.values()), default=0)
    parts: list[Results] = [
        {
            module_id: history[index]
            for module_id, history in histories.items()
            if index < len(history)
        }
        for index in range(longest)
    ]
    if reduce_fn is None:
        return parts
    answer: Any = reduce_fn(parts)
    if not isinstance(answer, Mapping) or not all(
        isinstance(metrics, Mapping) for metrics in answer.values()
    ):
        raise RequestError(
            f"reduce_fn gave {answer!r}, not metrics by module id.",
            "return a mapping of mappings: {'default': {'loss': …}}",
        )
    found = {module_id: dict(metrics) for module_id, metrics in answer.items()}
    for module_id, metrics in whole.items():
        seen = {name for part in parts for name in part.get(module_id, ())}
        added = {name: value for name, value in metrics.items() if name not in seen}
        found[module_id] = {**added, **found.get(module_id, {})}
    return found


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


def as_tensors(metrics: dict[str, Any]) -> dict[str, Any]:
    """NumPy scalars as tensors, which is what hooks expect."""
    numbers = {}
    for name, value in metrics.items():
        if isinstance(value, numpy.generic):
            numbers[name] = value
    if numbers:
        tensors = torch.from_numpy(numpy.array(list(numbers.values()))).unbind()
        metrics.update(zip(numbers, tensors, strict=True))
    return metrics


def _combine(
    answers: Sequence[tuple[str, Any]],
    member: Member,
    optimizers: Sequence[str],
) -> MinibatchLoss | None:
    algorithm = member.algorithm
    combined = MinibatchLoss()
    values: list[Any] = []
    for plugin, answer in answers:
        # Metrics of add-ons bear their names.
        prefix = "" if plugin == algorithm else f"{plugin}/"
        loss = answer if isinstance(answer, Loss) else _as_loss(answer, plugin)
        _check_parts(loss, plugin)
        value = loss.value
        if isinstance(value, _TENSORS):
            _check(value, "loss", plugin)
            combined.common.append(value)
            own = value
            if loss.terms:
                for name, term in loss.terms.items():
                    combined.terms[prefix + name] = term
            else:
                combined.terms[plugin] = value
        else:
            own = _add_named(combined, value, plugin, member, optimizers)
            if own is None:
                continue
        values.append(own)
        combined.plugins.append(plugin)
        metrics = combined.metrics
        if len(answers) > 1:
            metrics[f"loss/{plugin}"] = own.detach()
        for name, term in loss.terms.items():
            metrics[prefix + name] = term.detach()
        for name, metric in loss.metrics.items():
            metrics[prefix + name] = metric.detach() if isinstance(metric, _TENSORS) else metric
        for name, rows in loss.rows.items():
            combined.rows[name] = rows.detach()
        if loss.stop is not None:
            _check_stop(loss.stop, plugin)
            combined.stop = loss.stop if combined.stop is None else combined.stop | loss.stop
    if not values:
        return None
    # Out of place: what each module and plugin reports must stay what it was.
    combined.total = reduce(operator.add, values)
    return combined


def _add_named(
    combined: MinibatchLoss, value: Any, plugin: str, member: Member, optimizers: Sequence[str]
) -> Any:
    """The sum of the losses of the optimizers that act; None if they are all of resting ones."""
    if not isinstance(value, Mapping):
        _check(value, "loss", plugin)
    own = [one.name for one in member.optimizers if one.plugin == plugin]
    if not value and any(name in optimizers for name in own):
        raise PluginError(
            f"plugin {plugin!r} gave a loss without any value.", "return None instead"
        )
    known = [one.name for one in member.optimizers]
    acting = {name: part for name, part in value.items() if name in optimizers}
    combined.mapped += [one.plugin for one in member.optimizers if one.name in value]
    for name in value:
        if name not in known:
            raise PluginError(
                f"plugin {plugin!r} gave a loss to optimizer {name!r}, which does not exist. "
                f"{did_you_mean(str(name), known, sentence=True)}".rstrip(),
                f"there are: {', '.join(known)}",
            )
    for name, part in acting.items():
        _check(part, f"loss of optimizer {name!r}", plugin)
        earlier = combined.named.get(name)
        combined.named[name] = part if earlier is None else earlier + part
        combined.metrics[f"loss/{name}"] = combined.named[name].detach()
    return reduce(operator.add, acting.values()) if acting else None


def _as_loss(answer: Any, plugin: str) -> Loss:
    if isinstance(answer, _TENSORS):
        return Loss(answer)  # type: ignore[arg-type] # an Array answers as a tensor does
    if isinstance(answer, Mapping) and "loss" in answer:
        return Loss(
            answer["loss"],
            metrics={name: value for name, value in answer.items() if name != "loss"},
        )
    raise PluginError(
        f"plugin {plugin!r} gave {type(answer).__name__} as its loss.",
        "return a 0-d tensor, a Loss, a dict with 'loss', or None",
    )


def _check_parts(loss: Loss, plugin: str) -> None:
    for what, part in (("terms", loss.terms), ("metrics", loss.metrics), ("rows", loss.rows)):
        if not isinstance(part, Mapping):
            raise PluginError(
                f"the {what} of the loss of plugin {plugin!r} are {type(part).__name__}.",
                "give a mapping of names to values",
            )
    for name, term in loss.terms.items():
        _check(term, f"term {name!r} of the loss", plugin, connected=False)


def _check_stop(stop: Any, plugin: str) -> None:
    if isinstance(stop, bool | numpy.bool_) or (isinstance(stop, _TENSORS) and not stop.dim()):
        return
    shape = f" of shape {tuple(stop.shape)}" if isinstance(stop, _TENSORS) else ""
    raise PluginError(
        f"the stop of the loss of plugin {plugin!r} is {type(stop).__name__}{shape}.",
        "give True, False, None or a 0-d tensor of one of them",
    )


def _check(value: Any, what: str, plugin: str, *, connected: bool = True) -> None:
    if not isinstance(value, _TENSORS):
        raise PluginError(
            f"the {what} of plugin {plugin!r} is {type(value).__name__}.", "give a 0-d tensor"
        )
    if isinstance(value, Tensor) and value.is_complex():
        raise PluginError(f"the {what} of plugin {plugin!r} is complex.", "give a real number")
    if value.dim():
        raise PluginError(
            f"the {what} of plugin {plugin!r} has shape {tuple(value.shape)}, not one number.",
            "try: .mean()",
        )
    if connected and not value.requires_grad:
        raise PluginError(
            f"the {what} of plugin {plugin!r} is connected to no parameter.",
            "compute it from what forward_train returned, without detach() or no_grad()",
        )


_TENSORS = (Tensor, Array)
