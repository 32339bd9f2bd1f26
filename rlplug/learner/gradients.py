"""Gradients in torch: in one pass, per optimizer or per term; gradient hooks; choosing engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.errors import PluginError
from rlplug.hooks.calls import HookCalls
from rlplug.learner.arrays import ArraysEngine
from rlplug.learner.compiled import CompiledStep, compiled_forward, compiled_step, warn_uncompiled
from rlplug.learner.device import Precision, has_convolutions
from rlplug.learner.losses import LossHooks, MinibatchLoss
from rlplug.learner.member import Member
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.learner.step import (
    Engine,
    Evaluation,
    Names,
    Terms,
    add_gradients,
    evaluated,
    like_parameter,
)
from rlplug.optim.clipping import balanced, summed
from rlplug.plugin import LearnerView

__all__ = ["TorchEngine", "balance_terms", "call_gradient_hooks", "choose_engine", "wants_terms"]

_Pass: TypeAlias = "tuple[str, Tensor, Sequence[nn.Parameter]]"
"""A way back: its name, the loss, and the parameters to have gradients of."""


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
    reason = _why_torch(member, precision, compute, terms=terms)
    in_torch = partial(TorchEngine, precision=precision, reason=reason, terms=terms)
    if not reason and not compute.compile:
        return ArraysEngine(member, losses, in_torch, kept)
    engine = in_torch(member, losses)
    if compute.compile and compute.compile_part == "model":
        engine.name, engine.reason = "compiled model", "compute.compile is on"
        engine.forward = compiled_forward(member, compute, precision.device)
    elif not reason:
        engine.compiled = compiled_step(member, losses, precision, compute)
        if engine.compiled is not None:
            engine.name, engine.reason = "compiled", "compute.compile is on"
    return engine


def _why_torch(
    member: Member, precision: Precision, compute: ComputeSection, *, terms: bool
) -> str:
    """Why neither arrays nor a compiled graph can do; empty if one of them can."""
    if compute.compile and not terms:
        return ""
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
    return next((reason for reason, holds in reasons.items() if holds), "")


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
        self.forward: Callable[[Batch], Any] = lambda batch: None
        """Gives what `forward_train` would, where that is compiled."""
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

    def gradients(
        self, minibatches: Sequence[Batch], ready: Sequence[RegisteredOptimizer], names: Names
    ) -> Evaluation:
        """Evaluate minibatches, and leave the gradients in the parameters of the module."""
        if self.compiled is None:
            return self._evaluated(self, minibatches, ready, names)
        try:
            return self._evaluated(self.compiled, minibatches, ready, names)
        except Exception as error:
            failed = error
        # If the plugin itself is wrong, torch raises what it raises.
        result = self._evaluated(self, minibatches, ready, names)
        self.compiled = None
        self.name, self.reason = "torch", warn_uncompiled(self._member, failed)
        return result

    def get_state(self) -> dict[str, Any]:
        """Nothing but what it is, and why."""
        return {"name": self.name, "reason": self.reason}

    def _evaluated(
        self,
        computes: TorchEngine | CompiledStep,
        minibatches: Sequence[Batch],
        ready: Sequence[RegisteredOptimizer],
        names: Names,
    ) -> Evaluation:
        for param in self._params:
            param.grad = None
        self._terms = {}
        loss, backward, shared = computes.loss, computes.backward, bool(self._member.shared)
        result = evaluated(loss, backward, minibatches, ready, names, has_shared=shared)
        if not self._by_term:
            return result
        total = summed(list(self._terms.values()))
        params = [self._member.named[name] for name in total]
        add_gradients(params, list(total.values()), 1.0)
        return result._replace(terms=self._terms)

    def loss(self, batch: Batch, names: Names) -> MinibatchLoss | None:
        """The losses of all plugins."""
        with self._precision.autocast():
            return self._losses(self._member, batch, names, self.forward(batch))

    def backward(
        self, loss: MinibatchLoss, moved: Sequence[RegisteredOptimizer], weight: float
    ) -> None:
        """Add the gradients of a loss to those of earlier minibatches."""
        if self._by_term:
            self._backward_by_term(loss, moved, weight)
        elif loss.own is not None or len(moved) < len(self._member.optimizers):
            passes: list[_Pass] = []
            for optimizer in moved:
                own = loss.total if loss.own is None else loss.own[optimizer.name]
                if own.requires_grad:
                    passes.append((optimizer.name, own, optimizer.params))
            if shared := self._member.shared_params:
                passes.append(("", loss.total, shared))
            for _, params, gradients in self._autograd(passes):
                add_gradients(params, gradients, weight)
        else:
            total = self._precision.scaled(loss.total)
            start = None if weight == 1.0 else torch.full_like(total, weight)
            torch.autograd.backward(total, start)

    def _backward_by_term(
        self, loss: MinibatchLoss, moved: Sequence[RegisteredOptimizer], weight: float
    ) -> None:
        """One pass per term."""
        member = self._member
        if not self._checked:
            _check_terms(loss, member)
            self._checked = True
        names = {id(param): name for name, param in member.named.items()}
        everything = [param for optimizer in moved for param in optimizer.params]
        everything += member.shared_params
        passes: list[_Pass] = [
            (term, value, everything) for term, value in loss.terms.items() if value.requires_grad
        ]
        for optimizer in moved:
            if optimizer.name in loss.named:
                passes.append((optimizer.name, loss.named[optimizer.name], optimizer.params))
        for term, params, gradients in self._autograd(passes):
            pairs = zip(params, gradients, strict=True)
            own = {names[id(param)]: one * weight for param, one in pairs if one is not None}
            if own:
                self._terms[term] = summed([self._terms.get(term, {}), own])

    def _autograd(
        self, passes: Sequence[_Pass]
    ) -> Iterator[tuple[str, Sequence[nn.Parameter], Sequence[Tensor | None]]]:
        """The gradients of several losses that have a graph in common."""
        for left, (name, loss, params) in zip(reversed(range(len(passes))), passes, strict=True):
            scaled = self._precision.scaled(loss)
            gradients = torch.autograd.grad(
                scaled, params, allow_unused=True, retain_graph=left > 0
            )
            yield name, params, gradients


def balance_terms(result: Evaluation, member: Member, limit: float) -> None:
    """Put gradients into the parameters in which every term weighs the same."""
    total, norms = balanced(result.terms, limit)
    for name, gradient in total.items():
        member.named[name].grad = like_parameter(gradient, member.named[name])
    for term, norm in norms.items():
        result.told[f"grad_norm_of/{term}"] = norm


def call_gradient_hooks(
    calls: HookCalls, learner: LearnerView, member: Member, result: Evaluation
) -> None:
    """Let plugins change the gradients of what acts.

    The algorithm sees its own parameters, add-ons see all.
    """
    params = {id(param) for optimizer in result.acting for param in optimizer.params}
    gradients = {
        name: param.grad
        for name, param in member.named.items()
        if param.grad is not None and id(param) in params
    }
    handed: list[tuple[str, set[str], MutableMapping[str, Tensor]]] = []

    def hand(plugin: str) -> MutableMapping[str, Tensor]:
        """What this plugin may change, after what the plugin before it has changed."""
        while handed:
            _check_view(*handed[0], member)
            gradients.update(handed.pop()[2])
        own = plugin == member.algorithm
        view = {n: g for n, g in gradients.items() if not own or member.owners[n] == plugin}
        handed.append((plugin, set(view), view))
        return view

    calls.postprocess_gradients(
        member.module_id, member.module, hand, result.terms, result.told, learner
    )
    hand("")
    for name, gradient in gradients.items():
        member.named[name].grad = like_parameter(gradient, member.named[name])


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


def _check_view(plugin: str, names: set[str], view: Mapping[str, Any], member: Member) -> None:
    """Refuse gradients that vanished from a plugin's mapping or appeared in it, or are none."""
    for name in sorted(names ^ set(view)):
        if name in names:
            problem = f"let the gradient of {name!r} vanish"
            hint = "set a gradient to zero to keep a parameter where it is"
        else:
            problem = f"gave a gradient to {name!r}, which it was not shown"
            hint = f"it was shown: {', '.join(sorted(names)) or 'none'}"
        raise PluginError(f"plugin {plugin!r} {problem}.", hint)
    for name, gradient in view.items():
        param = member.named[name]
        is_tensor = isinstance(gradient, Tensor)
        if not is_tensor or (gradient.shape, gradient.dtype) != (param.shape, param.dtype):
            raise PluginError(
                f"plugin {plugin!r} gave {name!r} the gradient {_kind(gradient)}, "
                f"not {_kind(param)}.",
                "change the gradient in place, or give a tensor like it",
            )


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
