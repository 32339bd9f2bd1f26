"""Gradient surgery for rlplug."""

from rlplug_pcgrad.addon import PCGrad
from rlplug_pcgrad.surgery import projected_sum

__all__ = ["PCGrad", "projected_sum"]
