"""Off-policy actor-critic methods: soft actor-critic (SAC) and twin delayed DDPG (TD3)."""

from rlplug_sac.algorithm import SAC, TD3
from rlplug_sac.config import SACConfig, TD3Config
from rlplug_sac.module import SACModule, TD3Module

__all__ = ["SAC", "TD3", "SACConfig", "SACModule", "TD3Config", "TD3Module"]
