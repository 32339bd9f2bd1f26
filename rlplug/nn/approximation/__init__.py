"""Function approximation by hand: networks with all that moves them, for notebooks and scripts."""

from rlplug.nn.approximation.approximation import Approximation
from rlplug.nn.approximation.checkpointer import (
    Checkpointer,
    DummyCheckpointer,
    PeriodicCheckpointer,
)
from rlplug.nn.approximation.feature_network import FeatureNetwork
from rlplug.nn.approximation.networks import Identity, QContinuous, QDist, QNetwork, VNetwork
from rlplug.nn.approximation.writer import DummyWriter, Writer

__all__ = [
    "Approximation",
    "Checkpointer",
    "DummyCheckpointer",
    "DummyWriter",
    "FeatureNetwork",
    "Identity",
    "PeriodicCheckpointer",
    "QContinuous",
    "QDist",
    "QNetwork",
    "VNetwork",
    "Writer",
]
