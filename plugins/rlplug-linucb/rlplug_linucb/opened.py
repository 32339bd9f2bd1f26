"""The buffers of ridge regressions as arrays: writing to the arrays writes the buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug_linucb.backend import Backend, NumpyBackend, TorchBackend

if TYPE_CHECKING:
    from rlplug_linucb.ridge import Ridges

__all__ = ["Opened"]


class Opened:
    """What one backend computes with; it holds while the buffers stay where they are."""

    __slots__ = (
        "age",
        "backend",
        "coefficients",
        "counts",
        "flat_width",
        "inverse",
        "recent",
        "recent_groups",
        "scratch",
        "solved",
        "squared_sums",
        "stale",
        "sums",
        "totals",
        "weight",
    )

    def __init__(self, ridges: Ridges) -> None:
        device = ridges.sums.device
        on_numpy = device.type in ridges.numpy_devices
        self.backend: Backend = NumpyBackend() if on_numpy else TorchBackend(device)
        view = self.backend.view
        self.sums, self.weight = view(ridges.sums), view(ridges.weight)
        self.recent, self.recent_groups = view(ridges.recent), view(ridges.recent_groups)
        self.solved, self.age = view(ridges.solved), view(ridges.age)
        self.stale, self.counts = view(ridges.stale), view(ridges.counts)
        squared = ridges.squared_sums
        self.squared_sums = None if squared is None else view(squared)
        width = ridges.solved if ridges.widened is None else ridges.widened
        self.flat_width = view(width.view(-1, ridges.dim))
        self.inverse = view(width[:, : ridges.dim])
        self.coefficients = view(width[:, ridges.dim :])
        self.totals = [self.weight, self.sums]
        if self.squared_sums is not None:
            self.totals.append(self.squared_sums)
        self.scratch = self.backend.zeros(ridges.dim + ridges.targets, ridges.dim)
