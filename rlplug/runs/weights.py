"""Notices when weights stop being finite, and says from which step on."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["WeightCheck"]

_LOG = logging.getLogger("rlplug")


class WeightCheck:
    """Checks the parameters and buffers of modules and of what is kept beside them."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        extras: Mapping[str, Mapping[str, nn.Module]],
        explain: Callable[[], str] = lambda: "",
    ) -> None:
        self.nonfinite_step: int | None = None
        """The first step at which weights were found not to be finite."""
        self.nonfinite_name = ""
        """The parameter or buffer that was not finite then."""
        self.sums: tuple[float, ...] = ()
        """The sums of all parameters when they were last found to be finite."""
        self._modules = modules
        self._extras = extras
        self._explain = explain
        """Says what else was not finite, for the warning."""
        self._checked = -1
        # Such as the bounds of an unbounded space, or a mask of -inf.
        self._constants = {
            (module_id, name)
            for module_id, name, tensor in self._tensors()
            if not tensor.requires_grad and not _is_finite(tensor)
        }

    def set_state(self, nonfinite_step: int | None) -> None:
        """Go on with weights that were found not to be finite at this step."""
        if nonfinite_step is None:
            return
        self.nonfinite_step = nonfinite_step
        found = [
            (module_id, name)
            for module_id, name, tensor in self._tensors()
            if not _is_finite(tensor)
        ]
        # Buffers that are not finite from here on count as constants.
        found.sort(key=self._constants.__contains__)
        self.nonfinite_name = found[0][1] if found else ""

    def finite_at(self, step: int) -> bool:
        """Whether all weights are finite; says so once if they no longer are."""
        if self.nonfinite_step is not None:
            return False
        if step == self._checked:
            return True
        sums = []
        for module_id, name, tensor in self._tensors():
            # A sum takes one pass and no memory.
            total = float(tensor.detach().sum()) if tensor.is_floating_point() else 0.0
            if (
                not math.isfinite(total)
                and (module_id, name) not in self._constants
                and not _is_finite(tensor)
            ):
                self.nonfinite_step, self.nonfinite_name = step, name
                self._warn(module_id, name)
                return False
            if isinstance(tensor, nn.Parameter):
                sums.append(total)
        self._checked, self.sums = step, tuple(sums)
        return True

    def nonfinite(self) -> list[str]:
        """All parameters and buffers that are not finite, apart from those that never were."""
        return [
            f"{name!r} of module {module_id!r}"
            for module_id, name, tensor in self._tensors()
            if (module_id, name) not in self._constants and not _is_finite(tensor)
        ]

    def _tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """Module id, name and tensor; those of a plugin's extra are named after the plugin."""
        for module_id, module in self._modules.items():
            parts: dict[str, Any] = {"": module, **self._extras.get(module_id, {})}
            for plugin, part in parts.items():
                for named in (part.named_parameters(plugin), part.named_buffers(plugin)):
                    for name, tensor in named:
                        yield module_id, name, tensor

    def _warn(self, module_id: str, name: str) -> None:
        before = ""
        if self._checked >= 0:
            before = f"; at step {self._checked:,} they were"
        _LOG.warning(
            "rlplug: the weights of module %r are not finite from step %s on (%s)%s%s. "
            "No checkpoint from there on is the best.",
            module_id,
            f"{self.nonfinite_step:,}",
            name,
            before,
            self._explain(),
        )


def _is_finite(tensor: Tensor) -> bool:
    # Large weights alone may make a sum overflow.
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
