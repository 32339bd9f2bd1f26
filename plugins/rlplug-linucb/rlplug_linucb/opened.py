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
        "flat_coefficients",
        "flat_width",
        "gram",
        "inverse",
        "moment",
        "scratch",
        "squared_gram",
        "stale",
        "sums",
        "weight",
        "width",
    )

    def __init__(self, ridges: Ridges) -> None:
        device = ridges.gram.device
        on_numpy = device.type in ridges.numpy_devices
        self.backend: Backend = NumpyBackend() if on_numpy else TorchBackend(device)
        view = self.backend.view
        self.gram, self.moment = view(ridges.gram), view(ridges.moment)
        self.weight, self.inverse = view(ridges.weight), view(ridges.inverse)
        self.coefficients = view(ridges.coefficients)
        self.age, self.stale, self.counts = (
            view(ridges.age),
            view(ridges.stale),
            view(ridges.counts),
        )
        squared, width = ridges.squared_gram, ridges.covariance
        self.squared_gram = None if squared is None else view(squared)
        width = ridges.inverse if width is None else width
        self.width = view(width)
        self.flat_width = view(width.view(-1, ridges.dim))
        self.flat_coefficients = view(ridges.coefficients.view(-1, ridges.dim))
        own = [self.gram, self.moment, self.weight]
        self.sums = own if self.squared_gram is None else [*own, self.squared_gram]
        self.scratch = self.backend.zeros(ridges.dim, ridges.dim)
