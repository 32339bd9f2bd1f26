"""What each plugin of a run costs and changes: seconds of its hooks, norms of gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HookTrace"]


class HookTrace:
    """Sums between two reports, by plugin.

    Seconds are those of the process: on other devices than the CPU, hooks return before what they
    started is done.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._norms: defaultdict[str, list[Tensor]] = defaultdict(list)

    def timed(self, plugin: str, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A plugin's function for a hook, whose seconds are added up."""

        def called(*arguments: Any) -> Any:
            began = perf_counter()
            try:
                return function(*arguments)
            finally:
                seconds = perf_counter() - began
                self._seconds[f"hooks/{plugin}/{hook}_seconds"] += seconds
                self._seconds[f"hooks/{plugin}/seconds"] += seconds

        return called

    def measure(self, plugin: str, when: str, gradients: Mapping[str, Tensor]) -> None:
        """The norm of what `postprocess_gradients` was given (`before`), or has left (`after`)."""
        import torch

        tensors = [gradient.detach() for gradient in gradients.values()]
        norms = torch._foreach_norm(tensors) if tensors else (torch.zeros(()),)
        norm = torch.linalg.vector_norm(torch.stack(norms))
        self._norms[f"hooks/{plugin}/grad_norm_{when}"].append(norm)

    def take(self) -> dict[str, float]:
        """The metrics since the last call, `hooks/PLUGIN/…`: sums of seconds, means of norms."""
        means = {name: sum(map(float, norms)) / len(norms) for name, norms in self._norms.items()}
        metrics = {**self._seconds, **means}
        self._seconds.clear()
        self._norms.clear()
        return metrics
