"""Networks with their optimizer, target and schedule, for training loops written by hand."""

from rlplug.approximation.approximation import (
    Approximation,
    Checkpointer,
    DummyCheckpointer,
    DummyWriter,
    Identity,
    PeriodicCheckpointer,
    Writer,
)
from rlplug.approximation.networks import FeatureNetwork, QContinuous, QDist, QNetwork, VNetwork
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
