"""Vector environments: made from options, with normalisation and seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import attrs
import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit

from rlplug.batch.episodes import DEFAULT_MODULE
from rlplug.config.sections import EnvSection, SamplingSection
from rlplug.envs.making import (
    EnvMaker,
    describe_env,
    make_one,
    make_vector,
    makes_vector,
    native_autoreset_mode,
    resolved,
    trying,
)
from rlplug.envs.normalization import Normalization
from rlplug.envs.saving import random_actions
from rlplug.envs.sync import SyncVector, check_columns
from rlplug.envs.tensors import ArrayVector, TensorVector, tensor_vector
from rlplug.envs.workers import WorkerVector
from rlplug.envs.wrappers import single_env_options, wrappers_from
from rlplug.errors import FAILURES, RequestError, described
from rlplug.logs.encoding import Encoder
from rlplug.seeding import derive

__all__ = ["Environments", "SpacesOnly", "long_episodes", "make_environments"]

_LOG = logging.getLogger("rlplug")

_NATIVE_FROM = 16
"""Number of environments from which native vectors are faster, despite steps that only reset."""


@attrs.frozen(eq=False)
class SpacesOnly:
    """In place of a vector: the spaces of a log, of a module's agents, of what is elsewhere."""

    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]
    num_envs: int = 1
    problem_seed: int | None = None
    """What gives a bandit environment its hidden parameters."""
    close: Callable[[], None] = lambda: None

    @property
    def unwrapped(self) -> SpacesOnly:
        """Itself, as of a vector."""
        return self

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Of all environments."""
        return batch_space(self.single_action_space, self.num_envs)


@attrs.frozen(eq=False)
class Environments:
    """A vector environment and how its observations and rewards are scaled."""

    vector: Any
    name: str
    autoreset: AutoresetMode
    normalization: Normalization | None = None
    """None: observations and rewards are not scaled."""
    frame_stack: int = 1
    """Frames that an observation is a stack of, along its first axis, the newest last."""
    first: int = 0
    """How many environments of the run are in processes before this one."""
    another: Callable[[], Any] | None = None
    """Makes another vector with environments of the same kind, if it is of arrays and here."""
    agents: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """The module of each agent, where there are several agents."""
    training_spaces: Mapping[str, gymnasium.Space[Any]] = attrs.field(factory=dict, kw_only=True)
    """Of the modules that learn from more than one agent sees, what they learn from."""
    encoder: Encoder | None = attrs.field(default=None, kw_only=True)
    """How observations and actions were read from a log; None: from no log."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Of one environment, after normalisation."""
        space: gymnasium.Space[Any] = self.vector.single_observation_space
        return space if self.normalization is None else self.normalization.space(space)

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""
        space: gymnasium.Space[Any] = self.vector.single_action_space
        return space

    @property
    def modules(self) -> Mapping[str, Environments]:
        """What each module has of them, by id; several agents may have several modules."""
        return {DEFAULT_MODULE: self}

    @property
    def num_envs(self) -> int:
        """The number of environments."""
        return int(self.vector.num_envs)

    @property
    def device(self) -> torch.device | None:
        """Where the tensors of environments of tensors are; None for those of arrays."""
        return self.vector.device if isinstance(self.vector, TensorVector) else None

    def as_arrays(self) -> Environments:
        """The same environments of tensors as environments of arrays."""
        scaling = None if self.normalization is None else self.normalization.of_arrays()
        return attrs.evolve(self, vector=ArrayVector(self.vector), normalization=scaling)

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """Reset all, each from a seed of its own."""
        seeds: Any = self.seeds(seed)
        separate = isinstance(self.vector, WorkerVector | AsyncVectorEnv)
        if not (separate or hasattr(self.vector, "envs")):
            seeds = self.seed(seed, "environments") % 2**31
        result: tuple[Any, dict[str, Any]] = self.vector.reset(seed=seeds)
        return result

    def seeds(self, seed: int) -> list[int]:
        """The seed of each environment."""
        indices = range(self.first, self.first + self.num_envs)
        return [derive(seed, "environment", index) % 2**31 for index in indices]

    def seed(self, seed: int, purpose: str) -> int:
        """The seed of one purpose, which each process of a run has of its own."""
        return derive(seed, purpose, self.first) if self.first else derive(seed, purpose)

    def close(self) -> None:
        """Close all; an environment that raises takes no result away."""
        try:
            self.vector.close()
        except FAILURES as error:
            # Or Gymnasium would try again, and print the traceback.
            self.vector.closed = True
            _LOG.warning(
                "rlplug: environment %r could not be closed (%s).", self.name, described(error)
            )


def make_environments(
    env: EnvMaker,
    num_envs: int,
    section: EnvSection | Mapping[str, Any],
    *,
    vectorization: str = "auto",
    training: bool = True,
    max_episode_steps: int = 0,
    workers: SamplingSection | None = None,
    seed: int = 0,
    tensors: bool = False,
    device: str = "cpu",
) -> Environments:
    """`num_envs` environments with these options of `[env]`, or with these arguments.

    Vector environments that take a `device` are made on `device`. Those of tensors stay so with
    `tensors`; without, they are seen as arrays. `training=False` switches off episodic lives.
    Episodes are truncated after `max_episode_steps`, if it is not 0. With `workers`, environments
    are in worker processes with these options, whose generators are seeded from `seed`.
    """
    if isinstance(env, gymnasium.Env | VectorEnv):
        raise RequestError(
            f"a {type(env).__name__} was given, where a way to make several is needed.",
            "try: its id, or a callable that makes a new one each time",
        )
    if not isinstance(section, EnvSection):
        section = EnvSection(arguments=section)
    name, maker, arguments = describe_env(env), resolved(env), dict(section.arguments)
    make_all = partial(make_vector, maker, name, num_envs, arguments, device)
    if section.atari and not (isinstance(maker, EnvSpec) and "frameskip" not in maker.kwargs):
        # AtariPreprocessing skips frames itself.
        arguments.setdefault("frameskip", 1)
    single = single_env_options(section)
    single += ["sampling.max_trajectory_length"] if max_episode_steps else []
    single += ["sampling.backend = 'workers'"] if workers is not None else []
    vector: Any
    another: Callable[[], Any] | None = None
    if _takes_vector(maker, name, num_envs, single, vectorization):
        vector, another = make_all(), make_all
        of_tensors = tensor_vector(vector, name)
        if of_tensors is not None:
            vector, another = of_tensors if tensors else ArrayVector(of_tensors), None
    else:
        wraps = wrappers_from(section, training=training)
        if max_episode_steps:
            wraps.append(partial(TimeLimit, max_episode_steps=max_episode_steps))
        make = partial(make_one, maker, name, arguments, wraps)
        if workers is not None:
            vector = WorkerVector(
                make,
                num_envs,
                workers.workers,
                name=name,
                seed=seed,
                timeout=workers.step_timeout,
            )
        elif vectorization == "async":
            mode = AutoresetMode.SAME_STEP
            vector = AsyncVectorEnv([make] * num_envs, autoreset_mode=mode)
            vector.metadata = {**vector.metadata, "autoreset_mode": mode}
        else:
            vector, another = SyncVector([make] * num_envs), partial(SyncVector, [make])
    normalization: Normalization | None = None
    if section.normalize_observation or section.normalize_reward or section.reward_clip:
        space = vector.single_observation_space
        where = vector.device if isinstance(vector, TensorVector) else None
        normalization = Normalization(section, space, num_envs, where)
    mode = AutoresetMode(vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
    return Environments(vector, name, mode, normalization, section.frame_stack, another=another)


def long_episodes(env: EnvMaker, section: EnvSection | Mapping[str, Any], seed: int) -> str | None:
    """Why an environment is not a bandit: its first step ends no episode. None if it is one."""
    probe = make_environments(env, 1, section)
    with closing(probe), trying(probe.name, "step"):
        seed %= 2**31
        vector = probe.vector
        actions = random_actions(vector, vector.reset(seed=seed), seed)
        *columns, _ = vector.step(actions)
        check_columns(vector.observation_space, 1, *columns)
    if (columns[2] | columns[3]).all():
        return None
    return "it is for bandits, whose episodes have one step; here they go on"


def _takes_vector(
    maker: Any, name: str, num_envs: int, single: list[str], vectorization: str
) -> bool:
    """Whether to use the environment's own vector form, which `single` options are not for."""
    only_vector, mode = makes_vector(maker), native_autoreset_mode(maker)
    if vectorization in ("sync", "async"):
        single = [*single, f"sampling.vectorization = {vectorization!r}"]
    if not only_vector and vectorization != "native":
        is_ahead = mode == AutoresetMode.SAME_STEP or num_envs >= _NATIVE_FROM
        return mode is not None and is_ahead and not single
    problem = ""
    if single:
        problem = f"is stepped in its own vector form, which rules out {', '.join(single)}"
    elif not only_vector and mode is None:
        problem = "has no vector form of its own, which sampling.vectorization = 'native' needs"
    if problem:
        raise RequestError(f"environment {name!r} {problem}.", "try: without that option")
    return True
