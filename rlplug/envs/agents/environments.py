"""Environments with several agents, and what each module has of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import attrs
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rlplug.config.module_section import ModuleSection
from rlplug.config.sections import EnvSection, SamplingSection
from rlplug.envs.agents.global_state import state_of
from rlplug.envs.agents.in_workers import WorkerAgentVector
from rlplug.envs.agents.making import agent_spaces_of, game_maker, make_game
from rlplug.envs.agents.mapping import map_agents
from rlplug.envs.agents.team import TeamRows, stored_space
from rlplug.envs.agents.vector import AgentVector
from rlplug.envs.environments import Environments, SpacesOnly
from rlplug.envs.making import EnvMaker, describe_env
from rlplug.envs.normalization import Normalization
from rlplug.envs.wrappers import single_env_options
from rlplug.errors import RequestError
from rlplug.seeding import derive
from rlplug.spaces import AnySpace

__all__ = ["AgentEnvironments", "agent_environments"]


class Stored(Protocol):
    """What a feed asks for."""

    @property
    def team(self) -> bool:
        """Whether a row is all agents of the module at one step of an environment."""

    @property
    def global_state(self) -> bool:
        """Whether the global state is stored beside what agents see."""


@attrs.frozen(eq=False)
class AgentEnvironments(Environments):
    """Several environments with several agents each; every agent of each is a row of a module."""

    module_of: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """Agent → module id."""
    by_module: Mapping[str, Environments] = attrs.field(factory=dict, kw_only=True)
    in_turn: bool = attrs.field(default=False, kw_only=True)
    """Whether agents act one after the other."""
    agent_spaces: Mapping[str, tuple[AnySpace, AnySpace]] = attrs.field(factory=dict, kw_only=True)
    alike: AgentVector | None = attrs.field(default=None, kw_only=True)
    """Of games that are elsewhere, some that are like them, to be looked at."""
    teams: Mapping[str, TeamRows] = attrs.field(factory=dict, kw_only=True)
    """Of the modules whose agents are stored together, where they are stepped here."""
    stored: Mapping[str, Environments] = attrs.field(factory=dict, kw_only=True)
    """Module id → the spaces of what is stored and learned from, with as many environments."""

    @property
    def agents(self) -> Mapping[str, str]:
        """The module of each agent."""
        return self.module_of

    @property
    def games(self) -> AgentVector:
        """The games."""
        return cast(AgentVector, self.vector)

    @property
    def modules(self) -> Mapping[str, Environments]:
        """Module id → its spaces, with as many environments as the module has rows."""
        return self.by_module

    def elsewhere(self, section: EnvSection, num_envs: int) -> AgentEnvironments:
        """The spaces and the statistics of so many such environments, which are elsewhere."""
        spaces = {
            module_id: (own.vector.single_observation_space, own.vector.single_action_space)
            for module_id, own in self.by_module.items()
        }
        rows = {
            module_id: num_envs * sum(one == module_id for one in self.module_of.values())
            for module_id in spaces
        }
        by_module, normalization = _of_modules(self.name, section, spaces, rows)
        return attrs.evolve(
            self,
            vector=SpacesOnly(
                self.games.single_observation_space,
                self.games.single_action_space,
                num_envs,
                self.games.close,
            ),
            alike=self.games,
            normalization=normalization,
            by_module=by_module,
            stored=by_module,
        )

    @property
    def training_spaces(self) -> Mapping[str, AnySpace]:
        """Of the modules that learn from more than one agent sees, what they learn from."""
        return {
            module_id: own.vector.single_observation_space
            for module_id, own in self.stored.items()
            if own is not self.by_module[module_id]
        }

    def storing(self, wanted: Mapping[str, Stored]) -> AgentEnvironments:
        """The same ones, ready to be reset, of which is kept what feeds ask for, by module."""
        games = self.games if self.alike is None else self.alike
        teams, stored, found = {}, dict(self.by_module), None
        for module_id, asked in wanted.items():
            self._refuse(module_id, asked)
        if any(one.global_state for one in wanted.values()):
            found = state_of(games.games[0], self.name, self.agent_spaces)
        for module_id, asked in wanted.items():
            if not (asked.team or asked.global_state):
                continue
            own, rows = self.by_module[module_id], games.rows[module_id]
            state = found.space if found is not None and asked.global_state else None
            if state is not None:
                rows.add_state(state)
            seen, actions = own.vector.single_observation_space, own.action_space
            num, size = own.num_envs, len(rows.agents) if asked.team else 0
            space = stored_space(seen, actions, size, state)
            if asked.team:
                actions, num = batch_space(actions, size), num // size
                if self.alike is None:
                    teams[module_id] = TeamRows(rows, own.action_space, games.over)
            stored[module_id] = attrs.evolve(own, vector=SpacesOnly(space, actions, num))
        if self.alike is not None:
            games.close()
        else:
            games.begin(found)
        return attrs.evolve(self, teams=teams, stored=stored)

    def _refuse(self, module_id: str, asked: Stored) -> None:
        """Refuse a module whose agents cannot be stored as its feed asks for."""
        team, scaling = asked.team, self.by_module[module_id].normalization
        if not (team or asked.global_state):
            return
        if team and self.in_turn:
            raise RequestError(
                f"module {module_id!r} learns from what its agents do at once, and the agents of "
                f"{self.name!r} act in turn.",
                "try: another algorithm, such as dqn or ppo",
            )
        if scaling is not None and (team or scaling.changes_observations):
            option = "env.normalize_observation"
            if not scaling.changes_observations:
                option = "env.normalize_reward or env.reward_clip"
            raise RequestError(
                f"module {module_id!r} learns from more than what one agent sees, which {option} "
                "is not for.",
                "try: without it",
            )

    def reset_games(self, seed: int) -> None:
        """Reset all, each from a seed of its own."""
        indices = range(self.first, self.first + self.num_envs)
        self.games.reset_games([derive(seed, "environment", index) % 2**31 for index in indices])


@attrs.frozen(eq=False)
class ModuleNormalization:
    """The normalization of every module, saved and restored together."""

    by_module: Mapping[str, Normalization]

    @property
    def changes_observations(self) -> bool:
        """Whether observations are normalised."""
        return any(one.changes_observations for one in self.by_module.values())

    def get_state(self) -> dict[str, Any]:
        """The statistics by module."""
        return {name: one.get_state() for name, one in self.by_module.items()}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        for name, one in self.by_module.items():
            one.set_state(saved[name])


def agent_environments(
    env: EnvMaker,
    num_envs: int,
    section: EnvSection,
    modules: Mapping[str, ModuleSection],
    *,
    agents: Mapping[str, str] | None = None,
    told: set[str] | None = None,
    workers: SamplingSection | None = None,
    seed: int = 0,
) -> AgentEnvironments | None:
    """`num_envs` environments with several agents; None if `env` makes others.

    `modules` are the sections `[modules.NAME]` of the run, from which the module of each agent
    follows, unless `agents` has it. With `workers`, they are in worker processes with these
    options, whose generators are seeded from `seed`.
    """
    maker = game_maker(env, section.arguments)
    if maker is None:
        return None
    name = describe_env(env)
    for option in single_env_options(section):
        raise RequestError(
            f"environment {name!r} has several agents; {option} is for those with one.",
            f"try: without {option}",
        )
    games = [make_game(maker, name, section.arguments)]
    try:
        agent_spaces = agent_spaces_of(games[0], name)
        agents = _checked(name, agents, agent_spaces) or map_agents(name, agent_spaces, modules)
        for index in range(1, num_envs if workers is None else 1):
            games.append(make_game(maker, name, section.arguments))
            if games[-1].env is games[0].env:
                raise RequestError(
                    f"environment {name!r} was given twice.",
                    "try: a callable that makes a new one each time",
                )
            if agent_spaces_of(games[-1], name) != agent_spaces:
                raise RequestError(
                    f"environment {name!r} has other agents or spaces the {index + 1}. time.",
                    "try: a callable that makes equal ones",
                )
    except BaseException:
        for game in games:
            game.close()
        raise
    members: dict[str, list[str]] = {}
    for module_id in dict.fromkeys((*(modules or ()), *agents.values())):
        members[module_id] = [agent for agent, own in agents.items() if own == module_id]
    vector: AgentVector
    if workers is None:
        vector = AgentVector(games, members, agent_spaces)
    else:
        vector = WorkerAgentVector(
            *(games[0], maker, name, section.arguments, members, agent_spaces, num_envs),
            section=workers,
            seed=seed,
        )
    by_module, normalization = _of_modules(
        name,
        section,
        {module_id: agent_spaces[rows.agents[0]] for module_id, rows in vector.rows.items()},
        {module_id: rows.num for module_id, rows in vector.rows.items()},
    )
    return AgentEnvironments(
        vector,
        name,
        AutoresetMode.SAME_STEP,
        normalization,
        told=set() if told is None else told,
        module_of=agents,
        by_module=by_module,
        in_turn=vector.in_turn,
        agent_spaces=agent_spaces,
        stored=by_module,
    )


def _of_modules(
    name: str,
    section: EnvSection,
    spaces: Mapping[str, tuple[AnySpace, AnySpace]],
    rows: Mapping[str, int],
) -> tuple[dict[str, Environments], Any]:
    """What each module has of the environments, and the normalization of all."""
    by_module = {}
    scaled = section.normalize_observation or section.normalize_reward or section.reward_clip
    normalizations = {}
    for module_id, (observations, actions) in spaces.items():
        num = rows[module_id]
        if scaled:
            normalizations[module_id] = Normalization(section, observations, num)
        by_module[module_id] = Environments(
            SpacesOnly(observations, actions, num),
            name,
            AutoresetMode.SAME_STEP,
            normalizations.get(module_id),
        )
    return by_module, ModuleNormalization(normalizations) if scaled else None


def _checked(
    name: str, agents: Mapping[str, str] | None, agent_spaces: Mapping[str, Any]
) -> Mapping[str, str] | None:
    """The agents, refused if the environment has others."""
    if agents is not None and set(agents) != set(agent_spaces):
        missing = [agent for agent in agents if agent not in agent_spaces]
        unknown = [agent for agent in agent_spaces if agent not in agents]
        differing = "; ".join(
            f"{kind} {'is' if len(found) == 1 else 'are'} {', '.join(found)}"
            for kind, found in (("missing", missing), ("unknown to it", unknown))
            if found
        )
        raise RequestError(
            f"environment {name!r} does not have the agents of the run: {differing}.",
            "try: an environment with the agents of the run",
        )
    return agents
