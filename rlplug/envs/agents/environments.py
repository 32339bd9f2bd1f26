"""Environments with several agents, and what each module has of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rlplug.config.sections import EnvSection, ModuleSection, SamplingSection
from rlplug.envs.agents.games import AgentSpaces, GlobalState, HeldGames
from rlplug.envs.agents.making import agent_spaces_of, game_maker, make_game, map_agents
from rlplug.envs.agents.team import TeamRows, stored_space
from rlplug.envs.agents.vector import AgentVector
from rlplug.envs.environments import Environments, SpacesOnly
from rlplug.envs.making import EnvMaker, describe_env
from rlplug.envs.normalization import Normalization
from rlplug.envs.workers.processes import Workers
from rlplug.envs.wrappers import single_env_options
from rlplug.errors import RequestError

__all__ = ["AgentEnvironments", "agent_environments"]


@attrs.frozen(eq=False)
class AgentEnvironments(Environments):
    """Several environments with several agents each; every agent of each is a row of a module."""

    modules: Mapping[str, Environments] = attrs.field(factory=dict, kw_only=True)
    """Module id → its spaces, with as many environments as the module has rows."""
    agent_spaces: AgentSpaces = attrs.field(factory=dict, kw_only=True)
    teams: Mapping[str, TeamRows] = attrs.field(factory=dict, kw_only=True)
    """Of the modules whose agents are stored together."""
    stored: Mapping[str, Environments] = attrs.field(factory=dict, kw_only=True)
    """Module id → the spaces of what is stored and learned from, with as many environments."""

    @property
    def in_turn(self) -> bool:
        """Whether agents act one after the other."""
        in_turn: bool = self.vector.in_turn
        return in_turn

    def storing(self, wanted: Mapping[str, Any]) -> AgentEnvironments:
        """The same ones, ready to be reset, of which is kept what feeds ask for, by module.

        A feed has a `team` as one row, and the `global_state` beside what agents see, if it says
        so.
        """
        vector: AgentVector = self.vector
        teams, training, state_of = {}, {}, None
        stored = dict(self.modules)
        if any(asked.global_state for asked in wanted.values()):
            state_of = GlobalState(vector.envs[0], self.name, self.agent_spaces)
        for module_id, asked in wanted.items():
            if not (asked.team or asked.global_state):
                continue
            self._refuse(module_id, asked)
            own, rows, state = self.modules[module_id], vector.rows[module_id], None
            if state_of is not None and asked.global_state:
                state = state_of.space
                rows.add_state(state)
            actions, num, size = own.action_space, own.num_envs, 0
            if asked.team:
                size = len(rows.agents)
                teams[module_id] = TeamRows(rows, actions, vector.over)
                num //= size
            seen = own.vector.single_observation_space
            space = training[module_id] = stored_space(seen, actions, size, state)
            actions = batch_space(actions, size) if size else actions
            stored[module_id] = attrs.evolve(own, vector=SpacesOnly(space, actions, num))
        vector.begin(state_of)
        return attrs.evolve(self, teams=teams, stored=stored, training_spaces=training)

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
        if changed or (scaling is not None and asked.team):
            option = "env.normalize_observation" if changed else "env.normalize_reward"
            raise RequestError(
                f"module {module_id!r} learns from more than what one agent sees, which {option} "
                "is not for.",
                "try: without [env] options that normalize or clip",
            )

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """Reset all, each from a seed of its own; what agents see is in the rows of the vector."""
        self.vector.reset_games(self.seeds(seed))
        return {}, {}


@attrs.frozen(eq=False)
class ModuleNormalization:
    """The normalization of every module, saved and restored together."""

    by_module: Mapping[str, Normalization]

    def get_state(self) -> dict[str, Any]:
        """The statistics by module."""
        return {name: scaling.get_state() for name, scaling in self.by_module.items()}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        for name, scaling in self.by_module.items():
            scaling.set_state(saved[name])


def agent_environments(
    env: EnvMaker,
    num_envs: int,
    section: EnvSection,
    modules: Mapping[str, ModuleSection],
    *,
    agents: Mapping[str, str] | None = None,
    workers: SamplingSection | None = None,
    seed: int = 0,
    elsewhere: bool = False,
) -> AgentEnvironments | None:
    """`num_envs` environments with several agents; None if `env` makes others.

    `modules` are the sections `[modules.NAME]` of the run, from which the module of each agent
    follows, unless `agents` has it. With `workers`, they are in worker processes with these
    options, whose generators are seeded from `seed`. Those `elsewhere` are never reset.
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
    make, games = partial(make_game, maker, name, section.arguments), []
    with ExitStack() as stack:
        for index in range(1 if elsewhere or workers is not None else num_envs):
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

    def start(options: SamplingSection, state_of: GlobalState | None) -> Workers:
        hold, timeout = partial(HeldGames, make, state_of), options.step_timeout
        return Workers(hold, num_envs, options.workers, name=name, seed=seed, timeout=timeout)

    members = {
        module_id: [agent for agent, own in agents.items() if own == module_id]
        for module_id in (*modules, *agents.values())
    }
    in_workers = None if workers is None else partial(start, workers)
    vector = AgentVector(games, members, agent_spaces, num_envs, in_workers)
    scaled = section.normalize_observation or section.normalize_reward or section.reward_clip
    parts, scalings = {}, {}
    for module_id, rows in vector.rows.items():
        if scaled:
            scalings[module_id] = Normalization(section, rows.space, rows.num)
        own = SpacesOnly(rows.space, agent_spaces[rows.agents[0]][1], rows.num)
        scaling = scalings.get(module_id)
        parts[module_id] = Environments(own, name, AutoresetMode.SAME_STEP, scaling)
    return AgentEnvironments(
        vector,
        name,
        AutoresetMode.SAME_STEP,
        ModuleNormalization(scalings) if scaled else None,  # type: ignore[arg-type] # of each
        agents=agents,
        modules=parts,
        agent_spaces=agent_spaces,
        stored=parts,
    )
