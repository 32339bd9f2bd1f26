"""The runners of a run on Ray: samplers in processes of their own, and what stands for them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import attrs
import torch
from gymnasium.vector import AutoresetMode

from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
from rlplug.envs.environments import SpacesOnly
from rlplug.envs.normalization import Normalization
from rlplug.errors import RequestError, RlplugError
from rlplug.feeds import ModuleFeeds, OpenFeed
from rlplug.learner.device import limit_threads
from rlplug.plugin import Module
from rlplug.runs.in_step import shared
from rlplug.runs.kinds import setup_for
from rlplug.runs.rebuilding import job_of, rebuilt
from rlplug.runs.setup import Setup
from rlplug.sampling import Collector
from rlplug.scale.cluster import connected, this_node
from rlplug.scale.ray_sampler import RaySampler
from rlplug.seeding import derive, forked

__all__ = ["Runner", "environments_elsewhere", "runner_sampler"]

Told: TypeAlias = tuple[Any, tuple[str, tuple[str, ...], bool] | None]
"""A result, or the message and hints of an error and whether it is one of the request."""

_WANTED = ("steps_per_collect", "wants_next", "by_environment", "on_policy", "state_interval")


def environments_elsewhere(setup: Setup) -> Environments:
    """The spaces and the statistics of environments that runners will make."""
    config = setup.config
    number = config.sampling.num_envs
    probe = setup.few_environments(max(min(number // config.scale.runners, 2), 1))
    if isinstance(probe, AgentEnvironments):
        return probe
    space = probe.vector.single_observation_space
    problem = {**setup.problem_of(probe), **config.env.arguments}.get("problem_seed")
    vector = SpacesOnly(space, probe.action_space, number, problem)
    scaled = probe.normalization is not None
    probe.close()
    return attrs.evolve(
        probe,
        vector=vector,
        normalization=Normalization(config.env, space, number) if scaled else None,
        autoreset=AutoresetMode.SAME_STEP,
    )


def runner_sampler(
    setup: Setup,
    environments: Environments,
    modules: Mapping[str, Module],
    feed: OpenFeed,
    stack: ExitStack,
) -> RaySampler:
    """Runners on the cluster of the run, which it is connected to until the end."""
    config = setup.config
    section = config.scale
    ray = stack.enter_context(connected(section))
    # Rollouts are of the newest weights, unless somebody asks for others.
    newest = 0 if feed.on_policy else 1
    ahead = section.max_staleness if section.max_staleness >= 0 else newest
    job = {
        **job_of(setup.prepared, setup.maker),
        "runners": section.runners,
        "several": section.runners * section.learners > 1,
        "threads": torch.get_num_threads(),
        "path": [] if section.address else sys.path,
        "feed": _wants(feed),
        "stale": ahead > 0,
    }
    reference: Any = ray.put(job)
    actor = ray.remote(
        num_cpus=section.runner_cpus,
        num_gpus=section.runner_gpus,
        resources=dict(section.runner_resources) or None,
        max_restarts=0,
    )(Runner)
    strategies: Any = import_module("ray.util.scheduling_strategies")

    def make_runner(index: int, *, life: int, beside: str = "") -> Any:
        kind = actor
        if beside:
            node = strategies.NodeAffinitySchedulingStrategy(beside, soft=True)
            # A byte, as Ray places actors that reserve nothing on any node, whatever the strategy.
            nothing = {"num_cpus": 0, "num_gpus": 0, "resources": {}, "memory": 1}
            kind = actor.options(**nothing, scheduling_strategy=node)
        # Ray may have lost count of what one was made from whose node has left.
        given = ray.put(job) if life else reference
        return kind.remote(given, setup.index * section.runners + index, life=life)

    parts, collecting, roster = environments.modules, list(modules), None
    if isinstance(environments, AgentEnvironments) and isinstance(feed, ModuleFeeds):
        parts, collecting = environments.stored, list(feed.by_module)
    if config.league.is_used:
        from rlplug.runs.league import roster_for

        roster = roster_for(config, environments.agents, modules, collecting)
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
        roster=roster,
    )
    stack.callback(sampler.close)
    return sampler


def _wants(feed: OpenFeed) -> OpenFeed:
    """A feed that wants the same of experience, and takes nothing; for other processes."""
    if isinstance(feed, ModuleFeeds):
        return ModuleFeeds({name: _wants(own) for name, own in feed.by_module.items()})
    wanting = OpenFeed()
    for name in _WANTED:
        setattr(wanting, name, getattr(feed, name))
    return wanting


class Runner:
    """The sampler of one process, in a process of its own.

    `job` says what to run; `index` counts the runners of all learners, and `life` earlier runners
    in this place. Errors are told, not raised: a process that is gone must not look like them.
    """

    def __init__(self, job: Mapping[str, Any], index: int, *, life: int) -> None:
        self._job, self._index, self._life = job, index, life
        self._stack = ExitStack()
        self._version = -1
        self._environments: Environments
        self._modules: dict[str, Module]
        self._sampler: Collector

    def build(self) -> Told:
        """Make modules and environments."""
        # On the machine of the run, what its process finds is found in the same place.
        sys.path.extend(one for one in self._job["path"] if one not in sys.path)
        return self._told(self._build)

    def _told(self, do: Callable[[], Any]) -> Told:
        """What this returns, or how it failed and where."""
        made, failure = _told(do)
        if failure is not None:
            message, hints, is_request = failure
            where = f"runner {self._index} on host {socket.gethostname()}"
            failure = f"{where}: {message}", hints, is_request
        return made, failure

    def node(self) -> Told:
        """The node that it is on."""
        return _told(lambda: this_node(import_module("ray")))

    def start(self, seed: int | None, league: Mapping[str, Any] | None) -> Told:
        """Reset the environments; `league` is what `Roster.tell` gives, if there is one."""
        if seed is None and self._life:
            seed = self._later_seed()
        self._hear(league)
        return self._told(partial(self._sampler.start, seed))

    def collect(
        self, weights: Mapping[str, Any], timestep: int, league: Mapping[str, Any] | None
    ) -> Told:
        """Take the next steps with these weights."""
        self._hear(league)
        return self._told(partial(self._collect, weights, timestep))

    def take_sums(self) -> Told:
        """What the metrics of episodes are computed from."""
        stats = self._sampler.stats_by_module
        return _told(lambda: {name: one.take_sums() for name, one in stats.items()})

    def get_state(self, environments: bool) -> Told:
        """All that the next collection depends on."""
        return _told(partial(self._sampler.get_state, environments=environments))

    def set_state(
        self, saved: Mapping[str, Any], seed: int | None, league: Mapping[str, Any] | None
    ) -> Told:
        """Restore a state; tells why environments were reset, or nothing."""
        seed = self._later_seed() if seed is None else seed
        self._hear(league)
        return _told(partial(self._sampler.set_state, saved, seed=seed))

    def _later_seed(self) -> int:
        """The seed of episodes that start here, where another runner was before."""
        return derive(self._seed, "runner", self._life)

    def _hear(self, league: Mapping[str, Any] | None) -> None:
        """Have the pool of the learner."""
        roster = self._sampler.roster
        if roster is not None and league is not None:
            roster.hear(league)

    def _build(self) -> None:
        job = self._job
        prepared = shared(rebuilt(job), job["runners"])
        config = prepared.config
        self._seed = seed = config.run.seed
        # A runner alone does what the one process of a local run does.
        place = (self._index,) if self._index else ()
        self._stack.enter_context(forked(derive(seed, "global", *place)))
        setup = setup_for(prepared, job["env"], index=self._index, several=job["several"])
        environments = setup.environments(tensors=False)
        self._stack.callback(environments.close)
        first = self._index * environments.num_envs
        self._environments = environments = attrs.evolve(environments, first=first)
        limit_threads(job["threads"])
        calls = prepared.hooks()
        for module_id, section in config.modules.items():
            calls.configs.set_options(prepared.algorithm.found.name, module_id, section.options)
        self._modules = {
            module_id: calls.build(
                module_id,
                own.observation_space,
                own.action_space,
                derive(seed, "module", module_id),
                environments.training_spaces.get(module_id),
            )
            for module_id, own in environments.modules.items()
        }
        if config.compute.dtype == "float64":
            for module in self._modules.values():
                module.to(torch.float64)
        feed = job["feed"]
        self._sampler = setup.collector(environments, self._modules, feed)
        # What other weights chose is learned from by how probable it was for them.
        self._sampler.want_log_prob(job["stale"] and feed.on_policy)

    def _collect(self, weights: Mapping[str, Any], timestep: int) -> dict[str, Any]:
        version, sampler = weights["version"], self._sampler
        if version != self._version:
            self._load(weights)
            self._version = version
        sampler.version = version
        experience, roster = sampler.collect(timestep), sampler.roster
        return {
            "experience": experience,
            "step_seconds": sampler.step_seconds,
            "results": [] if roster is None else roster.take_results(),
        }

    def _load(self, weights: Mapping[str, Any]) -> None:
        # Copies: arrays in the object store cannot be written.
        for module_id, module in self._modules.items():
            state = {
                name: torch.from_numpy(value.copy()) if hasattr(value, "dtype") else value
                for name, value in weights["modules"][module_id].items()
            }
            module.load_state_dict(state)
        if self._environments.normalization is not None:
            self._environments.normalization.set_state(weights["normalization"])


def _told(do: Callable[[], Any]) -> Told:
    try:
        return do(), None
    except RlplugError as error:
        return None, (error.message, error.hints, isinstance(error, RequestError))
    except Exception as error:
        return None, (f"{type(error).__name__}: {error}", (), False)
