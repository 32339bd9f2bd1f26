"""Take gradients that a plugin knows, with as little work as possible where they come again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter, is_

from torch import Tensor, nn

from rlplug.learner.gradients import deliver
from rlplug.learner.member import Member
from rlplug.losses import fitted
from rlplug.nn.closed import Gradients

__all__ = ["KnownGradients"]


class KnownGradients:
    """Hands the gradients of a `KnownLoss` to the parameters of one module."""

    def __init__(self, member: Member, *, copies: bool) -> None:
        self._named = member.named
        self._moved = member.optimizers[0].params if len(member.optimizers) == 1 else []
        self._copies = copies
        """Whether somebody sees gradients who may keep them."""
        self._last: Gradients | None = None
        self._params: list[nn.Parameter] = []
        self._tensors: list[Tensor] = []
        self.in_order: list[Tensor] = []
        """Those that come again, as their optimizer has its parameters; empty if some do not."""
        self.together: Gradients | None = None
        """All that was taken since the last step, where it lies side by side."""

    def take(self, found: Mapping[str, Tensor], weight: float) -> None:
        """Add them to what earlier minibatches of the same step left."""
        fresh = weight == 1.0 and all(param.grad is None for param in self._params)
        if fresh and self.hold(found):
            return
        params, gradients = fitted(found, self._named)
        self._last, self.in_order = None, []
        if isinstance(found, Gradients):
            if not self._copies and len(params) == len(found) and _lie_alike(params, gradients):
                self._last, self._params, self._tensors = found, params, gradients
                self.in_order = _ordered(self._moved, params, gradients)
            if weight == 1.0:
                gradients = [one.clone() for one in gradients]
        deliver(params, gradients, weight)

    def hold(self, found: Mapping[str, Tensor]) -> bool:
        """Let parameters have these instead of what they had; False if they were never taken."""
        if (
            found is not self._last
            or len(found) != len(self._tensors)
            or not all(map(is_, found.values(), self._tensors))
            or not all(map(_is_trained, self._params))
        ):
            return False
        if not all(map(is_, map(_gradient, self._params), self._tensors)):
            for param, gradient in zip(self._params, self._tensors, strict=True):
                param.grad = gradient
        self.together = self._last
        return True


_is_trained = attrgetter("requires_grad")
_gradient = attrgetter("grad")


def _lie_alike(params: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
    pairs = zip(params, gradients, strict=True)
    return all(param.stride() == gradient.stride() for param, gradient in pairs)


def _ordered(
    moved: Sequence[Tensor], params: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """The gradients in the order of the moved; none unless these are exactly the parameters."""
    by_param = {id(param): gradient for param, gradient in zip(params, gradients, strict=True)}
    if by_param.keys() != {id(param) for param in moved}:
        return []
    return [by_param[id(param)] for param in moved]
