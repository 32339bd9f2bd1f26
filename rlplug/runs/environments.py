"""The environments of a run: those that it trains in, and those of evaluations and videos."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from rlplug.config.sections import EnvSection, RunConfig
from rlplug.envs import Environments, EnvMaker, make_environments
from rlplug.envs.agents import AgentEnvironments, agent_environments
from rlplug.envs.sync import SyncVector, refuse_shared
from rlplug.errors import UnsupportedSpaceError
from rlplug.feeds import Feed
from rlplug.learner import Learner
from rlplug.learner.device import device_for_environments
from rlplug.logs import Log
from rlplug.plugin import DEFAULT_MODULE
from rlplug.runs.agents import refuse_options
from rlplug.runs.compatibility import Compatibility
from rlplug.runs.from_log import check_spaces, environments_of
from rlplug.runs.learners.share import own_seed, problem_arguments
from rlplug.runs.prepare import Prepared
from rlplug.runs.runners.sampler import environments_elsewhere
from rlplug.scale.ranks import Ranks

__all__ = [
    "environments_for_evaluation",
    "environments_for_video",
    "tensors_or_arrays",
    "training_environments",
]

_LOG = logging.getLogger("rlplug")


def training_environments(
    prepared: Prepared, maker: EnvMaker, feed: Feed, log: Log | None, ranks: Ranks | None
) -> Environments:
    """The training environments, or a log's spaces; refused if the algorithm cannot have them."""
    config = prepared.config
    games = (
        None
        if log is not None or config.scale.engine == "ray"
        else agent_environments(
            *(maker, config.sampling.num_envs, config.env, config.modules),
            workers=config.sampling if config.sampling.backend == "workers" else None,
            seed=config.run.seed if ranks is None else own_seed(config.run.seed, ranks.index),
        )
    )
    environments: Environments
    if games is not None:
        environments = games if ranks is None else _with_others(games, ranks)
    elif log is not None and not maker:
        environments = environments_of(log)
    elif config.scale.engine == "ray":
        environments = environments_elsewhere(config, maker)
        if ranks is not None:
            environments = _with_others(environments, ranks)
    else:
        make = partial(
            make_environments,
            maker,
            config.sampling.num_envs,
            vectorization=config.sampling.vectorization,
            max_episode_steps=config.sampling.max_trajectory_length,
            workers=config.sampling if config.sampling.backend == "workers" else None,
            seed=config.run.seed if ranks is None else own_seed(config.run.seed, ranks.index),
            tensors=True,
            device=device_for_environments(config.compute),
        )
        environments = make(config.env)
        if ranks is not None:
            environments = _share_of(environments, make, config, ranks)
    algorithm = prepared.algorithm
    try:
        refuse_options(config, environments)
        if log is not None:
            check_spaces(log, environments)
        compatibility = Compatibility(environments, maker, config, log)
        reason = compatibility.unsupported(algorithm.found, algorithm.plugin, feed)
        if reason is not None:
            raise UnsupportedSpaceError(
                f"{algorithm.label} cannot be run on {environments.name!r}: {reason.rstrip('.')}.",
                *compatibility.suggestions(algorithm.found, algorithm.plugin, prepared.registry),
            )
    except BaseException:
        environments.close()
        raise
    return environments


def _share_of(
    environments: Environments,
    make: Callable[[EnvSection], Environments],
    config: RunConfig,
    ranks: Ranks,
) -> Environments:
    """The environments of one learner, which have the problem and the statistics of all."""
    problem = problem_arguments(environments, config.run.seed)
    if problem and "problem_seed" not in config.env.arguments:
        environments.close()
        arguments = {**config.env.arguments, **problem}
        environments = make(attrs.evolve(config.env, arguments=arguments))
    return _with_others(environments, ranks)


def _with_others(environments: Environments, ranks: Ranks) -> Environments:
    """The environments, counted and normalised with those of the other learners."""
    for own in environments.modules.values():
        if own.normalization is not None:
            own.normalization.gather = ranks.gather
    return attrs.evolve(environments, first=ranks.index * environments.num_envs)


def tensors_or_arrays(
    environments: Environments, learner: Learner, feed: Feed, prepared: Prepared
) -> Environments:
    """Environments of tensors, as arrays if module or feed do not take tensors."""
    if learner.modules[DEFAULT_MODULE].acts_on_tensors and feed.takes_tensors:
        return environments
    _LOG.warning(
        "rlplug: %s acts on arrays: each step copies the tensors of environment %r to the host.",
        prepared.algorithm.label,
        environments.name,
    )
    return environments.as_arrays()


def environments_for_evaluation(
    config: RunConfig,
    maker: EnvMaker,
    training: Environments,
    num_envs: int,
    *,
    alone: bool = False,
    **more: Any,
) -> Environments:
    """Separate environments, of the same problem instance where there are several.

    With `alone`, every agent is alone in a module named after it.
    """
    arguments: dict[str, Any] = {**config.env.arguments, **more}
    problem = getattr(training.vector.unwrapped, "problem_seed", None)
    if problem is not None:
        arguments["problem_seed"] = problem
    section = attrs.evolve(config.env, arguments=arguments)
    if isinstance(training, AgentEnvironments):
        modules = {} if alone else config.modules
        agents = {agent: agent for agent in training.agents} if alone else None
        games = agent_environments(
            maker, num_envs, section, modules, agents=agents, told=training.told
        )
        assert games is not None
        return games
    made = make_environments(
        maker,
        num_envs,
        section,
        # Vector environments do not render.
        vectorization="sync" if more else config.sampling.vectorization,
        training=False,
        told=training.told,
        device=device_for_environments(config.compute),
    )
    if isinstance(training.vector, SyncVector) and isinstance(made.vector, SyncVector):
        refuse_shared([*training.vector.envs, *made.vector.envs])
    return made


def environments_for_video(
    config: RunConfig, maker: EnvMaker, training: Environments
) -> Environments:
    return environments_for_evaluation(config, maker, training, 1, render_mode="rgb_array")
