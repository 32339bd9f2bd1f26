"""Deep Q-learning (DQN) with its extensions up to Rainbow."""

from rlplug_dqn.algorithm import DQN, Rainbow
from rlplug_dqn.config import DQNConfig, RainbowConfig
from rlplug_dqn.module import DQNModule

__all__ = ["DQN", "DQNConfig", "DQNModule", "Rainbow", "RainbowConfig"]
