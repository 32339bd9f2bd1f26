"""Take gradients that a plugin knows, with as little work as possible where they come again."""

from __future__ import annotations

from collections.abc import Mapping
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
        self._copies = copies
        """Whether somebody sees gradients who may keep them."""
        self._last: Gradients | None = None
        self._params: list[nn.Parameter] = []
        self._tensors: list[Tensor] = []
        self.together: Gradients | None = None
        """All that was taken since the last step, where it lies side by side."""

    def take(self, found: Mapping[str, Tensor], weight: float) -> None:
        """Add them to what earlier minibatches of the same step left."""
        fresh = weight == 1.0 and all(param.grad is None for param in self._params)
        if fresh and self.hold(found):
            return
        params, gradients = fitted(found, self._named)
        self._last = None
        if isinstance(found, Gradients):
            if not self._copies and len(params) == len(found) and _lie_alike(params, gradients):
                self._last, self._params, self._tensors = found, params, gradients
            if weight == 1.0:
                gradients = [one.clone() for one in gradients]
        deliver(params, gradients, weight)

    @property
    def may_hold(self) -> bool:
        """Whether there were gradients that can be taken as they are when they come again."""
        return self._last is not None

    def hold(self, found: Mapping[str, Tensor]) -> bool:
        """Let parameters have these instead of what they had; False if they were never taken."""
        if (
            found is not self._last
            or len(found) != len(self._tensors)
            or not all(map(is_, found.values(), self._tensors))
            or not all(map(_is_trained, self._params))
        ):
            return False
        for param, gradient in zip(self._params, self._tensors, strict=True):
            if param.grad is not gradient:
                param.grad = gradient
        self.together = self._last
        return True


_is_trained = attrgetter("requires_grad")


def _lie_alike(params: list[nn.Parameter], gradients: list[Tensor]) -> bool:
    pairs = zip(params, gradients, strict=True)
    return all(param.stride() == gradient.stride() for param, gradient in pairs)
