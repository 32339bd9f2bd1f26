"""A runner: holds a share of a run's environments and copies of its modules, and samples."""

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

from rlplug.envs import Environments, make_environments
from rlplug.envs.agents import AgentEnvironments, agent_environments
from rlplug.errors import RequestError, RlplugError
from rlplug.feeds import ModuleFeeds, OpenFeed
from rlplug.learner.device import limit_threads
from rlplug.runs.agents import agent_collector, described_feeds
from rlplug.runs.league import roster_of
from rlplug.runs.learners.share import own_seed, problem_arguments, shared
from rlplug.runs.prepare import Prepared
from rlplug.runs.rebuilding import rebuilt
from rlplug.sampling import Collector, make_collector
from rlplug.sampling.watchdog import Watchdog
from rlplug.scale.cluster import this_node
from rlplug.seeding import derive, forked

__all__ = ["Runner", "wanted_of"]

Told: TypeAlias = tuple[Any, tuple[str, tuple[str, ...], bool] | None]
"""A result, or the message and hints of an error and whether it is one of the request."""

_WANTED = ("steps_per_collect", "wants_next", "by_environment", "on_policy", "state_interval")


def wanted_of(feed: OpenFeed) -> dict[str, Any]:
    """What a feed wants of experience, or those of several modules."""
    if isinstance(feed, ModuleFeeds):
        return {"by_module": {name: wanted_of(one) for name, one in feed.by_module.items()}}
    return {name: getattr(feed, name) for name in _WANTED}


def _wanting(wanted: Mapping[str, Any]) -> OpenFeed:
    """A feed that wants this, and takes nothing."""
    if "by_module" in wanted:
        return ModuleFeeds({name: _wanting(one) for name, one in wanted["by_module"].items()})
    feed = OpenFeed()
    for name, value in wanted.items():
        setattr(feed, name, value)
    return feed


class Runner:
    """The sampler of one process, in a process of its own.

    `job` says what to run; `wanted` what the feed wants; `index` counts the runners of all
    learners, and `life` earlier runners in this place. Errors are told, not raised: a process that
    is gone must not look like them.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        wanted: Mapping[str, Any],
        index: int,
        *,
        life: int,
        stale: bool,
    ) -> None:
        self._job = job
        self._wanted = wanted
        self._index, self._life, self._stale = index, life, stale
        self._stack = ExitStack()
        self._version = -1
        self._environments: Environments
        self._sampler: Collector

    def build(self) -> Told:
        """Make modules and environments."""
        # On the machine of the run, what its process finds is found in the same place.
        sys.path.extend(one for one in self._job["path"] if one not in sys.path)
        made, failure = _told(self._build)
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
        return _told(partial(self._sampler.start, seed))

    def collect(
        self, weights: Mapping[str, Any], timestep: int, league: Mapping[str, Any] | None
    ) -> Told:
        """Take the next steps with these weights."""
        self._hear(league)
        return _told(partial(self._collect, weights, timestep))

    def take_lists(self) -> Told:
        """What the metrics of episodes are of."""
        return _told(self._take_lists)

    def get_state(self, environments: bool) -> Told:
        """All that the next collection depends on."""
        return _told(partial(self._sampler.get_state, environments=environments))

    def set_state(
        self, saved: Mapping[str, Any], seed: int | None, league: Mapping[str, Any] | None
    ) -> Told:
        """Restore a state; tells why environments were reset, or nothing."""
        if seed is None:
            seed = self._later_seed()
        self._hear(league)
        return _told(partial(self._sampler.set_state, saved, seed=seed))

    def _later_seed(self) -> int:
        """The seed of episodes that start here, where another runner was before."""
        return derive(self._seed, "runner", self._life)

    def _hear(self, league: Mapping[str, Any] | None) -> None:
        """Have the pool of the learner."""
        roster = roster_of(self._sampler)
        if roster is not None and league is not None:
            roster.hear(league)

    def _take_lists(self) -> dict[str, Any]:
        return {name: one.take_lists() for name, one in self._sampler.stats_by_module.items()}

    def _build(self) -> None:
        runners = self._job["runners"]
        prepared = shared(rebuilt(self._job), runners)
        config = prepared.config
        self._seed = seed = config.run.seed
        # A runner alone does what the one process of a local run does.
        place = (self._index,) if self._index else ()
        self._stack.enter_context(Watchdog(config.sampling.step_timeout))
        self._stack.enter_context(forked(derive(seed, "global", *place)))
        environments = self._make_environments(prepared, seed)
        if isinstance(environments, AgentEnvironments):
            environments = environments.storing(described_feeds(prepared, environments))
        first = self._index * environments.num_envs
        self._environments = environments = attrs.evolve(environments, first=first)
        self._stack.callback(environments.close)
        limit_threads(self._job["threads"])
        calls = prepared.hooks()
        for module_id, section in config.modules.items():
            calls.configs.set_options(prepared.algorithm.found.name, module_id, section.options)
        self._modules = {}
        for module_id, own in environments.modules.items():
            module = calls.build(
                module_id,
                own.observation_space,
                own.action_space,
                derive(seed, "module", module_id),
                environments.training_spaces.get(module_id),
            )
            if config.compute.dtype == "float64":
                module.to(torch.float64)
            self._modules[module_id] = module
        feed = _wanting(self._wanted)
        # What other weights chose is learned from by how probable it was for them.
        wants_log_prob = self._stale and feed.on_policy
        if isinstance(environments, AgentEnvironments):
            assert isinstance(feed, ModuleFeeds)
            self._sampler = agent_collector(config, environments, self._modules, feed)
        else:
            self._sampler = make_collector(config, environments, self._modules, feed)
        self._sampler.want_log_prob(wants_log_prob)

    def _make_environments(self, prepared: Prepared, seed: int) -> Environments:
        config = prepared.config
        workers = config.sampling if config.sampling.backend == "workers" else None
        own = own_seed(seed, self._index)
        games = agent_environments(
            *(self._job["env"], config.sampling.num_envs, config.env, config.modules),
            workers=workers,
            seed=own,
        )
        if games is not None:
            return games
        make = partial(
            make_environments,
            self._job["env"],
            config.sampling.num_envs,
            vectorization=config.sampling.vectorization,
            max_episode_steps=config.sampling.max_trajectory_length,
            workers=workers,
            seed=own,
        )
        environments = make(config.env)
        problem = problem_arguments(environments, seed) if self._job["several"] else {}
        if problem and "problem_seed" not in config.env.arguments:
            environments.close()
            arguments = {**config.env.arguments, **problem}
            environments = make(attrs.evolve(config.env, arguments=arguments))
        return environments

    def _collect(self, weights: Mapping[str, Any], timestep: int) -> dict[str, Any]:
        version = weights["version"]
        if version != self._version:
            self._load(weights)
            self._version = version
        sampler = self._sampler
        sampler.version = version
        experience, roster = sampler.collect(timestep), roster_of(sampler)
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
        normalization = self._environments.normalization
        if normalization is not None:
            normalization.set_state(weights["normalization"])


def _told(do: Callable[[], Any]) -> Told:
    try:
        return do(), None
    except RlplugError as error:
        return None, (error.message, error.hints, isinstance(error, RequestError))
    except Exception as error:
        return None, (f"{type(error).__name__}: {error}", (), False)
