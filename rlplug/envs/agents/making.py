"""Make games from an id, an import path or a callable, and tell them from other environments."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from gymnasium import Space

from rlplug.envs.agents.games import AecGame, Game, ParallelGame
from rlplug.envs.making import EnvMaker, imported_maker, makes_vector
from rlplug.errors import RequestError, RlplugError, closest
from rlplug.spaces import AnySpace

__all__ = ["PREFIX", "agent_spaces_of", "game_maker", "make_game"]

PREFIX = "pettingzoo:"
"""Ids of PettingZoo begin with it: `pettingzoo:mpe/simple_spread_v3`."""

_FAMILIES = {"mpe": "mpe2"}
"""Families that are packages of their own."""

_INSTALL = "try: pip install 'rlplug[multiagent]'"


def game_maker(env: EnvMaker, arguments: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What makes one environment with several agents; None for all other environments.

    A callable is called once to see what it makes, where PettingZoo is used.
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
    if not callable(maker) or makes_vector(maker) or not _uses_games(maker):
        return None
    kinds = _kinds()
    if isinstance(maker, type):
        return maker if issubclass(maker, kinds) else None
    return maker if _makes_games(maker, kinds, arguments) else None


def make_game(maker: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Game:
    """One environment with several agents."""
    aec, parallel = _kinds()
    try:
        env = maker(**arguments)
    except RlplugError:
        raise
    except Exception as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in arguments.items())
        raise RequestError(
            f"environment {name!r} cannot be made{f' with {given}' if given else ''}: "
            f"{type(error).__name__}: {error}.",
            "try: other options in [env]; what is no option there is passed to the environment",
        ) from error
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
    agents = getattr(game.env, "possible_agents", None)
    if not agents or isinstance(agents, str):
        raise RequestError(
            f"environment {name!r} does not say which agents there may be.",
            "give it possible_agents, the names of all of them",
        )
    unnamed = [agent for agent in agents if not isinstance(agent, str)]
    if unnamed:
        raise RequestError(
            f"environment {name!r} has agents whose names are no strings in possible_agents: "
            f"{', '.join(map(str, unnamed))}.",
            f"name them as PettingZoo does, such as 'agent_{unnamed[0]}'",
        )
    if len(set(agents)) < len(agents):
        raise RequestError(
            f"environment {name!r} has agents of the same name in possible_agents: "
            f"{', '.join(map(str, agents))}.",
            "give each a name of its own",
        )
    try:
        found = {
            agent: (game.env.observation_space(agent), game.env.action_space(agent))
            for agent in agents
        }
    except Exception as error:
        raise RequestError(
            f"environment {name!r} has no spaces for its agents: {type(error).__name__}: {error}.",
            "define observation_space(agent) and action_space(agent) for all possible_agents",
        ) from error
    for agent, pair in found.items():
        for kind, space in zip(("observation", "action"), pair, strict=True):
            if not isinstance(space, Space):
                raise RequestError(
                    f"environment {name!r} has no {kind} space for agent {agent!r}, but "
                    f"{type(space).__name__}.",
                    f"return a gymnasium.spaces.Space from {kind}_space(agent)",
                )
    return found


def _kinds() -> tuple[type[Any], type[Any]]:
    pettingzoo = _import("pettingzoo", "environments with several agents need")
    return pettingzoo.AECEnv, pettingzoo.ParallelEnv


def _by_id(env: str) -> Callable[..., Any]:
    family, _, name = env.removeprefix(PREFIX).partition("/")
    if not family.isidentifier() or not name:
        raise RequestError(
            f"unknown environment {env!r}.", f"try: --env {PREFIX}mpe/simple_spread_v3"
        )
    _kinds()
    package = _FAMILIES.get(family, f"pettingzoo.{family}")
    install = _INSTALL if family in _FAMILIES else f"try: pip install 'pettingzoo[{family}]'"
    name = name.replace("-", "_")
    module = _import(
        f"{package}.{name}",
        f"environment {env!r} needs",
        install,
        lambda: _others(family, package, name),
    )
    maker: Any = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if maker is None:
        raise RequestError(f"unknown environment {env!r}.", f"see: the environments of {package}")
    return maker  # type: ignore[no-any-return] # whatever PettingZoo has there


def _others(family: str, package: str, name: str) -> tuple[str, str]:
    """What is meant by a name that a package does not have, and what it has."""
    try:
        folders = getattr(import_module(package), "__path__", [])
    except ImportError:
        folders = []
    # Those of environments have a version.
    known = [one.name for one in iter_modules(folders) if re.search(r"_v\d+$", one.name)]
    if not known:
        return "", f"try: --env {PREFIX}mpe/simple_spread_v3"
    guess = closest(name, known)
    return (
        f"Did you mean '{PREFIX}{family}/{guess}'?" if guess else "",
        f"environments of {package}: {', '.join(known)}",
    )


def _import(
    module: str,
    needs: str,
    install: str = _INSTALL,
    others: Callable[[], tuple[str, str]] = lambda: ("", "see: its name"),
) -> ModuleType:
    try:
        with warnings.catch_warnings():
            # PettingZoo's modules warn of a registry that older versions do not have.
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module(module)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == module.partition(".")[0] and error.name != missing:
            guess, hint = others()
            raise RequestError(
                f"{needs} {module!r}, which does not exist. {guess}".rstrip(), hint
            ) from error
        raise RequestError(f"{needs} more: {error}.", install) from error


def _uses_games(maker: Callable[..., Any]) -> bool:
    """Whether PettingZoo was imported, or will be: a function or its module speaks of it."""
    if "pettingzoo" in sys.modules:
        return True
    if find_spec("pettingzoo") is None:
        return False
    for one in (maker, inspect.getmodule(maker)):
        # Neither has a text where there is no file, and classes of notebooks have none.
        with contextlib.suppress(OSError, TypeError):
            text = inspect.getsource(one)  # type: ignore[arg-type] # no module is a TypeError
            if any(word in text for word in ("pettingzoo", *_FAMILIES.values())):
                return True
    return False


def _makes_games(
    maker: Callable[..., Any], kinds: tuple[type[Any], ...], arguments: Mapping[str, Any]
) -> bool:
    try:
        made = maker(**arguments)
    except Exception:
        # What is wrong with it is told where it is made.
        return False
    found = isinstance(made, kinds)
    close = getattr(made, "close", None)
    if close is not None:
        close()
    return found
