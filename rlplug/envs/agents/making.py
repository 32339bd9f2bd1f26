"""Make games from an id, an import path or a callable; which module acts for which agent."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from fnmatch import filter as matching
from importlib import import_module
from typing import Any

from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from rlplug.batch.episodes import DEFAULT_MODULE
from rlplug.config.sections import ModuleSection
from rlplug.envs.agents.games import AecGame, AgentSpaces, Game
from rlplug.envs.making import EnvMaker, makes_vector, making, resolved
from rlplug.errors import ConfigError, Problem, RequestError, described, did_you_mean
from rlplug.spaces import describe

__all__ = ["agent_spaces_of", "game_maker", "make_game", "map_agents"]

_PREFIX = "pettingzoo:"
"""Ids of PettingZoo begin with it: `pettingzoo:mpe/simple_spread_v3`."""

_FAMILIES = {"mpe": "mpe2"}
"""Families that are packages of their own."""


def game_maker(env: EnvMaker, arguments: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What makes one environment with several agents; None for all other environments.

    Once PettingZoo is imported, a function is called to see what it makes.
    """
    if isinstance(env, str) and env.startswith(_PREFIX):
        return _by_id(env)
    if isinstance(env, str) and ":" not in env:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        maker = resolved(env)
    if isinstance(maker, EnvSpec) or makes_vector(maker) or "pettingzoo" not in sys.modules:
        return None
    if isinstance(maker, type):
        return maker if issubclass(maker, _kinds()) else None
    # What is wrong with it is told where it is made.
    with suppress(Exception):
        made = maker(**arguments)
        made.close()
        return maker if isinstance(made, _kinds()) else None
    return None


def make_game(maker: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Game:
    """One environment with several agents."""
    aec, parallel = _kinds()
    with making(name, arguments):
        env = maker(**arguments)
    if isinstance(env, parallel):
        return Game(env)
    if isinstance(env, aec):
        return AecGame(env)
    raise RequestError(
        f"environment {name!r} is a {type(env).__name__}, neither an AECEnv nor a ParallelEnv.",
        "try: a callable that makes one of them each time",
    )


def agent_spaces_of(game: Game, name: str) -> AgentSpaces:
    """Observation and action space of every agent that may ever be there."""
    env = game.env
    try:
        agents = list(env.possible_agents)
        pairs = {agent: (env.observation_space(agent), env.action_space(agent)) for agent in agents}
        if len(pairs) < len(agents) or not pairs:
            raise ValueError(f"possible_agents is {agents}")
        for agent, pair in pairs.items():
            if not (isinstance(agent, str) and all(isinstance(space, Space) for space in pair)):
                raise TypeError(f"agent {agent!r} has the spaces {pair}")
    except Exception as error:
        raise RequestError(
            f"environment {name!r} does not tell its agents and their spaces: {described(error)}.",
            "list all agents, each by a string of its own, in possible_agents, and define "
            "observation_space(agent) and action_space(agent)",
        ) from error
    return pairs


def _kinds() -> tuple[type[Any], type[Any]]:
    pettingzoo = import_module("pettingzoo")
    return pettingzoo.AECEnv, pettingzoo.ParallelEnv


def _by_id(env: str) -> Callable[..., Any]:
    family, _, name = env.removeprefix(_PREFIX).partition("/")
    try:
        with warnings.catch_warnings():
            # PettingZoo's modules warn of a registry that older versions do not have.
            warnings.simplefilter("ignore", DeprecationWarning)
            _kinds()
            module = import_module(f"{_FAMILIES.get(family, f'pettingzoo.{family}')}.{name}")
            maker: Callable[..., Any] = getattr(module, "parallel_env", None) or module.env
    except (ImportError, AttributeError, ValueError) as error:
        extra = "rlplug[multiagent]" if family in _FAMILIES else f"pettingzoo[{family}]"
        raise RequestError(
            f"environment {env!r} cannot be imported.",
            described(error),
            f"try: pip install '{extra}', or an id such as {_PREFIX}mpe/simple_spread_v3",
        ) from error
    return maker


def map_agents(
    name: str, agent_spaces: AgentSpaces, sections: Mapping[str, ModuleSection]
) -> dict[str, str]:
    """The module id of every agent; raises all that is wrong with `[modules]`.

    Without sections, agents with equal spaces share a module: `default` if that is one module for
    all, else modules named after their agents.
    """
    if not sections:
        return _shared(agent_spaces)
    problems: list[Problem] = []
    claims: dict[str, list[str]] = {agent: [] for agent in agent_spaces}
    for module_id, section in sections.items():
        path, own = f"modules.{module_id}.agents", dict[str, None]()
        if not section.patterns:
            problems.append(Problem(path, "names no agent: give names or patterns"))
        for pattern in section.patterns:
            agents = matching(agent_spaces, pattern)
            if not agents:
                guess = did_you_mean(pattern, agent_spaces, sentence=True)
                problems.append(Problem(path, f"{pattern!r} matches no agent. {guess}".rstrip()))
            own |= dict.fromkeys(agents)
        for agent in own:
            claims[agent].append(module_id)
    if not problems:
        for agent, ids in claims.items():
            if len(ids) != 1:
                said = f"in several: {', '.join(ids)}" if ids else "in no module"
                problems.append(Problem("modules", f"agent {agent!r} is {said}"))
    mapping = {agent: ids[0] for agent, ids in claims.items() if ids}
    problems = problems or _differing(agent_spaces, mapping)
    if problems:
        raise ConfigError("[modules]", problems, f"agents of {name}: {', '.join(agent_spaces)}")
    return mapping


def _shared(agent_spaces: AgentSpaces) -> dict[str, str]:
    """Modules for agents with equal spaces, named after what the names of their agents begin with;
    after the first agent, where others' names begin alike or its own agents' do not.
    """
    groups: list[list[str]] = []
    for agent, pair in agent_spaces.items():
        alike = (group for group in groups if agent_spaces[group[0]] == pair)
        group = next(alike, None)
        if group is None:
            groups.append([agent])
        else:
            group.append(agent)
    if len(groups) == 1:
        return dict.fromkeys(agent_spaces, DEFAULT_MODULE)
    stems = [{agent.rpartition("_")[0] or agent for agent in group} for group in groups]
    mapping: dict[str, str] = {}
    for group, own in zip(groups, stems, strict=True):
        is_name = len(own) == 1 and stems.count(own) == 1
        mapping |= dict.fromkeys(group, min(own) if is_name else group[0])
    return mapping


def _differing(agent_spaces: AgentSpaces, mapping: Mapping[str, str]) -> list[Problem]:
    """Modules whose agents have different spaces."""
    problems = []
    firsts: dict[str, str] = {}
    for agent, module_id in mapping.items():
        first = firsts.setdefault(module_id, agent)
        for place, kind in enumerate(("observations", "actions")):
            here, there = agent_spaces[agent][place], agent_spaces[first][place]
            if here != there:
                said = f"{kind} of its agents differ: {first!r} has {describe(there)}, "
                said += f"{agent!r} has {describe(here)}; give them modules of their own"
                problems.append(Problem(f"modules.{module_id}", said))
    return problems
