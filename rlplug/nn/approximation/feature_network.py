"""Features that several heads share, moved once by the gradients of all of them."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from rlplug.errors import RequestError
from rlplug.nn.approximation.approximation import Approximation

__all__ = ["FeatureNetwork"]

FeatureNetworkT = TypeVar("FeatureNetworkT", bound="FeatureNetwork")


class FeatureNetwork(Approximation):
    """A network whose output is cut from its graph, so that heads learn without moving it.

    Their gradients gather at the cut; `reinforce()`, without a loss, pushes them through the
    network once and makes one step.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._cuts: list[tuple[Tensor, Tensor]] = []

    def __call__(self, *inputs: Any) -> Tensor:
        """The features, cut from their graph; gradients that reach them are kept."""
        features: Tensor = self.model(*inputs)
        cut = features.detach().requires_grad_()
        if features.requires_grad:
            self._cuts.append((features, cut))
        return cut

    def reinforce(self: FeatureNetworkT, loss: Tensor | None = None) -> FeatureNetworkT:
        """Push what the heads sent back through the network, once, and make one step."""
        if loss is not None:
            raise RequestError(
                f"feature network {self.name!r} was given a loss of its own.",
                "try: reinforce the heads with their losses, then features.reinforce()",
            )
        cuts, self._cuts = self._cuts, []
        reached = [(features, cut.grad) for features, cut in cuts if cut.grad is not None]
        if not reached:
            raise RequestError(
                f"no head sent gradients back to feature network {self.name!r}.",
                "try: reinforce a head on features(observations) before features.reinforce()",
            )
        gradients = [gradient * self._loss_scaling for _, gradient in reached]
        torch.autograd.backward([features for features, _ in reached], gradients)
        return self.step()

    def zero_grad(self: FeatureNetworkT) -> FeatureNetworkT:
        """Forget the gradients that have gathered, at the cuts too."""
        self._cuts.clear()
        return super().zero_grad()
