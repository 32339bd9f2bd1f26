"""Linear Thompson sampling, on the regressions of LinUCB."""

from rlplug_linucb.thompson.algorithm import LinTS
from rlplug_linucb.thompson.config import LinTSConfig
from rlplug_linucb.thompson.module import Draws, LinTSModule

__all__ = ["Draws", "LinTS", "LinTSConfig", "LinTSModule"]
