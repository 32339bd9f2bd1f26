"""Bandits that learn in closed form: LinUCB, Thompson sampling, and LinUCB on a network."""

from rlplug_linucb.algorithm import LinUCB
from rlplug_linucb.config import LinUCBConfig
from rlplug_linucb.layout import Layout
from rlplug_linucb.module import LinUCBModule, Scores
from rlplug_linucb.neural import NeuralLinUCB, NeuralLinUCBConfig, NeuralLinUCBModule
from rlplug_linucb.thompson import Draws, LinTS, LinTSConfig, LinTSModule

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
