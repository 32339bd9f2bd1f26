"""Notices that training diverged: weights that are not finite, or that nothing moves any more."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.errors import RunFailedError
from rlplug.learner import Learner

__all__ = ["Divergence", "nonfinite_weights"]

_LOG = logging.getLogger("rlplug")

_STILL_UPDATES = 100
"""Single minibatches may overflow; a hundred in a row are no accident. The help of
`learner.on_divergence` names it."""

_ADVICE = (
    "try: a lower learning_rate, --set learner.max_grad_norm=0.5, or other rewards; "
    "--set learner.nonfinite=stop names the loss term of the first gradient that is not finite"
)


class Divergence:
    """Carries out `learner.on_divergence`: warn once, or end the run as failed."""

    def __init__(self, learner: Learner, on_divergence: str) -> None:
        self.nonfinite_step: int | None = None
        """The first step at which weights were found not to be finite."""
        self._learner, self._stops = learner, on_divergence == "stop"
        # Such as the bounds of an unbounded space, or a mask of -inf.
        self._constants = nonfinite_weights(learner)
        self._checked = -1
        self._sums: list[float] = []
        """The sums of all weights when they were last looked at."""
        self._still_since: tuple[int, list[float]] | None = None
        """The update since which gradients were not finite, and the sums of the weights then."""
        self._warned = False

    def check(self, step: int) -> None:
        """Look at the weights and at the last update; raise to end the run."""
        said = ""
        if not self.finite_at(step):
            said = f"weights are not finite from step {self.nonfinite_step:,} on"
        elif (still := self._still_updates()) >= _STILL_UPDATES:
            said = f"gradients were not finite and no weight moved for {still:,} updates"
        if said and self._stops:
            terms = _nonfinite_terms(self._learner)
            raise RunFailedError(f"training diverged: {said}{terms}.", _ADVICE)
        if said:
            self._warn(said)

    def finite_at(self, step: int) -> bool:
        """Whether all weights are finite; warns once if they no longer are."""
        if self.nonfinite_step is None and step != self._checked:
            self._checked = step
            # A sum takes one pass and no memory, but large weights alone may make it overflow.
            sums = [float(tensor.detach().sum()) for _, tensor in _tensors(self._learner)]
            self._sums = sums
            if not all(map(math.isfinite, sums)):
                names = nonfinite_weights(self._learner) - self._constants
                if names:
                    self.nonfinite_step = step
                    self._warn(f"weights are not finite from step {step:,} on: {min(names)}")
        return self.nonfinite_step is None

    def _still_updates(self) -> int:
        """Updates without a finite gradient in which no weight has moved."""
        updates = self._learner.updates
        nonfinite = any(
            float(module.metrics.get("nonfinite", 0.0)) for module in self._learner.trained.values()
        )
        if not nonfinite:
            self._still_since = None
        elif self._still_since is None or self._still_since[1] != self._sums:
            self._still_since = updates - 1, self._sums
        return 0 if self._still_since is None else updates - self._still_since[0]

    def _warn(self, said: str) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("rlplug: %s%s. %s.", said, _nonfinite_terms(self._learner), _ADVICE)

    def get_state(self) -> dict[str, Any]:
        """State for checkpoints."""
        still = None if self._still_since is None else list(self._still_since)
        return {"step": self.nonfinite_step, "still": still, "warned": self._warned}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.nonfinite_step, self._warned = saved["step"], saved["warned"]
        self._still_since = (
            None if saved["still"] is None else (saved["still"][0], saved["still"][1])
        )


def nonfinite_weights(learner: Learner) -> set[str]:
    """The parameters and buffers that are not finite, `NAME of module MODULE`."""
    return {name for name, tensor in _tensors(learner) if not torch.isfinite(tensor).all()}


def _tensors(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """Those of modules and of what plugins keep beside them."""
    for module_id, module in learner.modules.items():
        parts: dict[str, nn.Module] = {"": module, **learner.extra.get(module_id, {})}
        for plugin, part in parts.items():
            for named in (part.named_parameters(plugin), part.named_buffers(plugin)):
                for name, tensor in named:
                    yield f"{name} of module {module_id!r}", tensor


def _nonfinite_terms(learner: Learner) -> str:
    """The metrics of the last update that are not finite, the loss and its terms first."""
    names = {
        name
        for module in learner.trained.values()
        for name, value in module.metrics.items()
        if not math.isfinite(float(value))
    }
    ordered = sorted(names, key=lambda name: (not name.startswith("loss"), name))
    return f"; not finite in the last update: {', '.join(ordered)}" if names else ""
