"""Bandits that learn in closed form: LinUCB, Thompson sampling, and LinUCB on a network."""

from rlplug_linucb.algorithm import LinTS, LinUCB, NeuralLinUCB
from rlplug_linucb.config import LinTSConfig, LinUCBConfig, NeuralLinUCBConfig
from rlplug_linucb.module import Draws, LinTSModule, LinUCBModule
from rlplug_linucb.neural import NeuralLinUCBModule
from rlplug_linucb.ridge import Estimates, Scores
from rlplug_linucb.rows import Layout

__all__ = [
    "Draws",
    "Estimates",
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
