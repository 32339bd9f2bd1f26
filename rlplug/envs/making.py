"""Make environments, or their vector form, from an id, an import path or a callable."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import gymnasium
import numpy
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from rlplug.envs.sync import set_spaces
from rlplug.envs.wrappers import Wrap
from rlplug.errors import (
    FAILURES,
    EnvironmentFailedError,
    RequestError,
    RlplugError,
    described,
    did_you_mean,
)

__all__ = [
    "EnvMaker",
    "describe_env",
    "make_one",
    "make_vector",
    "makes_vector",
    "making",
    "native_autoreset_mode",
    "resolved",
    "trying",
]

EnvMaker: TypeAlias = "str | Callable[..., gymnasium.Env[Any, Any]]"

_POOL = "envpool/"
"""Ids of EnvPool begin with it."""


def describe_env(env: EnvMaker) -> str:
    """The id, or the name of a callable."""
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)


def resolved(env: EnvMaker) -> EnvSpec | Callable[..., Any]:
    """The spec of a registered id, or the class or function of an import path or a callable.

    `package:Id-v0` imports the package first.
    """
    # Registers the bandit environments.
    import rlplug.bandits  # noqa: F401 # imported for the registration

    if not isinstance(env, str):
        return env
    if env.startswith(_POOL):
        return partial(PoolVector, env.removeprefix(_POOL))
    package, _, env_id = env.rpartition(":")
    try:
        module = import_module(package) if package else None
    except ImportError as error:
        top = package.partition(".")[0]
        raise RequestError(
            f"environment {env!r} names a package that cannot be imported: {error}.",
            f"try: pip install {top}; or python -m rlplug, where {top} is in this folder",
        ) from error
    maker: Any = getattr(module, env_id, None)
    try:
        # An id without a version may look like a class.
        if not callable(maker) or env_id in gymnasium.registry:
            maker = gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        guess = did_you_mean(env_id, dir(module), sentence=True) if package else ""
        raise RequestError(
            f"unknown environment {env!r}. {guess}".rstrip(),
            str(error),
            "try: --env with a registered id, or with its package: ale_py:ALE/Breakout-v5",
        ) from error
    spec_or_callable: EnvSpec | Callable[..., Any] = maker
    return spec_or_callable


def makes_vector(maker: EnvSpec | Callable[..., Any]) -> bool:
    """Whether it makes vector environments only: a callable takes their number, `num_envs`."""
    if isinstance(maker, EnvSpec):
        return maker.entry_point is None
    try:
        return "num_envs" in inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return False


def native_autoreset_mode(maker: EnvSpec | Callable[..., Any]) -> AutoresetMode | None:
    """Autoreset mode of the environment's own vector form; None if it has none."""
    entry = maker.vector_entry_point if isinstance(maker, EnvSpec) else None
    if entry is None:
        return None
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    metadata = getattr(creator, "metadata", {})
    return AutoresetMode(metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))


def make_one(
    maker: EnvSpec | Callable[..., Any],
    name: str,
    arguments: Mapping[str, Any],
    wraps: Sequence[Wrap] = (),
) -> gymnasium.Env[Any, Any]:
    """One environment with its wrappers."""
    with making(name, arguments):
        made: Any
        if isinstance(maker, EnvSpec):
            made = gymnasium.make(maker, **arguments)
        else:
            made = maker(**arguments)
        for wrap in wraps if isinstance(made, gymnasium.Env) else ():
            made = wrap(made)
    if not isinstance(made, gymnasium.Env):
        raise RequestError(
            f"{name} made {type(made).__name__}, which is no gymnasium.Env.",
            "try: a callable or wrappers that return an environment",
        )
    return made


def make_vector(
    maker: EnvSpec | Callable[..., Any],
    name: str,
    num_envs: int,
    arguments: Mapping[str, Any],
    device: str,
) -> Any:
    """The environment's own vector form; on this device, if a callable takes one."""
    with making(name, arguments):
        if isinstance(maker, EnvSpec):
            mode = "vector_entry_point"
            return gymnasium.make_vec(maker, num_envs, vectorization_mode=mode, **arguments)
        if "device" in inspect.signature(maker).parameters:
            arguments = {"device": device, **arguments}
        return maker(num_envs=num_envs, **arguments)


@contextmanager
def making(name: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Names the environment that could not be made, above what it says itself."""
    try:
        yield
    except RlplugError:
        raise
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
        raise RequestError(
            f"environment {name!r} could not be made with {given}:",
            described(error),
            "try: install what it needs, or other options in [env] (--debug shows the traceback)",
        ) from error


@contextmanager
def trying(name: str, method: str) -> Iterator[None]:
    """Names the environment that fails as it is tried."""
    try:
        yield
    except RlplugError:
        raise
    except FAILURES as error:
        raise EnvironmentFailedError(
            f"environment {name!r} failed in its first {method}: {described(error)}",
            "try: fix the environment (--debug shows where)",
        ) from error


class PoolVector(VectorEnv[Any, Any, Any]):
    """An EnvPool with the interface of Gymnasium's vector environments.

    EnvPool is seeded when it is made: a reset with a seed makes a new one. Its infos are dropped.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, env_id: str, num_envs: int, **arguments: Any) -> None:
        """Make it with these arguments of `envpool.make`."""
        make = import_module("envpool").make_gymnasium
        self._make = partial(make, env_id, num_envs=num_envs, **arguments)
        with warnings.catch_warnings():
            # Its spaces are made when they are read, with bounds that are cast to float32.
            warnings.simplefilter("ignore", UserWarning)
            self._pool: Any = self._make(seed=0)
            set_spaces(self, self._pool.observation_space, self._pool.action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all; with a seed, each gets one of its own under it."""
        if seed is not None:
            self._pool = self._make(seed=seed)
        observations, _ = self._pool.reset()
        return observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all; those whose episode ended in the last step are reset instead."""
        if isinstance(self.single_action_space, gymnasium.spaces.Discrete):
            actions = numpy.asarray(actions, numpy.int32)
        observations, rewards, terminated, truncated, _ = self._pool.step(actions)
        return observations, rewards, terminated, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        """End its threads, which the `close` of EnvPool leaves until nothing refers to it."""
        self._pool = None
