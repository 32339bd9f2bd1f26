"""Random network distillation for rlplug."""

from rlplug_rnd.addon import RND
from rlplug_rnd.config import RNDConfig
from rlplug_rnd.module import Distillation

__all__ = ["RND", "Distillation", "RNDConfig"]
