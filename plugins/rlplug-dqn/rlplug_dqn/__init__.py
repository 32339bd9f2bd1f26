"""Deep Q-learning and the six improvements that make it Rainbow."""

from rlplug_dqn.algorithm import DQN, Rainbow
from rlplug_dqn.config import DQNConfig, RainbowConfig
from rlplug_dqn.module import DQNModule

__all__ = ["DQN", "DQNConfig", "DQNModule", "Rainbow", "RainbowConfig"]
