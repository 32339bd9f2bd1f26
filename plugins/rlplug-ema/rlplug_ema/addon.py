"""EMA: its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlplug import AddOn, Module, hookimpl
from rlplug_ema.config import EMAConfig
from rlplug_ema.module import Average

__all__ = ["EMA"]


class EMA(AddOn):
    """Evaluates, exports and serves an exponential moving average of the weights."""

    Config: ClassVar[type[EMAConfig]] = EMAConfig
    config: EMAConfig
    # The module alone acts in training: what it learns is the same with every decay.
    neutral: ClassVar[Mapping[str, Any]] = {}

    @hookimpl
    def build_extra(self, module: Module, config: EMAConfig) -> Average | None:
        """The average, which the core updates after each optimizer step."""
        if not any(parameter.requires_grad for parameter in module.parameters()):
            # Nothing that is learned by gradients; closed forms are no less exact at their end.
            return None
        average = Average(config.decay)
        average.init(module)
        return average

    @hookimpl
    def inference_module(self, extra: Average | None) -> Module | None:
        """The averaged module."""
        if extra is None:
            return None
        averaged = extra.model
        assert isinstance(averaged, Module)
        return averaged
