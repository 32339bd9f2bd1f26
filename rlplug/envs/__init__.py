"""Environments: vectors made from an id or a callable, wrappers, normalisation."""

from rlplug.envs.environments import (
    Environments,
    EnvMaker,
    describe_env,
    long_episodes,
    make_environments,
)
from rlplug.envs.normalization import Normalization

__all__ = [
    "EnvMaker",
    "Environments",
    "Normalization",
    "describe_env",
    "long_episodes",
    "make_environments",
]
