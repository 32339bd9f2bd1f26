"""Exponential moving averages of weights for rlplug."""

from rlplug_ema.addon import EMA
from rlplug_ema.config import EMAConfig
from rlplug_ema.module import Average

__all__ = ["EMA", "Average", "EMAConfig"]
