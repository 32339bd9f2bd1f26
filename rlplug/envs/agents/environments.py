"""Environments with several agents, and what each module has of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rlplug.config.sections import EnvSection, ModuleSection, SamplingSection
from rlplug.envs.agents.games import AgentSpaces, Game, GlobalState, HeldGames
from rlplug.envs.agents.making import agent_spaces_of, game_maker, make_game, map_agents
from rlplug.envs.agents.team import TeamRows, stored_space
from rlplug.envs.agents.vector import AgentVector
from rlplug.envs.environments import Environments, SpacesOnly
from rlplug.envs.making import EnvMaker, describe_env
from rlplug.envs.normalization import Normalization
from rlplug.envs.workers.processes import Workers
from rlplug.envs.wrappers import single_env_options
from rlplug.errors import RequestError
from rlplug.spaces import AnySpace

__all__ = ["AgentEnvironments", "agent_environments"]


@attrs.frozen(eq=False)
class AgentEnvironments(Environments):
    """Several environments with several agents each; every agent of each is a row of a module."""

    games: AgentVector = attrs.field(kw_only=True)
    """The games or, where they are elsewhere, one that is like them, to be looked at."""
    agents: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """The module of each agent."""
    modules: Mapping[str, Environments] = attrs.field(factory=dict, kw_only=True)
    """Module id → its spaces, with as many environments as the module has rows."""
    agent_spaces: AgentSpaces = attrs.field(factory=dict, kw_only=True)
    teams: Mapping[str, TeamRows] = attrs.field(factory=dict, kw_only=True)
    """Of the modules whose agents are stored together, where they are stepped here."""
    stored: Mapping[str, Environments] = attrs.field(factory=dict, kw_only=True)
    """Module id → the spaces of what is stored and learned from, with as many environments."""

    @property
    def in_turn(self) -> bool:
        """Whether agents act one after the other."""
        return self.games.in_turn

    @property
    def training_spaces(self) -> Mapping[str, AnySpace]:
        """Of the modules that learn from more than one agent sees, what they learn from."""
        return {
            module_id: own.vector.single_observation_space
            for module_id, own in self.stored.items()
            if own is not self.modules[module_id]
        }

    def elsewhere(self, section: EnvSection, num_envs: int) -> AgentEnvironments:
        """The spaces and the statistics of so many such environments, which are elsewhere."""
        modules, normalization = _of_modules(self.name, section, self.games, num_envs)
        vector = SpacesOnly(
            self.games.single_observation_space,
            self.games.single_action_space,
            num_envs,
            self.games.close,
        )
        return attrs.evolve(
            self, vector=vector, normalization=normalization, modules=modules, stored=modules
        )

    def storing(self, wanted: Mapping[str, Any]) -> AgentEnvironments:
        """The same ones, ready to be reset, of which is kept what feeds ask for, by module.

        A feed has a `team` as one row, and the `global_state` beside what agents see, if it says
        so.
        """
        games, is_here = self.games, self.vector is self.games
        teams, stored, state_of = {}, dict(self.modules), None
        for module_id, asked in wanted.items():
            self._refuse(module_id, asked)
        if any(asked.global_state for asked in wanted.values()):
            state_of = GlobalState(games.games[0].env, self.name, self.agent_spaces)
        for module_id, asked in wanted.items():
            if not (asked.team or asked.global_state):
                continue
            own, rows, state = self.modules[module_id], games.rows[module_id], None
            if state_of is not None and asked.global_state:
                state = state_of.space
                rows.add_state(state)
            seen, actions = own.vector.single_observation_space, own.action_space
            num, size = own.num_envs, len(rows.agents) if asked.team else 0
            space = stored_space(seen, actions, size, state)
            if asked.team:
                actions, num = batch_space(actions, size), num // size
                if is_here:
                    teams[module_id] = TeamRows(rows, own.action_space, games.over)
            stored[module_id] = attrs.evolve(own, vector=SpacesOnly(space, actions, num))
        if is_here:
            games.begin(state_of)
        else:
            games.close()
        return attrs.evolve(self, teams=teams, stored=stored)

    def _refuse(self, module_id: str, asked: Any) -> None:
        """Refuse a module whose agents cannot be stored as its feed asks for."""
        scaling = self.modules[module_id].normalization
        if asked.team and self.in_turn:
            raise RequestError(
                f"module {module_id!r} learns from what its agents do at once, and the agents of "
                f"{self.name!r} act in turn.",
                "try: another algorithm, such as dqn or ppo",
            )
        changed = scaling is not None and scaling.changes_observations
        if scaling is not None and (asked.team or (asked.global_state and changed)):
            option = "env.normalize_observation" if changed else "env.normalize_reward"
            raise RequestError(
                f"module {module_id!r} learns from more than what one agent sees, which {option} "
                "is not for.",
                "try: without [env] options that normalize or clip",
            )

    def reset_games(self, seed: int) -> None:
        """Reset all, each from a seed of its own."""
        self.games.reset_games(self.seeds(seed))


@attrs.frozen(eq=False)
class ModuleNormalization:
    """The normalization of every module, saved and restored together."""

    by_module: Mapping[str, Normalization]

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
    make = partial(make_game, maker, name, section.arguments)
    with ExitStack() as stack:
        games = []
        for index in range(num_envs if workers is None else 1):
            games.append(make())
            stack.callback(games[-1].close)
            spaces = agent_spaces_of(games[-1], name)
            if index == 0:
                agent_spaces = spaces
            elif games[-1].env is games[0].env or spaces != agent_spaces:
                raise RequestError(
                    f"environment {name!r} is the same, or has other agents or spaces, the "
                    f"{index + 1}. time.",
                    "try: a callable that makes new and equal ones each time",
                )
        if agents is None:
            agents = map_agents(name, agent_spaces, modules)
        elif set(agents) != set(agent_spaces):
            raise RequestError(
                f"environment {name!r} has the agents {', '.join(agent_spaces)}; those of the run "
                f"are {', '.join(agents)}.",
                "try: an environment with the agents of the run",
            )
        stack.pop_all()
    members: dict[str, list[str]] = {}
    for module_id in dict.fromkeys((*(modules or ()), *agents.values())):
        members[module_id] = [agent for agent, own in agents.items() if own == module_id]
    start = None if workers is None else partial(_in_workers, make, num_envs, workers, name, seed)
    vector = AgentVector(games, members, agent_spaces, num_games=num_envs, start=start)
    by_module, normalization = _of_modules(name, section, vector, num_envs)
    return AgentEnvironments(
        vector,
        name,
        AutoresetMode.SAME_STEP,
        normalization,
        told=set() if told is None else told,
        games=vector,
        agents=agents,
        modules=by_module,
        agent_spaces=agent_spaces,
        stored=by_module,
    )


def _in_workers(
    make: Callable[[], Game],
    num_games: int,
    options: SamplingSection,
    name: str,
    seed: int,
    state_of: GlobalState | None,
) -> Workers:
    hold, timeout = partial(HeldGames, make, state_of), options.step_timeout
    return Workers(hold, num_games, options.workers, name=name, seed=seed, timeout=timeout)


def _of_modules(
    name: str, section: EnvSection, games: AgentVector, num_games: int
) -> tuple[dict[str, Environments], Any]:
    """What each module has of so many games, and the normalization of all."""
    modules, normalizations = {}, {}
    scaled = section.normalize_observation or section.normalize_reward or section.reward_clip
    for module_id, rows in games.rows.items():
        num, actions = num_games * len(rows.agents), games.single_action_space[rows.agents[0]]
        if scaled:
            normalizations[module_id] = Normalization(section, rows.space, num)
        modules[module_id] = Environments(
            SpacesOnly(rows.space, actions, num),
            name,
            AutoresetMode.SAME_STEP,
            normalizations.get(module_id),
        )
    return modules, ModuleNormalization(normalizations) if scaled else None
