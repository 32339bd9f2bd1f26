"""Gradients in torch: in one pass, per optimizer or per term; gradient hooks; choosing engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.errors import PluginError
from rlplug.hooks.calls import HookCalls
from rlplug.learner.arrays import ArraysEngine
from rlplug.learner.compiled import CompiledStep, compiled_step, warn_uncompiled
from rlplug.learner.device import Precision, has_convolutions
from rlplug.learner.losses import LossHooks, MinibatchLoss, kind_of
from rlplug.learner.member import Member
from rlplug.learner.step import (
    Engine,
    Evaluation,
    Names,
    Terms,
    add_gradients,
    evaluate_minibatches,
    like_parameter,
)
from rlplug.optim.clipping import balanced, summed
from rlplug.plugin import LearnerView


def wants_terms(calls: HookCalls, section: LearnerSection) -> bool:
    """Whether a hook, or their balance, needs the gradients of each term of the loss."""
    return section.balance_grad_norms or calls.wants("postprocess_gradients", "term_gradients")


def choose_engine(
    member: Member,
    losses: LossHooks,
    precision: Precision,
    compute: ComputeSection,
    *,
    terms: bool,
    kept: Mapping[str, Any] | None = None,
) -> Engine:
    """What computes the gradients of a module; `kept` is the state of an engine to go on with."""
    reasons = {
        "gradients per term are wanted": terms,
        "compute.arrays is off": compute.arrays == "off",
        f"the device is {precision.device.type}": precision.device.type != "cpu",
        f"compute.precision is {compute.precision}": compute.precision != "fp32",
        "compute.detect_anomaly is on": compute.detect_anomaly,
        "the network is recurrent": member.sequences,
        "the network is convolutional": any(map(has_convolutions, member.parts())),
        "parameters are shared with other modules": bool(member.shared),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), "")
    in_torch = partial(TorchEngine, precision=precision, reason=reason, terms=terms)
    if not reason and not compute.compile:
        return ArraysEngine(member, losses, in_torch, kept)
    engine = in_torch(member, losses)
    if compute.compile and not terms:
        engine.compiled = compiled_step(member, losses, precision, compute)
        if engine.compiled is not None:
            engine.name, engine.reason = "compiled", "compute.compile is on"
    return engine


class TorchEngine:
    """Losses in torch, gradients by autograd."""

    def __init__(
        self,
        member: Member,
        losses: LossHooks,
        precision: Precision,
        reason: str = "",
        *,
        terms: bool = False,
    ) -> None:
        self.name = "torch"
        self.reason = reason
        self.compiled: CompiledStep | None = None
        self._member = member
        self._losses = losses
        self._precision = precision
        self._params = [p for p in member.named.values() if id(p) not in member.shared]
        self._by_term = terms
        self._terms: Terms = {}
        self._checked = False

    def prepare(self, batch: Batch, batches: Mapping[str, Batch]) -> Batch:
        """Run `prepare_batch` on tensors."""
        return self._losses.prepare(self._member, batch, batches)

    def gradients(self, minibatches: Sequence[Batch], names: Names) -> Evaluation:
        """Evaluate minibatches, and leave the gradients in the parameters of the module."""
        if self.compiled is None:
            return self._evaluate(self, minibatches, names)
        try:
            return self._evaluate(self.compiled, minibatches, names)
        except Exception as error:
            failed = error
        # If the plugin itself is wrong, torch raises what it raises.
        result = self._evaluate(self, minibatches, names)
        self.compiled = None
        self.name, self.reason = "torch", warn_uncompiled(self._member, failed)
        return result

    def get_state(self) -> dict[str, Any]:
        """Nothing but what it is, and why."""
        return {"name": self.name, "reason": self.reason}

    def _evaluate(
        self, computes: TorchEngine | CompiledStep, minibatches: Sequence[Batch], names: Names
    ) -> Evaluation:
        for param in self._params:
            param.grad = None
        self._terms = {}
        loss, backward, shared = computes.loss, computes.backward, bool(self._member.shared)
        result = evaluate_minibatches(loss, backward, minibatches, names, has_shared=shared)
        if not self._by_term:
            return result
        total = summed(list(self._terms.values()))
        params = [self._member.named[name] for name in total]
        add_gradients(params, list(total.values()), 1.0)
        return result._replace(terms=self._terms)

    def loss(self, batch: Batch, names: Names) -> MinibatchLoss | None:
        """The losses of all plugins."""
        with self._precision.autocast():
            return self._losses(self._member, batch, names)

    def backward(self, loss: MinibatchLoss, moved: Names, weight: float) -> None:
        """Add the gradients of a loss to those of earlier minibatches."""
        member, own = self._member, loss.own
        if not self._by_term and own is None and len(moved) == len(member.optimizers):
            total = self._precision.scaled(loss.total)
            start = None if weight == 1.0 else torch.full_like(total, weight)
            torch.autograd.backward(total, start)
            return
        # Several losses have a graph in common: each with the parameters it moves.
        passes: list[tuple[str, Tensor, list[nn.Parameter]]] = []
        optimizers = [optimizer for optimizer in member.optimizers if optimizer.name in moved]
        if self._by_term:
            if not self._checked:
                _check_terms(loss, member)
                self._checked = True
            everything = [param for optimizer in optimizers for param in optimizer.params]
            everything += member.shared_params
            passes += [(term, value, everything) for term, value in loss.terms.items()]
            own = loss.named
        elif member.shared:
            passes.append(("", loss.total, member.shared_params))
        for optimizer in optimizers:
            value = loss.total if own is None else own.get(optimizer.name)
            if value is not None:
                passes.append((optimizer.name, value, optimizer.params))
        passes = [each for each in passes if each[1].requires_grad]
        names = {id(param): name for name, param in member.named.items()}
        for left, (label, value, params) in zip(reversed(range(len(passes))), passes, strict=True):
            gradients = torch.autograd.grad(
                self._precision.scaled(value), params, allow_unused=True, retain_graph=left > 0
            )
            if not self._by_term:
                add_gradients(params, gradients, weight)
                continue
            pairs = zip(params, gradients, strict=True)
            found = {names[id(param)]: one * weight for param, one in pairs if one is not None}
            if found:
                self._terms[label] = summed([self._terms.get(label, {}), found])


def balance_terms(result: Evaluation, member: Member, limit: float) -> None:
    """Put gradients into the parameters in which every term weighs the same."""
    total, norms = balanced(result.terms, limit)
    for name, gradient in total.items():
        member.named[name].grad = like_parameter(gradient, member.named[name])
    for term, norm in norms.items():
        result.told[f"grad_norm_of/{term}"] = norm


def call_gradient_hooks(
    calls: HookCalls,
    learner: LearnerView,
    member: Member,
    params: Sequence[nn.Parameter],
    result: Evaluation,
) -> None:
    """Let plugins change the gradients of these parameters.

    The algorithm sees its own parameters, add-ons see all.
    """
    ids = set(map(id, params))
    gradients: dict[str, Tensor] = {}
    for name, param in member.named.items():
        if param.grad is not None and id(param) in ids:
            gradients[name] = param.grad
    for hook in calls.implementations("postprocess_gradients"):
        own = dict(gradients)
        if hook.name == member.algorithm:
            own = {name: own[name] for name in member.names_of(hook.name) if name in own}
        names = set(own)
        calls.call(hook, member.module_id, member.module, own, result.terms, result.told, learner)
        if names != own.keys():
            _refuse_names(hook.name, names, set(own))
        for name, gradient in own.items():
            if gradient is not gradients[name]:
                param = member.named[name]
                here, there = kind_of(gradient), kind_of(param.data)
                if here != there:
                    raise PluginError(
                        f"plugin {hook.name!r} gave {name!r} the gradient {here}, not {there}.",
                        "change the gradient in place, or give a tensor like it",
                    )
                gradients[name] = param.grad = like_parameter(gradient, param)


def _check_terms(loss: MinibatchLoss, member: Member) -> None:
    """Refuse named terms that do not add up to the loss they are said to be parts of."""
    if not loss.terms:
        return
    total = loss.total.detach()
    parts = [*loss.terms.values(), *loss.named.values()]
    terms = torch.stack([value.detach() for value in parts]).sum()
    if torch.isfinite(total) and not torch.isclose(total, terms, rtol=1e-3, atol=1e-5):
        raise PluginError(
            f"the terms of the loss of module {member.module_id!r} add up to {float(terms):g}, "
            f"the loss is {float(total):g}: gradients by term would not be those of the loss.",
            f"terms: {', '.join(loss.terms)}; give each with its weight, and all of them",
        )


def _refuse_names(plugin: str, shown: set[str], left: set[str]) -> None:
    """Refuse gradients that a hook took away or added."""
    name = min(shown ^ left)
    problem = f"gave a gradient to {name!r}, which it was not shown"
    if name in shown:
        problem = f"let the gradient of {name!r} vanish"
    raise PluginError(
        f"plugin {plugin!r} {problem}.",
        f"change the gradients that it is shown: {', '.join(sorted(shown)) or 'none'}",
    )
