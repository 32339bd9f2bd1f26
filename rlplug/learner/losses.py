"""The loss hooks of all plugins: called for one minibatch, checked when first seen, summed."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from numbers import Real
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.errors import PluginError, did_you_mean
from rlplug.hooks.calls import HookCalls
from rlplug.learner.member import Member
from rlplug.nn.arrays import Array, unwrap
from rlplug.optim import clipping
from rlplug.plugin import LearnerView, Loss


@dataclass(slots=True)
class MinibatchLoss:
    """The losses of all plugins for one minibatch, summed, and what they report."""

    total: Any = None
    """The sum of all losses."""
    own: dict[str, Any] | None = None
    """Optimizer → the loss that moves it; None: the total moves all."""
    named: dict[str, Any] = field(default_factory=dict)
    """Losses that move one optimizer each."""
    terms: dict[str, Any] = field(default_factory=dict)
    """The others, term by term."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Without graphs; among them the sum, `loss`."""
    rows: dict[str, Any] = field(default_factory=dict)
    stop: Any = None


class LossHooks:
    """What plugins do with batches of a module: `prepare_batch`, and the loss of a minibatch."""

    def __init__(self, calls: HookCalls, learner: LearnerView) -> None:
        self.calls = calls
        self.learner = learner
        """Passed to hooks, and not used here."""
        self._checked: set[tuple[str, ...]] = set()
        """The kinds of answers that were looked at: by module, plugin and named optimizers."""

    def prepare(self, member: Member, batch: Batch, batches: Mapping[str, Batch]) -> Batch:
        """The batch with the columns of every plugin's `prepare_batch`."""
        learner = self.learner
        return self.calls.prepare_batch(
            member.module_id, member.module, batch, batches, learner.timestep, learner
        )

    def __call__(
        self,
        member: Member,
        batch: Batch,
        optimizers: tuple[str, ...],
        fwd_out: Any = None,
        configs: Mapping[str, Any] | None = None,
    ) -> MinibatchLoss | None:
        """The summed loss; None if every plugin returned None. `fwd_out` may have been computed.

        With `configs`, the options of plugins, torch.compile traces it.
        """
        if fwd_out is None:
            fwd_out = member.module.forward_train(batch)
        offered = member.module_id, member.module, batch, fwd_out, optimizers, self.learner
        if configs is None:
            answers = self.calls.compute_loss_for_module(*offered)
            return _combine(answers, member, optimizers, self._checked) if answers else None
        answers = []
        for hook in self.calls.implementations("compute_loss_for_module"):
            answer = hook.plain(offered, member.extras.get(hook.name), configs[hook.name])
            if answer is not None:
                answers.append((hook.name, answer))
        return _combine(answers, member, optimizers, None) if answers else None


def nonfinite_terms(loss: MinibatchLoss, member: Member) -> list[str]:
    """One line per loss term that is not finite, or whose gradients are not."""
    params = [param for param in member.named.values() if param.requires_grad]
    lines = []
    for term, value in {**loss.terms, **loss.named}.items():
        gradients: Sequence[Any] = ()
        if value.requires_grad:
            gradients = torch.autograd.grad(value, params, allow_unused=True, retain_graph=True)
        numbers = clipping.numbers_of([each for each in gradients if each is not None])
        finite = [bool(torch.isfinite(each).all()) for each in numbers]
        if not torch.isfinite(value):
            lines.append(f"loss term {term!r} is {float(value.detach())}")
        elif not all(finite):
            lines.append(f"loss term {term!r} is finite, its gradients are not")
    return lines


def _combine(
    answers: Sequence[tuple[str, Any]],
    member: Member,
    optimizers: Sequence[str],
    checked: set[tuple[str, ...]] | None,
) -> MinibatchLoss | None:
    """The losses of all plugins, summed out of place: what each reports must stay what it was."""
    combined = MinibatchLoss()
    metrics, named = combined.metrics, combined.named
    common: list[Any] = []
    values: list[Any] = []
    mapped: set[str] = set()
    for plugin, answer in answers:
        # Metrics of add-ons bear their names.
        prefix = "" if plugin == member.algorithm else f"{plugin}/"
        loss = answer if isinstance(answer, Loss) else _as_loss(answer, plugin)
        own: Any = loss.value
        is_mapping = isinstance(own, Mapping)
        kind = (member.module_id, plugin, *(own if is_mapping else ()))
        if checked is None or kind not in checked:
            _check(loss, plugin, member, optimizers)
            if checked is not None:
                checked.add(kind)
        if is_mapping:
            # A loss of an optimizer that rests moves nothing.
            acting = {name: part for name, part in own.items() if name in optimizers}
            mapped.update(one.plugin for one in member.optimizers if one.name in own)
            if not acting:
                continue
            for name, part in acting.items():
                named[name] = named[name] + part if name in named else part
                metrics[f"loss/{name}"] = named[name]
            own = reduce(operator.add, acting.values())
        else:
            common.append(own)
            terms = {prefix + name: term for name, term in loss.terms.items()}
            combined.terms.update(terms or {plugin: own})
        values.append(own)
        if len(answers) > 1:
            metrics[f"loss/{plugin}"] = own
        for part in (loss.terms, loss.metrics):
            for name, metric in part.items():
                metrics[prefix + name] = metric
        for name, row in loss.rows.items():
            combined.rows[name] = row.detach() if isinstance(row, Tensor) else unwrap(row)
        if loss.stop is not None:
            combined.stop = loss.stop if combined.stop is None else combined.stop | loss.stop
    if not values:
        return None
    combined.total = metrics["loss"] = reduce(operator.add, values)
    if mapped:
        combined.own = {}
        for optimizer in member.optimizers:
            name = optimizer.name
            # Where a mapping names others of its plugin, an optimizer rests.
            parts = [] if optimizer.plugin in mapped and name not in named else common
            if name in named:
                parts = [*common, named[name]]
            if parts and name in optimizers:
                combined.own[name] = reduce(operator.add, parts)
    for name, metric in metrics.items():
        if isinstance(metric, Tensor):
            metrics[name] = metric.detach()
        elif isinstance(metric, Array):
            value = metric.value
            metrics[name] = unwrap(metric).clone() if value.ndim else value
    return combined


def _as_loss(answer: Any, plugin: str) -> Loss:
    if isinstance(answer, _TENSORS):
        return Loss(answer)  # type: ignore[arg-type] # an Array answers as a tensor does
    if isinstance(answer, Mapping) and "loss" in answer:
        metrics = {name: value for name, value in answer.items() if name != "loss"}
        return Loss(answer["loss"], metrics=metrics)
    raise PluginError(
        f"plugin {plugin!r} gave {type(answer).__name__} as its loss.",
        "return a 0-d tensor, a Loss, a dict with 'loss', or None",
    )


# -- what a plugin returns, when it is first seen -------------------------------------------------


def _check(loss: Loss, plugin: str, member: Member, optimizers: Sequence[str]) -> None:
    """Refuse what cannot be a loss, and what cannot be reported."""

    def refuse(what: str, problem: str, hint: str) -> None:
        raise PluginError(f"the {what} of plugin {plugin!r} {problem}.", hint)

    parts: dict[str, Any] = {"terms": loss.terms, "metrics": loss.metrics, "rows": loss.rows}
    for what, part in parts.items():
        if not isinstance(part, Mapping):
            hint = "give a mapping of names to values"
            refuse(f"{what} of the loss", f"are {type(part).__name__}", hint)
    check_metrics(loss.metrics, plugin)
    stop: Any = loss.stop
    if not (isinstance(stop, bool | numpy.bool_ | None) or _is_number(stop)):
        hint = "give True, False, None or a 0-d tensor of one of them"
        refuse("stop of the loss", f"is {kind_of(stop)}", hint)
    losses: dict[str, Any] = {"loss": loss.value}
    if isinstance(loss.value, Mapping):
        losses = {f"loss of optimizer {name!r}": part for name, part in loss.value.items()}
        known = {optimizer.name: optimizer.plugin for optimizer in member.optimizers}
        for name in loss.value.keys() - known.keys():
            guess = did_you_mean(str(name), known, sentence=True)
            message = f"plugin {plugin!r} gave a loss to optimizer {name!r}, which does not exist. "
            raise PluginError((message + guess).rstrip(), f"there are: {', '.join(known)}")
        if not losses and any(known[name] == plugin for name in optimizers):
            message = f"plugin {plugin!r} gave a loss without any value."
            raise PluginError(message, "return None instead")
    terms = {f"term {name!r} of the loss": part for name, part in loss.terms.items()}
    for what, value in {**terms, **losses}.items():
        if not _is_number(value):
            hint = "give a 0-d tensor, such as value.mean()"
            refuse(what, f"is {kind_of(value)}, not one number", hint)
        if isinstance(value, Tensor) and value.is_complex():
            refuse(what, "is complex", "give a real number")
        if what in losses and not value.requires_grad:
            hint = "compute it from what forward_train returned, without detach() or no_grad()"
            refuse(what, "is connected to no parameter", hint)


def check_metrics(metrics: Mapping[str, Any], plugin: str) -> None:
    """Refuse metrics that are no numbers."""
    for name, value in metrics.items():
        is_array = isinstance(value, (*_TENSORS, numpy.ndarray)) and not value.ndim
        if not (is_array or isinstance(value, Real | numpy.bool_)):
            raise PluginError(
                f"metric {name!r} of plugin {plugin!r} is {kind_of(value)}.",
                "give a number or a 0-d tensor",
            )


def kind_of(value: Any) -> str:
    """The type of a value; of a tensor its format and its shape."""
    if not isinstance(value, _TENSORS):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, _TENSORS) and not value.dim()


_TENSORS = (Tensor, Array)
