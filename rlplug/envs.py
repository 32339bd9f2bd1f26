"""Environments: made from an id or a callable, many in one vector, their spaces known."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

import attrs
import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rlplug.errors import (
    ConfigError,
    EnvironmentFailedError,
    Problem,
    RequestError,
    RlplugError,
    did_you_mean,
)

__all__ = ["EnvMaker", "Environments", "describe_env", "long_episodes", "make_environments"]

EnvMaker: TypeAlias = "str | Callable[..., gymnasium.Env[Any, Any]]"


@attrs.frozen(eq=False)
class Environments:
    """Several environments that are stepped together."""

    vector: VectorEnv[Any, Any, Any]
    name: str
    autoreset: AutoresetMode

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""
        return self.vector.single_observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""
        return self.vector.single_action_space

    @property
    def num_envs(self) -> int:
        """How many there are."""
        return self.vector.num_envs


def make_environments(env: EnvMaker, num_envs: int, arguments: Mapping[str, Any]) -> Environments:
    """`num_envs` environments; an environment's own vector form is used where it has one."""
    name = describe_env(env)
    if not isinstance(env, str):
        makers = [lambda: _made(env, name, arguments)] * num_envs
        return _wrapped(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP), name)
    spec = _spec(env)
    _check_arguments(spec, arguments)
    native = spec.vector_entry_point is not None
    autoreset = None if native else {"autoreset_mode": AutoresetMode.SAME_STEP}
    try:
        vector = gymnasium.make_vec(
            spec,
            num_envs=num_envs,
            vectorization_mode="vector_entry_point" if native else "sync",
            vector_kwargs=autoreset,
            **arguments,
        )
    except RlplugError:
        raise
    except Exception as error:
        raise _cannot_make(name, arguments, error) from error
    return _wrapped(vector, name)


def describe_env(env: EnvMaker) -> str:
    """The id, or what a callable is called."""
    if isinstance(env, str):
        return env
    return getattr(env, "__name__", type(env).__name__)


def long_episodes(env: EnvMaker, arguments: Mapping[str, Any], seed: int) -> str | None:
    """Why this is no bandit: its episodes go on after one step. One is tried, apart."""
    probe = make_environments(env, 1, arguments)
    try:
        probe.vector.reset(seed=seed % 2**31)
        probe.vector.action_space.seed(seed % 2**31)
        _, _, terminated, truncated, _ = probe.vector.step(probe.vector.action_space.sample())
    except RlplugError:
        raise
    except Exception as error:
        raise EnvironmentFailedError(
            f"environment {probe.name!r} failed in its first step: {type(error).__name__}: {error}",
            "try: mend the environment (--debug shows where)",
        ) from error
    finally:
        probe.vector.close()
    if (terminated | truncated).all():
        return None
    return "it is for bandits, whose episodes have one step; here they go on"


def _spec(env: str) -> EnvSpec:
    # Its import registers the environments that the core brings.
    import rlplug.bandits  # noqa: F401 # imported for the registration

    package, _, env_id = env.rpartition(":")
    if package:
        try:
            import_module(package)
        except ImportError as error:
            raise RequestError(
                f"environment {env!r} names a package that cannot be imported: {error}.",
                f"try: pip install {package.partition('.')[0]}",
            ) from error
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        guess = did_you_mean(env_id, sorted(gymnasium.registry), sentence=True)
        raise RequestError(
            f"unknown environment {env!r}. {guess}".rstrip(),
            "try: --env with an id that is registered, or 'package:Id-v0' to import its package",
        ) from error


def _check_arguments(spec: EnvSpec, arguments: Mapping[str, Any]) -> None:
    """Refuse what the constructor does not take, before anything is made."""
    if spec.entry_point is None or not arguments:
        return
    creator = (
        load_env_creator(spec.entry_point)
        if isinstance(spec.entry_point, str)
        else spec.entry_point
    )
    parameters = inspect.signature(creator).parameters
    if any(one.kind == one.VAR_KEYWORD for one in parameters.values()):
        return
    problems = []
    for name in arguments:
        if name not in parameters:
            guess = did_you_mean(name, parameters)
            said = f"{spec.id} takes no such argument" + (f", {guess}" if guess else "")
            problems.append(Problem(f"env.{name}", said))
    if problems:
        taken = ", ".join(parameters) or "nothing"
        raise ConfigError(f"the options of {spec.id}", problems, f"it takes: {taken}")


def _made(env: Any, name: str, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        made = env(**arguments)
    except RlplugError:
        raise
    except Exception as error:
        raise _cannot_make(name, arguments, error) from error
    if not isinstance(made, gymnasium.Env):
        raise RequestError(
            f"{name} made {type(made).__name__}, which is no gymnasium.Env.",
            "try: a callable that returns an environment",
        )
    return made


def _cannot_make(name: str, arguments: Mapping[str, Any], error: Exception) -> RequestError:
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
    return RequestError(
        f"environment {name!r} could not be made with {given}:",
        f"{type(error).__name__}: {error}",
        "try: other arguments in [env]     (--debug shows the traceback)",
    )


def _wrapped(vector: VectorEnv[Any, Any, Any], name: str) -> Environments:
    declared = vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return Environments(vector, name, AutoresetMode(declared))
