"""Proximal policy optimisation and advantage actor-critic, for every action space, with memory."""

from rlplug_ppo.algorithm import A2C, PPO
from rlplug_ppo.config import A2CConfig, PPOConfig
from rlplug_ppo.module import ActorCriticModule

__all__ = ["A2C", "PPO", "A2CConfig", "ActorCriticModule", "PPOConfig"]
