"""The sampler of a run whose environments are stepped by runners, and what stands for them here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import attrs
import torch
from gymnasium.vector import AutoresetMode

from rlplug.config.sections import RunConfig
from rlplug.envs import Environments, EnvMaker, make_environments
from rlplug.envs.agents import AgentEnvironments, agent_environments
from rlplug.envs.environments import SpacesOnly
from rlplug.envs.normalization import Normalization
from rlplug.feeds import ModuleFeeds, OpenFeed
from rlplug.plugin import Module
from rlplug.runs.league import roster_for
from rlplug.runs.learners.share import problem_arguments
from rlplug.runs.prepare import Prepared
from rlplug.runs.rebuilding import job_of
from rlplug.runs.runners.runner import Runner, wanted_of
from rlplug.scale.cluster import connected
from rlplug.scale.ray_sampler import RaySampler

__all__ = ["environments_elsewhere", "runner_sampler"]


def environments_elsewhere(config: RunConfig, maker: EnvMaker) -> Environments:
    """The spaces and the statistics of environments that runners will make."""
    number = config.sampling.num_envs
    some = max(min(number // config.scale.runners, 2), 1)
    games = agent_environments(maker, some, config.env, config.modules)
    if games is not None:
        return games.elsewhere(config.env, number)
    probe = make_environments(
        maker,
        some,
        config.env,
        vectorization=config.sampling.vectorization,
        max_episode_steps=config.sampling.max_trajectory_length,
        seed=config.run.seed,
    )
    space = probe.vector.single_observation_space
    vector = SpacesOnly(space, probe.vector.single_action_space, number)
    problem = problem_arguments(probe, config.run.seed)
    problem = {**problem, **{k: v for k, v in config.env.arguments.items() if k in problem}}
    for name, value in problem.items():
        # For evaluations, which take place in the same problem.
        setattr(vector, name, value)
    normalization = None
    if probe.normalization is not None:
        normalization = Normalization(config.env, space, number)
    probe.close()
    return attrs.evolve(
        probe,
        vector=vector,
        normalization=normalization,
        autoreset=AutoresetMode.SAME_STEP,
    )


def runner_sampler(
    prepared: Prepared,
    maker: EnvMaker,
    environments: Environments,
    modules: Mapping[str, Module],
    feed: OpenFeed,
    stack: ExitStack,
    *,
    learner: int = 0,
) -> RaySampler:
    """Runners on the cluster of the run, which it is connected to until the end.

    `prepared` is the share of this `learner`.
    """
    config = prepared.config
    section = config.scale
    ray = stack.enter_context(connected(section))
    ahead = section.max_staleness
    if ahead < 0:
        # Rollouts are of the newest weights, unless somebody asks for others.
        ahead = 0 if feed.on_policy else 1
    job = {
        **job_of(prepared, maker),
        "runners": section.runners,
        "several": section.runners * section.learners > 1,
        "threads": torch.get_num_threads(),
        "path": [] if section.address else sys.path,
    }
    shared: Any = ray.put(job)
    actor = ray.remote(
        num_cpus=section.runner_cpus,
        num_gpus=section.runner_gpus,
        resources=dict(section.runner_resources) or None,
        max_restarts=0,
    )(Runner)
    wanted = wanted_of(feed)
    strategies: Any = import_module("ray.util.scheduling_strategies")

    def make_runner(index: int, *, life: int, beside: str = "") -> Any:
        kind = actor
        if beside:
            node = strategies.NodeAffinitySchedulingStrategy(beside, soft=True)
            # A byte, as Ray places actors that reserve nothing on any node, whatever the strategy.
            nothing = {"num_cpus": 0, "num_gpus": 0, "resources": {}, "memory": 1}
            kind = actor.options(**nothing, scheduling_strategy=node)
        first = learner * section.runners
        # Ray may have lost count of what one was made from whose node has left.
        given = ray.put(job) if life else shared
        return kind.remote(given, wanted, first + index, life=life, stale=ahead > 0)

    parts = environments.modules
    if isinstance(environments, AgentEnvironments):
        parts = environments.stored
    collecting = feed.by_module if isinstance(feed, ModuleFeeds) else modules
    sampler = RaySampler(
        ray,
        make_runner,
        environments,
        modules,
        {module_id: parts[module_id].num_envs for module_id in collecting},
        runners=section.runners,
        learners=section.learners,
        ahead=ahead,
        max_restarts=section.max_restarts,
        placement_timeout=section.placement_timeout,
        roster=roster_for(config, environments.agents, modules, collecting),
    )
    stack.callback(sampler.close)
    return sampler
