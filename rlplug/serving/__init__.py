"""Serving: a trained policy that acts without an environment."""

from rlplug.serving.policy import Policy

__all__ = ["Policy"]
