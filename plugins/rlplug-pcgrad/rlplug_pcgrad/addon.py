"""PCGrad: its hook."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from rlplug import AddOn, LearnerView, hookimpl
from rlplug_pcgrad.surgery import flat, projected_sum

__all__ = ["PCGrad"]


class PCGrad(AddOn):
    """Removes from each term's gradient its part against those of other terms."""

    @hookimpl
    def postprocess_gradients(
        self,
        module_id: str,
        gradients: MutableMapping[str, Tensor],
        term_gradients: Mapping[str, Mapping[str, Tensor]],
        metrics: MutableMapping[str, Any],
        learner: LearnerView,
    ) -> None:
        """Replaces the sum of the terms' gradients by the sum of the projected ones."""
        if len(term_gradients) < 2:
            return
        terms = torch.stack([flat(own, gradients) for own in term_gradients.values()])
        generator = learner.generator(module_id)
        order = [
            torch.randperm(len(terms), generator=generator, device=generator.device).tolist()
            for _ in terms
        ]
        total, metrics["pcgrad_conflicts"] = projected_sum(terms, order)
        # What other plugins added to the gradients stays.
        change = total - terms.sum(0)
        start = 0
        for gradient in gradients.values():
            stop = start + gradient.numel()
            gradient.add_(change[start:stop].view(gradient.shape))
            start = stop
