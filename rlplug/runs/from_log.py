"""Runs that learn from a log: their options, environments, feed and sampler."""

from __future__ import annotations

from typing import Any

import attrs
import numpy
from gymnasium.vector import AutoresetMode

from rlplug.config.data_section import DataSection
from rlplug.config.sections import EnvSection, RunConfig
from rlplug.config.sources import Layers
from rlplug.durable import absolute_path
from rlplug.envs import Environments
from rlplug.envs.environments import SpacesOnly
from rlplug.errors import ConfigError, Problem, RequestError
from rlplug.feeds import Feed, OpenFeed
from rlplug.feeds.stream import Logged, OpenLogged, feed_for_log
from rlplug.learner import Learner
from rlplug.logs import Log
from rlplug.plugin import DEFAULT_MODULE
from rlplug.sampling.log import LogReader, OfflineEvaluation
from rlplug.seeding import derive
from rlplug.spaces import describe, outline

__all__ = ["check_spaces", "derive_data", "environments_of", "feed_of", "sampler_of"]

_EPISODES_OF_BANDITS = 1000


def derive_data(config: RunConfig, feed: Any, layers: Layers) -> RunConfig:
    """Unless set: no environment, and one pass over the log.

    The default environment of the algorithm has nothing to do with the log.
    """
    if not config.data.is_used:
        _refuse_without_log(config.data)
        return config
    run, evaluation, data = config.run, config.evaluation, config.data
    if config.sampling.record:
        raise RequestError(
            "sampling.record has no effect on a run that learns from a log: nothing acts.",
            "try: rlplug eval RUN --env ID --record DIR",
        )
    if _is_default(layers, "run", "env"):
        run = _set(layers, "run", run, "no environment: data.files", env="")
    if not run.env:
        _refuse_without_env(config, layers)
        evaluation = _set(layers, "evaluation", evaluation, "no environment", episodes=0)
    elif getattr(feed, "one_step_episodes", False) and _is_default(
        layers, "evaluation", "episodes"
    ):
        origin = "default for one-step episodes"
        evaluation = _set(layers, "evaluation", evaluation, origin, episodes=_EPISODES_OF_BANDITS)
    # A policy that was trained is loaded without the log: its steps are known.
    if _is_default(layers, "run", "steps"):
        run = _set(layers, "run", run, "the rows of the log", steps=Log.open(data).rows)
    if data.format != "minari":
        files = tuple(str(absolute_path(one, "data.files:")) for one in data.files)
        data = attrs.evolve(data, files=files)
    return attrs.evolve(config, run=run, evaluation=evaluation, data=data)


def _set(layers: Layers, section: str, options: Any, origin: str, **values: Any) -> Any:
    for name, value in values.items():
        layers.put((section, name), value, origin)
    return attrs.evolve(options, **values)


def _is_default(layers: Layers, *path: str) -> bool:
    origin = layers.origins.get(path, "default")
    return origin.startswith("default")


def _refuse_without_log(data: DataSection) -> None:
    """Refuse options of logs where there is none: `num_arms` alone is one of them."""
    unset = DataSection()
    names = [
        field.name
        for field in attrs.fields(DataSection)
        if getattr(data, field.name) != getattr(unset, field.name)
    ]
    if names:
        raise ConfigError(
            "a run that learns in an environment",
            [Problem(f"data.{name}", "has no effect without a log") for name in names],
            "try: --data FILE, or env.NAME for an argument of the environment",
        )


def _refuse_without_env(config: RunConfig, layers: Layers) -> None:
    """Refuse options of environments where there is none."""
    problems = []
    if config.env != EnvSection():
        names = [path[1] for path in layers.origins if path[0] == "env" and path[1:]]
        problems += [
            Problem(f"env.{name}", "has no effect without an environment") for name in names
        ]
    for path, origin in layers.origins.items():
        is_set = not origin.startswith(("default", "no environment"))
        if path[:1] == ("evaluation",) and path[1:] and is_set and config.evaluation.episodes:
            problems.append(Problem(".".join(path), "there is no environment to evaluate in"))
    if config.sampling.backend != "in_process":
        problems.append(Problem("sampling.backend", "a log is read in this process"))
    if problems:
        raise ConfigError(
            "a run that learns from a log", problems, "try: --env ID, or leave these options out"
        )


def environments_of(log: Log) -> Environments:
    """The spaces of the log, where no environment is named."""
    spaces = SpacesOnly(log.observation_space, log.action_space)
    return Environments(spaces, log.name, AutoresetMode.SAME_STEP)


def check_spaces(log: Log, environments: Environments) -> None:
    """Refuse an environment whose spaces are not those of the log."""
    pairs = {
        "observations": (log.observation_space, environments.vector.single_observation_space),
        "actions": (log.action_space, environments.action_space),
    }
    for what, (logged, there) in pairs.items():
        if outline(logged) != outline(there):
            raise RequestError(
                f"the {what} of log {log.name!r} are {describe(logged)}, those of environment "
                f"{environments.name!r} are {describe(there)}.",
                "try: the environment that was logged, or no --env",
            )
    if environments.normalization is not None:
        raise RequestError(
            "observations and rewards of a log are not normalized.",
            "try: leave env.normalize_observation, env.normalize_reward and env.reward_clip out",
        )


def feed_of(feed: Feed, data: DataSection, label: str) -> Feed:
    """The feed of a run: that of the algorithm, or what it is for a log."""
    if data.is_used:
        return feed_for_log(feed, label)
    if isinstance(feed, Logged):
        raise RequestError(f"{label} learns from a log only.", "try: rlplug run … --data FILE")
    return feed


def sampler_of(log: Log, config: RunConfig, feed: OpenFeed, learner: Learner) -> LogReader:
    """Reads the log as the feed wants it."""
    data, minibatches = config.data, isinstance(feed, OpenLogged)
    shared: dict[str, Any] = {"steps": config.run.steps, "seed": config.run.seed}
    if data.offline_evaluation != "off":
        _check_evaluation(log, data)
        shared["trains_on_accepted"] = data.offline_evaluation == "accepted"
        shared["evaluation"] = OfflineEvaluation(
            learner.modules[DEFAULT_MODULE],
            random=numpy.random.default_rng(derive(config.run.seed, "offline evaluation")),
            # A bandit acts by its confidence bound; others explore at random.
            explores=not minibatches and not config.sampling.optimal,
            max_weight=data.max_importance_weight,
            critical_weight=data.eval_model_update_critical_weight,
            learners=learner.world_size,
            reduce=learner.all_reduce,
        )
    if isinstance(feed, OpenLogged):
        return LogReader(
            log,
            rows=feed.minibatch_size,
            pool=data.shuffle_rows,
            wants_next=feed.wants_next,
            n_step=feed.n_step,
            gamma=feed.gamma,
            **shared,
        )
    return LogReader(log, rows=data.rows_per_update, **shared)


def _check_evaluation(log: Log, data: DataSection) -> None:
    """Refuse a log that cannot be compared with."""
    if not log.is_bandit or not log.num_arms:
        raise RequestError(
            f"data.offline_evaluation compares single choices among arms; log {log.name!r} has "
            "others.",
            "try: leave it out",
        )
    if not log.has_propensities and not data.assume_uniform:
        raise RequestError(
            f"data.offline_evaluation needs propensities, and log {log.name!r} has none.",
            "try: --set data.propensity=COLUMN, or --set assume_uniform=true if its actions were "
            "chosen uniformly at random",
        )
