"""Networks with their optimizer, target and schedule, for training loops written by hand."""

from rlplug.approximation.approximation import (
    Approximation,
    DummyWriter,
    FeatureNetwork,
    Writer,
)
from rlplug.approximation.checkpointer import (
    Checkpointer,
    DummyCheckpointer,
    PeriodicCheckpointer,
)
from rlplug.approximation.networks import Identity, QContinuous, QDist, QNetwork, VNetwork

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
