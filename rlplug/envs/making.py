"""Make one environment, or its native vector form, from an id or a callable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from rlplug.envs.pool import PREFIX, register_pool
from rlplug.envs.wrappers import Wrap
from rlplug.errors import ConfigError, Problem, RequestError, RlplugError, did_you_mean

__all__ = [
    "EnvMaker",
    "cannot_make",
    "describe_env",
    "find_spec",
    "imported_maker",
    "make_native",
    "make_one",
    "make_vector",
    "makes_vector",
]

EnvMaker: TypeAlias = "str | Callable[..., gymnasium.Env[Any, Any]]"


def describe_env(env: EnvMaker) -> str:
    """The id, or the name of a callable."""
    if isinstance(env, str):
        return env
    return getattr(env, "__name__", type(env).__name__)


def _makes_environments(value: Any) -> bool:
    return hasattr(value, "reset") or inspect.isfunction(value)


def find_spec(env: str) -> EnvSpec:
    """The spec of a registered id; `package:Id-v0` imports the package first.

    Ids of EnvPool begin with `envpool/`.
    """
    # Registers the bandit environments.
    import rlplug.bandits  # noqa: F401 # imported for the registration

    if env.startswith(PREFIX):
        register_pool(env)
    package, _, env_id = env.rpartition(":")
    module = _import(env, package) if package else None
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        prefix = f"{package}:" if package else ""
        known = [prefix + own for own in gymnasium.registry]
        advice = "--env with an id that is registered, or 'package:Id-v0' to import its package"
        if module is not None:
            makers = vars(module).items()
            known += [prefix + name for name, maker in makers if _makes_environments(maker)]
            advice = f"a class or function of {package!r}, or an id that it registers"
        elif env_id.startswith("ALE/"):
            advice = f"--env ale_py:{env_id}, with pip install 'rlplug[atari]'"
        guess = did_you_mean(env, known, sentence=True)
        raise RequestError(
            f"unknown environment {env!r}. {guess}".rstrip(), f"try: {advice}"
        ) from error


def imported_maker(env: str) -> Callable[..., Any] | None:
    """The class or function of an import path, `module:Class`; None for ids of Gymnasium."""
    package, _, name = env.rpartition(":")
    if not package or not name.isidentifier():
        return None
    maker = getattr(_import(env, package), name, None)
    # An id without a version may look the same.
    return maker if callable(maker) and name not in gymnasium.registry else None


def makes_vector(maker: Callable[..., Any]) -> bool:
    """Whether a callable makes vector environments: it takes their number, `num_envs`."""
    try:
        return "num_envs" in inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return False


def make_vector(
    maker: Callable[..., Any], name: str, num_envs: int, arguments: Mapping[str, Any], device: str
) -> Any:
    """What a callable that takes `num_envs` makes; on this device, if it takes one."""
    parameters = inspect.signature(maker).parameters
    if not any(one.kind == one.VAR_KEYWORD for one in parameters.values()):
        _refuse_unknown(name, list(parameters), set(parameters), arguments)
    if "device" in parameters:
        arguments = {"device": device, **arguments}
    try:
        return maker(num_envs=num_envs, **arguments)
    except RlplugError:
        raise
    except Exception as error:
        raise cannot_make(name, arguments, error) from error


def _import(env: str, package: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError as error:
        top = package.partition(".")[0]
        advice = f"pip install {top}"
        if (error.name or "").partition(".")[0] != top:
            advice = f"fix {top}, or install what it imports"
        elif Path(f"{top}.py").exists() or Path(top).is_dir():
            # The current folder is not searched.
            advice = f"python -m rlplug, which finds the {top} of this folder"
        raise RequestError(
            f"environment {env!r} names a package that cannot be imported: {error}.",
            f"try: {advice}",
        ) from error


def make_one(
    env: EnvSpec | Callable[..., gymnasium.Env[Any, Any]],
    name: str,
    arguments: Mapping[str, Any],
    wraps: Sequence[Wrap] = (),
) -> gymnasium.Env[Any, Any]:
    """One environment with its wrappers."""
    try:
        made = gymnasium.make(env, **arguments) if isinstance(env, EnvSpec) else env(**arguments)
    except RlplugError:
        raise
    except Exception as error:
        raise cannot_make(name, arguments, error) from error
    if not isinstance(made, gymnasium.Env):
        raise RequestError(
            f"{name} made {type(made).__name__}, which is no gymnasium.Env.",
            "try: a callable that returns an environment; one with several agents is recognised "
            "where pettingzoo is imported before",
        )
    for wrap in wraps:
        try:
            made = wrap(made)
        except RlplugError:
            raise
        except Exception as error:
            raise RequestError(
                f"a wrapper could not be put around environment {name!r}:",
                f"{type(error).__name__}: {error}",
                "try: other env.wrappers     (--debug shows the traceback)",
            ) from error
    return made


def native_autoreset_mode(spec: EnvSpec) -> AutoresetMode | None:
    """Autoreset mode of the environment's own vector form; None if it has none."""
    entry = spec.vector_entry_point
    if entry is None:
        return None
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    metadata = getattr(creator, "metadata", {})
    return AutoresetMode(metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))


def make_native(
    spec: EnvSpec, name: str, num_envs: int, arguments: Mapping[str, Any]
) -> VectorEnv[Any, Any, Any]:
    """The environment's own vector form."""
    try:
        return gymnasium.make_vec(
            spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **arguments
        )
    except RlplugError:
        raise
    except Exception as error:
        raise cannot_make(name, arguments, error) from error


def check_arguments(spec: EnvSpec, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the constructor does not take."""
    parameters = constructor_arguments(spec) if arguments else None
    if parameters is not None:
        # An argument of gymnasium.make, not of the constructor.
        _refuse_unknown(spec.id, parameters, {*parameters, "max_episode_steps"}, arguments)


def _refuse_unknown(
    env: str, parameters: list[str], known: set[str], arguments: Mapping[str, Any]
) -> None:
    problems = []
    for name in arguments:
        if name not in known:
            meant = "an id is given with --env" if name == "id" else did_you_mean(name, known)
            said = f"{env} takes no such argument" + (f", {meant}" if meant else "")
            problems.append(Problem(f"env.{name}", said))
    if problems:
        taken = ", ".join(parameters) or "nothing"
        raise ConfigError(f"the options of {env}", problems, f"it takes: {taken}")


def constructor_arguments(spec: EnvSpec) -> list[str] | None:
    """The arguments of an environment's constructor; None if it may take any."""
    entry = spec.entry_point
    if entry is None:
        return None
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    parameters = inspect.signature(creator).parameters
    if any(one.kind == one.VAR_KEYWORD for one in parameters.values()):
        return None
    return list(parameters)


def cannot_make(name: str, arguments: Mapping[str, Any], error: Exception) -> RequestError:
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
    missing = isinstance(error, gymnasium.error.DependencyNotInstalled)
    way = "install what it needs" if missing else "other arguments in [env]"
    return RequestError(
        f"environment {name!r} could not be made with {given}:",
        f"{type(error).__name__}: {error}",
        f"try: {way}     (--debug shows the traceback)",
    )
