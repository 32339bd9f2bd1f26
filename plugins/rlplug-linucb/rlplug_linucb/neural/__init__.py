"""LinUCB on the features of a network that is trained by gradient."""

from rlplug_linucb.neural.algorithm import NeuralLinUCB
from rlplug_linucb.neural.config import NeuralLinUCBConfig
from rlplug_linucb.neural.module import NeuralLinUCBModule

__all__ = ["NeuralLinUCB", "NeuralLinUCBConfig", "NeuralLinUCBModule"]
