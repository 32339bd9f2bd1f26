"""Behaviour cloning: imitate the actions of a log."""

from rlplug_bc.algorithm import BC
from rlplug_bc.config import BCConfig
from rlplug_bc.module import BCModule

__all__ = ["BC", "BCConfig", "BCModule"]
