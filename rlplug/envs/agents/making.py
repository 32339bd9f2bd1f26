"""Make games from an id, an import path or a callable; which module acts for which agent."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from rlplug.batch.episodes import DEFAULT_MODULE
from rlplug.config.sections import ModuleSection
from rlplug.envs.agents.games import AecGame, AgentSpaces, Game, ParallelGame
from rlplug.envs.making import EnvMaker, makes_vector, making, resolved
from rlplug.envs.wrappers import import_path
from rlplug.errors import ConfigError, Problem, RequestError, did_you_mean
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
        return ParallelGame(env)
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
            f"environment {name!r} does not tell its agents and their spaces: "
            f"{type(error).__name__}: {error}.",
            "list all agents, each by a string of its own, in possible_agents, and define "
            "observation_space(agent) and action_space(agent)",
        ) from error
    return pairs


def _kinds() -> tuple[type[Any], type[Any]]:
    pettingzoo = import_module("pettingzoo")
    return pettingzoo.AECEnv, pettingzoo.ParallelEnv


def _by_id(env: str) -> Callable[..., Any]:
    family, _, name = env.removeprefix(_PREFIX).partition("/")
    package = _FAMILIES.get(family, f"pettingzoo.{family}")
    try:
        with warnings.catch_warnings():
            # PettingZoo's modules warn of a registry that older versions do not have.
            warnings.simplefilter("ignore", DeprecationWarning)
            _kinds()
            module = import_module(f"{package}.{name}")
            maker: Callable[..., Any] = getattr(module, "parallel_env", None) or module.env
    except (ImportError, AttributeError, ValueError) as error:
        known: list[str] = []
        with suppress(ImportError):
            folders = getattr(import_module(package), "__path__", [])
            # Modules of environments have a version.
            known = [f"{_PREFIX}{family}/{one.name}" for one in iter_modules(folders)]
            known = [one for one in known if "_v" in one]
        guess = did_you_mean(env, known, sentence=True)
        what = f"environment {env!r} cannot be imported."
        what = what if env in known else f"unknown environment {env!r}. {guess}".rstrip()
        extra = "rlplug[multiagent]" if family in _FAMILIES else f"pettingzoo[{family}]"
        raise RequestError(
            what,
            f"{type(error).__name__}: {error}",
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
        path = f"modules.{module_id}.agents"
        if not section.patterns:
            problems.append(Problem(path, "names no agent: give names or patterns"))
        for pattern in section.patterns:
            try:
                matching = _matching(pattern, module_id, list(agent_spaces), sections)
            except Exception as error:
                problems.append(Problem(path, f"{pattern!r} failed: {error}"))
                continue
            if not matching:
                guess = did_you_mean(pattern, agent_spaces)
                said = f"{pattern!r} matches no agent" + (f", {guess}" if guess else "")
                problems.append(Problem(path, said))
            for agent in matching:
                claims[agent] += [module_id] if module_id not in claims[agent] else []
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
    groups: list[list[str]] = []
    for agent, pair in agent_spaces.items():
        group = next((one for one in groups if agent_spaces[one[0]] == pair), None)
        if group is None:
            groups.append([agent])
        else:
            group.append(agent)
    if len(groups) == 1:
        return dict.fromkeys(agent_spaces, DEFAULT_MODULE)
    stems = [{agent.rpartition("_")[0] or agent for agent in group} for group in groups]
    names = []
    for group, own in zip(groups, stems, strict=True):
        (stem, *more) = sorted(own)
        alone = sum(stem in others for others in stems) == 1
        names.append(stem if alone and not more else group[0])
    return {agent: name for name, group in zip(names, groups, strict=True) for agent in group}


def _matching(
    pattern: str, module_id: str, agents: Sequence[str], sections: Mapping[str, Any]
) -> list[str]:
    """The agents that a pattern, or a function with an import path, gives a module."""
    if ":" not in pattern:
        return [agent for agent in agents if fnmatchcase(agent, pattern)]
    function = import_path(pattern)
    answers = {agent: function(agent) for agent in agents}
    for agent, answer in answers.items():
        if answer not in sections:
            guess = did_you_mean(str(answer), sections)
            said = f"agent {agent!r} has an unknown module {answer!r}"
            raise ValueError(f"{said}, {guess}" if guess else said)
    return [agent for agent, answer in answers.items() if answer == module_id]


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
