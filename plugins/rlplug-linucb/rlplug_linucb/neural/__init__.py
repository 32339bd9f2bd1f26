"""LinUCB on what a network makes of the context, which is trained by gradient."""

from rlplug_linucb.neural.algorithm import NeuralLinUCB
from rlplug_linucb.neural.config import NeuralLinUCBConfig
from rlplug_linucb.neural.module import NeuralLinUCBModule

__all__ = ["NeuralLinUCB", "NeuralLinUCBConfig", "NeuralLinUCBModule"]
