"""Environments with several agents: PettingZoo's, stepped as one vector."""

from rlplug.envs.agents.environments import AgentEnvironments, agent_environments
from rlplug.envs.agents.making import game_maker
from rlplug.envs.agents.rows import AgentRows
from rlplug.envs.agents.vector import AgentVector

__all__ = ["AgentEnvironments", "AgentRows", "AgentVector", "agent_environments", "game_maker"]
