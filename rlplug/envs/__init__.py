"""Environments: vectors made from an id or a callable, wrappers, normalisation."""

from rlplug.envs.environments import Environments, long_episodes, make_environments
from rlplug.envs.making import EnvMaker, describe_env
from rlplug.envs.normalization import Normalization

__all__ = [
    "EnvMaker",
    "Environments",
    "Normalization",
    "describe_env",
    "long_episodes",
    "make_environments",
]
