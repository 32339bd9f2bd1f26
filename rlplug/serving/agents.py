"""The policies of several agents: observations by agent in, actions by agent out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gymnasium import spaces

from rlplug.errors import RequestError, did_you_mean
from rlplug.plugin import Module
from rlplug.seeding import derive
from rlplug.serving.policy import Policy

__all__ = ["AgentPolicy", "policies_by_agent"]


class AgentPolicy(Policy):
    """Acts for those agents that it is given observations of.

    `predict` takes and gives mappings by agent; agents that share a module have frames and
    recurrent state of their own. Probabilities are asked of the policy of one agent:
    `policy.agents[NAME]`.
    """

    def __init__(
        self,
        by_agent: Mapping[str, Policy],
        module: Module,
        *,
        modules: Mapping[str, str],
        step: int = 0,
        path: Path | None = None,
    ) -> None:
        super().__init__(
            module,
            spaces.Dict({agent: one.observation_space for agent, one in by_agent.items()}),
            spaces.Dict({agent: one.action_space for agent, one in by_agent.items()}),
            step=step,
            path=path,
        )
        self.agents = dict(by_agent)
        """The policy of each agent."""
        self.modules = dict(modules)
        """The id of each agent's module."""

    def predict(
        self,
        observation: Any,
        deterministic: bool = True,
        *,
        action_mask: Any = None,
        episode_start: Any = None,
        several: bool | None = None,
    ) -> Any:
        """The action of each agent that there is an observation of.

        Each may be one observation, or several with a first axis. `action_mask` has the masks of
        agents; the rest is that of `Policy.predict`, for all of them.
        """
        masks = {} if action_mask is None else action_mask
        for name, given in (("observation", observation), ("action_mask", masks)):
            if not isinstance(given, Mapping):
                raise RequestError(
                    f"{name} must be a mapping by agent, found {type(given).__name__}.",
                    f"agents: {', '.join(self.agents)}",
                )
        self.refuse_others(observation)
        self.refuse_others(masks or observation)
        for agent in masks:
            if agent not in observation:
                raise RequestError(
                    f"a mask is given for agent {agent!r}, of which there is no observation.",
                    f"leave out the mask of {agent!r}, or give its observation",
                )
        actions = {}
        for agent, given in observation.items():
            try:
                actions[agent] = self.agents[agent].predict(
                    given,
                    deterministic,
                    action_mask=masks.get(agent),
                    episode_start=episode_start,
                    several=several,
                )
            except RequestError as error:
                raise RequestError(f"agent {agent!r}: {error.message}", *error.hints) from error
        return actions

    def refuse_others(self, names: Iterable[Any]) -> None:
        """Refuse what is no agent, and nobody at all."""
        found = list(names)
        known = f"agents: {', '.join(self.agents)}"
        if not found:
            raise RequestError("there is no agent in the observation.", known)
        for agent in found:
            if agent not in self.agents:
                guess = did_you_mean(str(agent), self.agents, sentence=True)
                raise RequestError(f"there is no agent {agent!r}. {guess}".rstrip(), known)

    def of(self, agent: str) -> Policy:
        """The policy of one agent."""
        self.refuse_others([agent])
        return self.agents[agent]

    def reset(self) -> None:
        """Start new episodes: clear the recurrent state of all agents."""
        for one in self.agents.values():
            one.reset()

    def fork(self, seed: int = 0) -> AgentPolicy:
        """A policy with the same weights, and recurrent state of its own."""
        by_agent = {
            agent: one.fork(derive(seed, "agent", agent)) for agent, one in self.agents.items()
        }
        return AgentPolicy(
            by_agent, self.module, modules=self.modules, step=self.step, path=self.path
        )

    @property
    def has_memory(self) -> bool:
        """Whether actions of any agent depend on earlier observations of the episode."""
        return any(one.has_memory for one in self.agents.values())


def policies_by_agent(
    modules: Mapping[str, str], by_module: Mapping[str, Policy], seed: int
) -> dict[str, Policy]:
    """A policy for each agent, given the module of each and a policy of each module."""
    return {
        agent: by_module[module_id].fork(derive(seed, "agent", agent))
        for agent, module_id in modules.items()
    }
