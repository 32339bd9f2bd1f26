"""Collectors for tests, without a run around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlplug import Module
from rlplug.config.sections import SamplingSection
from rlplug.envs import Environments
from rlplug.envs.workers import WorkerVector
from rlplug.evaluation import EvaluationResult, Evaluator
from rlplug.feeds import ModuleFeeds, OpenFeed
from rlplug.sampling import Collector


def wanted(
    *,
    keep_next: bool = True,
    by_environment: bool = False,
    state_interval: int = 0,
    on_policy: bool = False,
) -> OpenFeed:
    """A feed that wants this of experience, and takes nothing."""
    feed = OpenFeed()
    feed.wants_next, feed.by_environment = keep_next, by_environment
    feed.state_interval, feed.on_policy = state_interval, on_policy
    return feed


def collector(environments: Environments, module: Module, **options: Any) -> Collector:
    """A collector of one module, with options of `wanted`, of `[sampling]`, and of collectors."""
    names = ("keep_next", "by_environment", "state_interval", "on_policy")
    feed = wanted(**{name: options.pop(name) for name in names if name in options})
    fields = [field.name for field in attrs.fields(SamplingSection)]
    section = {name: options.pop(name) for name in fields if name in options}
    if isinstance(environments.vector, WorkerVector):
        section |= {"backend": "workers", "num_envs": environments.num_envs}
    options["options"] = SamplingSection(**section)
    return Collector(environments, {"default": module}, {"default": feed}, **options)


def agent_collector(
    environments: Environments, modules: Mapping[str, Module], feeds: ModuleFeeds, **options: Any
) -> Collector:
    """A collector of several modules."""
    return Collector(environments, modules, feeds.by_module, **options)


def evaluated(
    module: Module, environments: Environments, *, episodes: int, max_steps: int = 100, **more: Any
) -> EvaluationResult:
    """The greedy episodes of a module in environments that are there."""
    evaluator = Evaluator(
        lambda parallel: environments,
        episodes=episodes,
        parallel=environments.num_envs,
        seed=0,
        max_episode_steps=max_steps,
        **more,
    )
    evaluator.evaluate(module, 0)
    assert evaluator.result is not None
    return evaluator.result
