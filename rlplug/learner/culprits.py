"""Name the loss terms whose numbers or gradients are not finite."""

from __future__ import annotations

import torch

from rlplug.learner.losses import Combined
from rlplug.learner.member import Member

__all__ = ["culprits"]


def culprits(combined: Combined, member: Member) -> list[str]:
    """One line per term that is not finite, or whose gradient of some parameter is not."""
    params = {name: param for name, param in member.named.items() if param.requires_grad}
    lines = []
    for term, loss in {**combined.parts, **combined.named}.items():
        if not torch.isfinite(loss):
            lines.append(f"loss term {term!r} is {float(loss.detach())}")
            continue
        if not loss.requires_grad:
            continue
        gradients = torch.autograd.grad(
            loss, list(params.values()), allow_unused=True, retain_graph=True
        )
        for name, gradient in zip(params, gradients, strict=True):
            if gradient is not None and not bool(torch.isfinite(gradient).all()):
                lines.append(f"loss term {term!r} is finite, its gradient of {name!r} is not")
                break
    return lines
