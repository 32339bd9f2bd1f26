"""Bandits that learn in closed form: LinUCB, Thompson sampling, and LinUCB on a network."""

from rlplug_linucb.algorithm import LinTS, LinUCB
from rlplug_linucb.config import LinTSConfig, LinUCBConfig
from rlplug_linucb.layout import Layout
from rlplug_linucb.linucb import Scores
from rlplug_linucb.module import LinUCBModule
from rlplug_linucb.neural import NeuralLinUCB, NeuralLinUCBConfig, NeuralLinUCBModule
from rlplug_linucb.thompson import Draws, LinTSModule

__all__ = [
    "Draws",
    "Layout",
    "LinTS",
    "LinTSConfig",
    "LinTSModule",
    "LinUCB",
    "LinUCBConfig",
    "LinUCBModule",
    "NeuralLinUCB",
    "NeuralLinUCBConfig",
    "NeuralLinUCBModule",
    "Scores",
]
