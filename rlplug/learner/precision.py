"""Mixed precision: in what format the forward pass runs, and the scaler of its loss."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rlplug.config.sections import ComputeSection
from rlplug.errors import RequestError, RunFailedError

__all__ = ["Precision"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast around forward and loss; for fp16 a scaler that all optimizers share."""

    def __init__(self, section: ComputeSection, device: torch.device) -> None:
        self.device = device
        self.format = _AUTOCAST.get(section.precision)
        self.scaler: torch.amp.GradScaler | None = None
        self._lowest = section.scaler_min_scale
        _refuse_unfit(section, device)
        if section.precision == "fp16":
            self.scaler = torch.amp.GradScaler(
                device.type,
                init_scale=section.scaler_init_scale,
                growth_factor=section.scaler_growth_factor,
                backoff_factor=section.scaler_backoff_factor,
                growth_interval=section.scaler_growth_interval,
            )

    def around_forward(self) -> AbstractContextManager[Any]:
        """The context of forward pass and loss."""
        if self.format is None:
            return _PLAIN
        return torch.autocast(self.device.type, dtype=self.format)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss as backward gets it."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def overflowed(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """1 on the device where unscaling found gradients that fp16 could not hold."""
        if self.scaler is None:
            return None
        found = self.scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return torch.stack([one.to(self.device) for one in found.values()]).amax()

    def stepped(self) -> None:
        """All optimizers of this minibatch had their turn: the scale may move, once."""
        scaler = self.scaler
        if scaler is not None and any(
            state["found_inf_per_device"] for state in scaler._per_optimizer_states.values()
        ):
            scaler.update()

    def update_finished(self) -> None:
        """Refuse to go on with a scale that tells of a loss that is never finite."""
        if self.scaler is None:
            return
        scale = self.scaler.get_scale()
        if scale < self._lowest:
            raise RunFailedError(
                f"the fp16 scale fell to {scale:g}, below compute.scaler_min_scale.",
                "the loss itself is not finite: try --set compute.precision=fp32",
            )


_PLAIN = nullcontext()


def _refuse_unfit(section: ComputeSection, device: torch.device) -> None:
    if section.precision == "fp16" and device.type == "cpu":
        raise RequestError(
            "compute.precision 'fp16' needs CUDA or MPS, the device is the CPU.",
            "try: --set compute.precision=bf16",
        )
    if section.precision != "fp32" and section.dtype == "float64":
        raise RequestError(
            f"compute.precision {section.precision!r} and compute.dtype 'float64' exclude each "
            "other: mixed precision lowers float32.",
            "try: --set compute.precision=fp32",
        )
