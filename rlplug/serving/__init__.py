"""Serving: a tracked policy that acts without an environment."""

from rlplug.serving.policy import Policy

__all__ = ["Policy"]
