"""What each plugin of a run costs and changes: seconds of its hooks, norms of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HookTrace"]

EVERY = 64
"""Gradients are measured in one of so many steps, as it takes about as long as a small layer."""


class HookTrace:
    """Sums between two reports, by plugin.

    Seconds are those of the process: on other devices than the CPU, hooks return before what they
    started is done.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = {}
        self._steps: dict[str, int] = {}
        self._norms: dict[str, list[Tensor]] = {}

    def seconds_of(self, plugin: str, hook: str) -> list[float]:
        """The one number to which the seconds of a plugin's hook are added."""
        return self._seconds.setdefault((plugin, hook), [0.0])

    def of_step(self, plugin: str) -> HookTrace | None:
        """Itself if the gradients of a plugin are to be measured in this step."""
        steps = self._steps[plugin] = self._steps.get(plugin, -1) + 1
        return None if steps % EVERY else self

    def measure(self, plugin: str, when: str, gradients: Mapping[str, Tensor]) -> None:
        """Keep the norm of what `postprocess_gradients` was given, or has left."""
        self._norms.setdefault(f"{plugin}/grad_norm_{when}", []).append(_norm(gradients))

    def take(self) -> dict[str, float]:
        """The metrics since the last call, `hooks/PLUGIN/…`; seconds only of what was called."""
        metrics: dict[str, float] = {}
        for (plugin, hook), seconds in self._seconds.items():
            if seconds[0]:
                metrics[f"hooks/{plugin}/{hook}_seconds"] = seconds[0]
                whole = f"hooks/{plugin}/seconds"
                metrics[whole] = metrics.get(whole, 0.0) + seconds[0]
                seconds[0] = 0.0
        for name, norms in self._norms.items():
            metrics[f"hooks/{name}"] = sum(map(float, norms)) / len(norms)
        self._norms.clear()
        return metrics


def _norm(gradients: Mapping[str, Tensor]) -> Tensor:
    import torch

    tensors = [one.detach() for one in gradients.values()]
    if not tensors:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
    return norm
