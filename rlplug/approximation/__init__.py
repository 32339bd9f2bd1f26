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
from rlplug.nn.targets import FixedTarget, PolyakTarget, TargetNetwork, TrivialTarget

__all__ = [
    "Approximation",
    "Checkpointer",
    "DummyCheckpointer",
    "DummyWriter",
    "FeatureNetwork",
    "FixedTarget",
    "Identity",
    "PeriodicCheckpointer",
    "PolyakTarget",
    "QContinuous",
    "QDist",
    "QNetwork",
    "TargetNetwork",
    "TrivialTarget",
    "VNetwork",
    "Writer",
]
