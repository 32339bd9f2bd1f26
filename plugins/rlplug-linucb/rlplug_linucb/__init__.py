"""Linear contextual bandits with upper confidence bounds, learned in closed form."""

from rlplug_linucb.algorithm import LinUCB
from rlplug_linucb.config import LinUCBConfig
from rlplug_linucb.layout import Layout
from rlplug_linucb.module import LinUCBModule, Scores

__all__ = ["Layout", "LinUCB", "LinUCBConfig", "LinUCBModule", "Scores"]
