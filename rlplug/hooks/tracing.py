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

    def traced(self, plugin: str, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A plugin's function for a hook, called with what is offered; it is timed.

        Before and after `postprocess_gradients`, the norm of the gradients is kept as well.
        """
        name = f"hooks/{plugin}"

        def called(offered: tuple[Any, ...], extra: Any, config: Any) -> Any:
            if hook == "postprocess_gradients":
                self._norms[f"{name}/grad_norm_before"].append(_norm(offered[_GRADIENTS]))
            began = perf_counter()
            try:
                return function(offered, extra, config)
            finally:
                seconds = perf_counter() - began
                self._seconds[f"{name}/{hook}_seconds"] += seconds
                self._seconds[f"{name}/seconds"] += seconds
                if hook == "postprocess_gradients":
                    self._norms[f"{name}/grad_norm_after"].append(_norm(offered[_GRADIENTS]))

        return called

    def take(self) -> dict[str, float]:
        """The metrics since the last call, `hooks/PLUGIN/…`: sums of seconds, means of norms."""
        means = {name: sum(map(float, norms)) / len(norms) for name, norms in self._norms.items()}
        metrics = {**self._seconds, **means}
        self._seconds.clear()
        self._norms.clear()
        return metrics


def _norm(gradients: Mapping[str, Tensor]) -> Tensor:
    import torch

    tensors = [gradient.detach() for gradient in gradients.values()]
    norms = torch._foreach_norm(tensors) if tensors else (torch.zeros(()),)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


_GRADIENTS = 2
"""Where they stand among what `postprocess_gradients` offers to all."""
