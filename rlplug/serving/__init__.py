"""Serving: a trained policy that acts without an environment."""

from rlplug.serving.agents import AgentPolicy
from rlplug.serving.policy import Policy

__all__ = ["AgentPolicy", "Policy"]
