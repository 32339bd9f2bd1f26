"""Take the gradients of one minibatch's losses into `.grad`, before any optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rlplug.errors import PluginError
from rlplug.learner.losses import Combined
from rlplug.learner.member import Member
from rlplug.learner.optimizers import Registered
from rlplug.learner.precision import Precision

__all__ = [
    "add_terms",
    "check_terms",
    "deliver",
    "laid_out",
    "take_by_term",
    "take_separately",
    "take_whole",
]


def take_whole(total: Tensor, precision: Precision, weight: float) -> None:
    """One backward pass for everything that acts."""
    loss = precision.scaled(total)
    torch.autograd.backward(loss, None if weight == 1.0 else torch.full_like(loss, weight))


def take_separately(
    combined: Combined,
    acting: Sequence[Registered],
    shared: Sequence[nn.Parameter],
    precision: Precision,
    weight: float,
) -> None:
    """One pass per optimizer over its own parameters, and one over those that modules share."""
    passes: list[tuple[Tensor, Sequence[nn.Parameter]]] = []
    for one in acting:
        loss = combined.for_optimizer(one.name)
        if loss is not None and loss.requires_grad:
            passes.append((loss, one.params))
    if shared:
        passes.append((combined.total, shared))
    for index, (loss, params) in enumerate(passes):
        gradients = torch.autograd.grad(
            precision.scaled(loss), params, allow_unused=True, retain_graph=index < len(passes) - 1
        )
        deliver(params, gradients, weight)


def take_by_term(
    combined: Combined,
    acting: Sequence[Registered],
    member: Member,
    precision: Precision,
) -> dict[str, dict[str, Tensor]]:
    """One pass per term of the loss: term → parameter name → gradient."""
    names = {id(param): name for name, param in member.named.items()}
    everything = [param for one in acting for param in one.params]
    everything += [param for param in member.named.values() if id(param) in member.shared]
    passes: list[tuple[str, Tensor, Sequence[nn.Parameter]]] = [
        (term, loss, everything) for term, loss in combined.parts.items() if loss.requires_grad
    ]
    for one in acting:
        if one.name in combined.named:
            passes.append((one.name, combined.named[one.name], one.params))
    terms: dict[str, dict[str, Tensor]] = {}
    for index, (term, loss, params) in enumerate(passes):
        gradients = torch.autograd.grad(
            precision.scaled(loss), params, allow_unused=True, retain_graph=index < len(passes) - 1
        )
        terms[term] = {
            names[id(param)]: gradient
            for param, gradient in zip(params, gradients, strict=True)
            if gradient is not None
        }
    return {term: found for term, found in terms.items() if found}


def deliver(
    params: Sequence[nn.Parameter], gradients: Sequence[Tensor | None], weight: float
) -> None:
    """Add gradients to what earlier minibatches of the same step left."""
    for param, gradient in zip(params, gradients, strict=True):
        if gradient is None:
            continue
        if weight != 1.0:
            gradient = gradient * weight
        before = param.grad
        param.grad = laid_out(gradient if before is None else before + gradient, param)


def laid_out(gradient: Tensor, param: nn.Parameter) -> Tensor:
    """The gradient in memory as its parameter is.

    Fused optimizers walk through both as they lie, and `autograd.grad` gives transposed ones.
    """
    if gradient.stride() == param.stride():
        return gradient
    return torch.empty_like(param, requires_grad=False).copy_(gradient)


def check_terms(combined: Combined, member: Member) -> None:
    """Refuse named terms that do not add up to the loss they are said to be parts of."""
    if not combined.common:
        return
    total = torch.stack([value.detach() for value in combined.common]).sum()
    terms = torch.stack([value.detach() for value in combined.parts.values()]).sum()
    if torch.isfinite(total) and not torch.isclose(total, terms, rtol=1e-3, atol=1e-5):
        raise PluginError(
            f"the terms of the loss of module {member.module_id!r} add up to {float(terms):g}, "
            f"the loss is {float(total):g}: gradients by term would not be those of the loss.",
            f"terms: {', '.join(combined.parts)}; give each with its weight, and all of them",
        )


def add_terms(
    known: dict[str, dict[str, Tensor]],
    more: Mapping[str, Mapping[str, Tensor]],
    weight: float,
) -> None:
    """Add one minibatch's gradients by term to those of the same step."""
    for term, gradients in more.items():
        mine = known.setdefault(term, {})
        for name, gradient in gradients.items():
            weighted = gradient if weight == 1.0 else gradient * weight
            mine[name] = mine[name] + weighted if name in mine else weighted
