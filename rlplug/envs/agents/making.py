"""Make games from an id, an import path or a callable, and tell them from other environments."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from gymnasium import Space

from rlplug.envs.agents.games import AecGame, Game, ParallelGame
from rlplug.envs.making import EnvMaker, cannot_make, imported_maker, makes_vector
from rlplug.errors import RequestError, RlplugError, closest
from rlplug.spaces import AnySpace

__all__ = ["PREFIX", "agent_spaces_of", "game_maker", "make_game"]

PREFIX = "pettingzoo:"
"""Ids of PettingZoo begin with it: `pettingzoo:mpe/simple_spread_v3`."""

_FAMILIES = {"mpe": "mpe2"}
"""Families that are packages of their own."""

_EXAMPLE = f"try: --env {PREFIX}mpe/simple_spread_v3"


def game_maker(env: EnvMaker, arguments: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What makes one environment with several agents; None for all other environments.

    Once PettingZoo is imported, a function is called to see what it makes.
    """
    if isinstance(env, str) and env.startswith(PREFIX):
        return _by_id(env)
    maker = env
    if isinstance(env, str):
        if ":" not in env:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            maker = imported_maker(env) or ""
    if not callable(maker) or makes_vector(maker) or "pettingzoo" not in sys.modules:
        return None
    kinds = _kinds()
    if isinstance(maker, type):
        return maker if issubclass(maker, kinds) else None
    # What is wrong with it is told where it is made.
    with suppress(Exception):
        made = maker(**arguments)
        made.close()
        return maker if isinstance(made, kinds) else None
    return None


def make_game(maker: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Game:
    """One environment with several agents."""
    aec, parallel = _kinds()
    try:
        env = maker(**arguments)
    except RlplugError:
        raise
    except Exception as error:
        raise cannot_make(name, arguments, error) from error
    if isinstance(env, parallel):
        return ParallelGame(env)
    if isinstance(env, aec):
        return AecGame(env)
    raise RequestError(
        f"environment {name!r} is a {type(env).__name__}, neither an AECEnv nor a ParallelEnv.",
        "try: a callable that makes one of them each time",
    )


def agent_spaces_of(game: Game, name: str) -> dict[str, tuple[AnySpace, AnySpace]]:
    """Observation and action space of every agent that may ever be there."""
    agents = getattr(game.env, "possible_agents", None) or ()
    if not all(isinstance(agent, str) for agent in agents) or len(set(agents)) < len(agents):
        agents = ()
    if not agents or isinstance(agents, str):
        raise RequestError(
            f"environment {name!r} does not say which agents there may be: its possible_agents is "
            f"{getattr(game.env, 'possible_agents', None)!r}.",
            "list all of them there, each by a string of its own such as 'agent_0'",
        )
    pairs = {}
    for agent in agents:
        try:
            pairs[agent] = game.env.observation_space(agent), game.env.action_space(agent)
        except Exception as error:
            raise RequestError(
                f"environment {name!r} has no spaces for agent {agent!r}: "
                f"{type(error).__name__}: {error}.",
                "define observation_space(agent) and action_space(agent) for all possible_agents",
            ) from error
        for kind, space in zip(("observation", "action"), pairs[agent], strict=True):
            if not isinstance(space, Space):
                raise RequestError(
                    f"environment {name!r} has no {kind} space for agent {agent!r}, but "
                    f"{type(space).__name__}.",
                    f"return a gymnasium.spaces.Space from {kind}_space(agent)",
                )
    return pairs


def _kinds() -> tuple[type[Any], type[Any]]:
    install = "try: pip install 'rlplug[multiagent]'"
    pettingzoo = _import("pettingzoo", "environments with several agents need", install)
    return pettingzoo.AECEnv, pettingzoo.ParallelEnv


def _by_id(env: str) -> Callable[..., Any]:
    family, _, name = env.removeprefix(PREFIX).partition("/")
    if not family.isidentifier() or not name:
        raise RequestError(f"unknown environment {env!r}.", _EXAMPLE)
    _kinds()
    package, name = _FAMILIES.get(family, f"pettingzoo.{family}"), name.replace("-", "_")
    extra = "rlplug[multiagent]" if family in _FAMILIES else f"pettingzoo[{family}]"
    try:
        module = _import(
            f"{package}.{name}", f"environment {env!r} needs", f"try: pip install '{extra}'"
        )
        maker: Callable[..., Any] = getattr(module, "parallel_env", None) or module.env
    except (ModuleNotFoundError, AttributeError) as error:
        raise _unknown(env, family, package, name) from error
    return maker


def _unknown(env: str, family: str, package: str, name: str) -> RequestError:
    """The error for an id that a family does not have."""
    known: list[str] = []
    with suppress(ImportError):
        folders = getattr(import_module(package), "__path__", [])
        # Modules of environments have a version.
        known = [one.name for one in iter_modules(folders) if re.search(r"_v\d+$", one.name)]
    guess = closest(name, known)
    meant = f" Did you mean '{PREFIX}{family}/{guess}'?" if guess else ""
    others = f"environments of {package}: {', '.join(known)}" if known else _EXAMPLE
    return RequestError(f"unknown environment {env!r}.{meant}", others)


def _import(module: str, needs: str, install: str) -> ModuleType:
    """Import a module; one that does not exist is left to the caller."""
    try:
        with warnings.catch_warnings():
            # PettingZoo's modules warn of a registry that older versions do not have.
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module(module)
    except ImportError as error:
        missing = error.name or ""
        if "." in module and module.startswith(missing) and missing.partition(".")[2]:
            raise
        raise RequestError(f"{needs} more: {error}.", install) from error
