"""Gradients in torch: in one pass, compiled, per optimizer or per term; and gradient hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.errors import PluginError
from rlplug.hooks.calls import HookCalls
from rlplug.learner.arguments import is_gradient_of
from rlplug.learner.device import Precision
from rlplug.learner.losses import LossHooks, MinibatchLoss, acting_on
from rlplug.learner.member import Member
from rlplug.learner.module_update import ModuleUpdate, Prepare
from rlplug.optim.clipping import added, balanced, summed
from rlplug.plugin import LearnerView

__all__ = [
    "GradientHooks",
    "TermGradients",
    "Terms",
    "TorchEngine",
    "add_gradients",
    "like_parameter",
]

Terms: TypeAlias = dict[str, dict[str, Tensor]]
"""Gradients by term of the loss and name of the parameter."""


class TorchEngine:
    """Losses in torch, gradients by autograd; `forward`, if given, stands for `forward_train`."""

    name = "torch"

    def __init__(
        self,
        losses: LossHooks,
        precision: Precision,
        terms: TermGradients,
        forward: Callable[[Batch], Any] | None = None,
    ) -> None:
        self._losses = losses
        self._precision = precision
        self._terms = terms
        self._forward = forward
        if forward is not None:
            self.name = "compiled model"

    def prepare(self, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` on tensors."""
        return prepare(batch)

    def gradients(self, group: Sequence[ModuleUpdate]) -> None:
        """Leave the gradients of the modules' minibatches in their parameters."""
        for update in group:
            self._terms.clear(update)
            if update.flat_gradients is not None:
                update.clear_gradients()
            for batch, weight in zip(update.minibatches, update.weights, strict=True):
                names = update.ready_names
                with self._precision.autocast():
                    out = None if self._forward is None else self._forward(batch)
                    loss = self._losses(update.member, batch, names, fwd_out=out)
                total = None if loss is None else loss.total.detach()
                if update.note(loss, total, batch, weight):
                    assert loss is not None
                    self._backward(update, loss, weight)
                if update.stopped:
                    break

    def _backward(self, update: ModuleUpdate, loss: MinibatchLoss, weight: float) -> None:
        if self._terms.wanted:
            self._terms.take(update, loss, self._precision, weight)
        elif loss.mapped or len(update.ready) < len(update.cycle.optimizers):
            _per_optimizer(update, loss, self._precision, weight)
        else:
            total = self._precision.scaled(loss.total)
            torch.autograd.backward(
                total, None if weight == 1.0 else torch.full_like(total, weight)
            )


class TermGradients:
    """Gradients of each term of the loss, where a hook or their balance wants them."""

    def __init__(self, *, wanted: bool, balance: bool, limit: float) -> None:
        self.wanted = wanted or balance
        self._balance = balance
        self._limit = limit
        self._terms: dict[str, Terms] = {}
        """Module id → term → parameter name → gradient."""
        self._checked: set[str] = set()

    def clear(self, update: ModuleUpdate) -> None:
        """Forget those of a module's last evaluation."""
        if self.wanted:
            self._terms[update.member.module_id] = {}

    def of(self, module_id: str) -> Mapping[str, Mapping[str, Tensor]]:
        """The gradients of a module's terms in this step."""
        return self._terms.get(module_id, {})

    def take(
        self, update: ModuleUpdate, loss: MinibatchLoss, precision: Precision, weight: float
    ) -> None:
        """One pass per term; their sum goes into the parameters."""
        member = update.member
        if member.module_id not in self._checked:
            _check_terms(loss, member)
            self._checked.add(member.module_id)
        found = _per_term(update, loss, precision)
        known = self._terms[member.module_id]
        for term, gradients in found.items():
            own = known.setdefault(term, {})
            for name, gradient in gradients.items():
                weighted = gradient if weight == 1.0 else gradient * weight
                own[name] = added(own[name], weighted) if name in own else weighted
        total = summed(list(found.values()))
        add_gradients([member.named[name] for name in total], list(total.values()), weight)

    def finish(
        self,
        update: ModuleUpdate,
        factor: float | Tensor,
        average: Callable[[Terms, Mapping[str, Tensor]], Terms],
    ) -> None:
        """Unscale and average as the whole gradient was; balance if asked for."""
        module_id = update.member.module_id
        scaled = {
            term: {name: gradient * factor for name, gradient in gradients.items()}
            for term, gradients in self.of(module_id).items()
        }
        terms = self._terms[module_id] = average(scaled, update.member.named)
        if self._balance and terms:
            total, norms = balanced(terms, self._limit)
            for name, gradient in total.items():
                param = update.member.named[name]
                param.grad = like_parameter(gradient, param)
            for term, norm in norms.items():
                update.metrics[f"grad_norm_of/{term}"] = norm


class GradientHooks:
    """Calls `postprocess_gradients`: the algorithm sees its own parameters, add-ons see all."""

    def __init__(self, calls: HookCalls, learner: LearnerView) -> None:
        self.used = calls.implements("postprocess_gradients")
        self._calls = calls
        self._learner = learner
        """Only handed on to hooks."""

    def __call__(self, update: ModuleUpdate, terms: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Let plugins change the gradients of what acts."""
        member = update.member
        params = {id(param) for one in update.acting for param in one.params}
        gradients = {
            name: param.grad
            for name, param in member.named.items()
            if param.grad is not None and id(param) in params
        }
        handed: list[tuple[str, set[str], MutableMapping[str, Tensor]]] = []

        def take_back() -> None:
            while handed:
                plugin, names, view = handed.pop()
                _check_view(plugin, names, view, member)
                gradients.update(view)

        def hand(plugin: str) -> MutableMapping[str, Tensor]:
            take_back()
            own = plugin == member.algorithm
            view = {n: g for n, g in gradients.items() if not own or member.owners[n] == plugin}
            handed.append((plugin, set(view), view))
            return view

        self._calls.postprocess_gradients(
            member.module_id, member.module, hand, terms, update.metrics, self._learner
        )
        take_back()
        for name, gradient in gradients.items():
            member.named[name].grad = like_parameter(gradient, member.named[name])


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
        param.grad = like_parameter(gradient if before is None else added(before, gradient), param)


def like_parameter(gradient: Tensor, param: nn.Parameter) -> Tensor:
    """The gradient with the strides of its parameter.

    Fused optimizers walk through both as they lie, and `autograd.grad` gives transposed ones.
    Sparse ones have no strides.
    """
    if gradient.is_sparse or gradient.stride() == param.stride():
        return gradient
    return torch.empty_like(param, requires_grad=False).copy_(gradient)


def _per_optimizer(
    update: ModuleUpdate, loss: MinibatchLoss, precision: Precision, weight: float
) -> None:
    """One pass per optimizer over its own parameters, and one over those that modules share."""
    passes: list[tuple[Tensor, Sequence[nn.Parameter]]] = []
    for one in acting_on(update.ready, loss):
        own = loss.for_optimizer(one.name)
        if own is not None and own.requires_grad:
            passes.append((own, one.params))
    if shared := update.member.shared_params:
        passes.append((loss.total, shared))
    for index, (value, params) in enumerate(passes):
        retain = index < len(passes) - 1
        add_gradients(params, _autograd(value, params, precision, retain=retain), weight)


def _per_term(
    update: ModuleUpdate, loss: MinibatchLoss, precision: Precision
) -> dict[str, dict[str, Tensor]]:
    """One pass per term of the loss: term → parameter name → gradient."""
    member = update.member
    names = {id(param): name for name, param in member.named.items()}
    acting = acting_on(update.ready, loss)
    everything = [param for one in acting for param in one.params] + member.shared_params
    passes: list[tuple[str, Tensor, Sequence[nn.Parameter]]] = [
        (term, value, everything) for term, value in loss.terms.items() if value.requires_grad
    ]
    for one in acting:
        if one.name in loss.named:
            passes.append((one.name, loss.named[one.name], one.params))
    terms: dict[str, dict[str, Tensor]] = {}
    for index, (term, value, params) in enumerate(passes):
        gradients = _autograd(value, params, precision, retain=index < len(passes) - 1)
        found = {
            names[id(param)]: gradient
            for param, gradient in zip(params, gradients, strict=True)
            if gradient is not None
        }
        if found:
            terms[term] = found
    return terms


def _autograd(
    loss: Tensor, params: Sequence[nn.Parameter], precision: Precision, *, retain: bool
) -> Sequence[Tensor | None]:
    return torch.autograd.grad(
        precision.scaled(loss), params, allow_unused=True, retain_graph=retain
    )


def _check_terms(loss: MinibatchLoss, member: Member) -> None:
    """Refuse named terms that do not add up to the loss they are said to be parts of."""
    if not loss.common:
        return
    total = torch.stack([value.detach() for value in loss.common]).sum()
    terms = torch.stack([value.detach() for value in loss.terms.values()]).sum()
    if torch.isfinite(total) and not torch.isclose(total, terms, rtol=1e-3, atol=1e-5):
        raise PluginError(
            f"the terms of the loss of module {member.module_id!r} add up to {float(terms):g}, "
            f"the loss is {float(total):g}: gradients by term would not be those of the loss.",
            f"terms: {', '.join(loss.terms)}; give each with its weight, and all of them",
        )


def _check_view(plugin: str, names: set[str], view: Mapping[str, Any], member: Member) -> None:
    """Refuse gradients that vanished from a plugin's mapping or appeared in it, or are none."""
    if lost := sorted(names - set(view)):
        raise PluginError(
            f"plugin {plugin!r} let the gradient of {lost[0]!r} vanish "
            f"({len(lost)} of {len(names)}).",
            "set a gradient to zero to keep a parameter where it is",
        )
    if foreign := sorted(set(view) - names):
        raise PluginError(
            f"plugin {plugin!r} gave a gradient to {foreign[0]!r}, which it was not shown.",
            f"it was shown: {', '.join(sorted(names)) or 'none'}",
        )
    for name, gradient in view.items():
        param = member.named[name]
        if not is_gradient_of(gradient, param):
            raise PluginError(
                f"plugin {plugin!r} gave {name!r} the gradient {_kind(gradient)}, "
                f"not {_kind(param)}.",
                "change the gradient in place, or give a tensor like it",
            )


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
