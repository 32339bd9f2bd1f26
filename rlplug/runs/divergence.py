"""Notices when training diverged: weights that are not finite, or that nothing moves any more."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlplug.errors import RunFailedError
from rlplug.runs.weights import WeightCheck

if TYPE_CHECKING:
    from rlplug.learner import Learner

__all__ = ["Divergence"]

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

    def __init__(self, learner: Learner, weights: WeightCheck, on_divergence: str) -> None:
        self._learner = learner
        self._weights = weights
        self._stops = on_divergence == "stop"
        self._sums: tuple[float, ...] = ()
        self._still_since: int | None = None
        """The update since which gradients were not finite and weights did not move."""
        self._warned = False

    def check(self, step: int) -> None:
        """Look at the weights and at the last update; raise to end the run."""
        if not self._weights.finite_at(step):
            if self._stops:
                raise RunFailedError(
                    f"training diverged: weights are not finite from step "
                    f"{self._weights.nonfinite_step:,} on ({self._weights.nonfinite_name})"
                    f"{self.terms()}.",
                    _ADVICE,
                )
            return
        modules = self._nonfinite_modules()
        updates, sums = self._learner.updates, self._weights.sums
        if not modules:
            self._still_since = None
        elif self._still_since is None or sums != self._sums:
            self._still_since = updates - 1
        self._sums = sums
        if self._still_since is None or updates - self._still_since < _STILL_UPDATES:
            return
        said = (
            f"the gradients of {', '.join(map(repr, modules))} were not finite and no weight moved "
            f"for {updates - self._still_since:,} updates, up to step {step:,}{self.terms()}"
        )
        if self._stops:
            raise RunFailedError(f"training diverged: {said}.", _ADVICE)
        if not self._warned:
            self._warned = True
            _LOG.warning("rlplug: %s. %s.", said, _ADVICE)

    def get_state(self) -> dict[str, Any]:
        """State for checkpoints."""
        return {
            "sums": list(self._sums),
            "still_since": self._still_since,
            "warned": self._warned,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._sums = tuple(saved["sums"])
        self._still_since, self._warned = saved["still_since"], saved["warned"]

    def terms(self) -> str:
        """The metrics of the last update that are not finite, the loss and its terms first."""
        found = [
            (not name.startswith("loss"), name)
            for module in self._learner.trained.values()
            for name, value in module.metrics.items()
            if not math.isfinite(float(value))
        ]
        names = dict.fromkeys(name for _, name in sorted(found))
        return f"; not finite in the last update: {', '.join(names)}" if names else ""

    def _nonfinite_modules(self) -> list[str]:
        return [
            module_id
            for module_id, module in self._learner.trained.items()
            if float(module.metrics.get("nonfinite", 0.0)) > 0
        ]
