"""What depends on the kind of a run: its environments, feed, collector and policy."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.config.sections import EnvSection, LearnerSection
from rlplug.envs import Environments, EnvMaker, long_episodes, make_environments
from rlplug.envs.sync import SyncVector, refuse_shared
from rlplug.errors import ConfigError, PluginError, Problem, RequestError
from rlplug.evaluation import Evaluator
from rlplug.feeds import Feed, FeedSetting, OpenFeed
from rlplug.feeds.stream import Logged
from rlplug.learner import Learner
from rlplug.learner.device import device_for_environments
from rlplug.plugin import DEFAULT_MODULE, Module
from rlplug.runs.prepare import Prepared
from rlplug.sampling import make_collector, record_into
from rlplug.seeding import derive
from rlplug.trainer import Sampler

if TYPE_CHECKING:
    from rlplug.scale.ranks import Ranks

__all__ = ["Setup", "own_seed"]

_LOG = logging.getLogger("rlplug")


def own_seed(seed: int, index: int) -> int:
    """The seed of all that learners do not have in common; the first one's is the run's."""
    return derive(seed, "learner", index) if index else seed


class Setup:
    """A run in environments with one agent; other kinds override what differs.

    `index` counts the learners, or runners, that share the run, if there are `several`.
    """

    def __init__(
        self, prepared: Prepared, maker: EnvMaker, *, index: int = 0, several: bool = False
    ) -> None:
        self.prepared, self.config, self.maker = prepared, prepared.config, maker
        self.index, self.several = index, several

    def describe_feed(self) -> Feed:
        """What the algorithm learns from."""
        algorithm = self.prepared.algorithm
        with algorithm.found.calling("feed"):
            feed = algorithm.plugin.feed()
        if not isinstance(feed, Feed):
            raise PluginError(
                f"{algorithm.label}: feed() returned {type(feed).__name__}.",
                "try: return rlplug.feeds.Stream(...), Rollout(...) or Replay(...)",
            )
        if isinstance(feed, Logged) and not self.config.data.is_used:
            raise RequestError(
                f"{algorithm.label} learns from a log only.", "try: rlplug run … --data FILE"
            )
        return feed

    def environments(self, *, tensors: bool = True) -> Environments:
        """The environments to train in; several learners have the same problem."""
        number, section, more = self.config.sampling.num_envs, self.config.env, self._training()
        if tensors:
            more |= {"tensors": True, "device": device_for_environments(self.config.compute)}
        made = self._make(number, section, **more)
        problem = self.problem_of(made) if self.several else {}
        if problem and "problem_seed" not in section.arguments:
            made.close()
            made = self._make(number, _with_arguments(section, problem), **more)
        return made

    def few_environments(self, count: int) -> Environments:
        """As many, to see what they are like."""
        return self._make(count, self.config.env, seed=self.config.run.seed)

    def problem_of(self, environments: Environments) -> dict[str, Any]:
        """What gives all learners the same bandit problem; maybe nothing.

        Vectors of single environments have a problem for each, by its seed; a native one has one.
        """
        vector = environments.vector
        if hasattr(vector, "envs") or not hasattr(vector.unwrapped, "problem_seed"):
            return {}
        # As the one process of a run without other learners draws it.
        seed = derive(self.config.run.seed, "environments") % 2**31
        return {"problem_seed": derive(seed, "problem")}

    def _training(self) -> dict[str, Any]:
        sampling = self.config.sampling
        return {
            "workers": sampling if sampling.backend == "workers" else None,
            "seed": own_seed(self.config.run.seed, self.index),
        }

    def _make(self, num_envs: int, section: EnvSection, **more: Any) -> Environments:
        options = {
            "vectorization": self.config.sampling.vectorization,
            "max_episode_steps": self.config.sampling.max_trajectory_length,
        }
        return make_environments(self.maker, num_envs, section, **{**options, **more})

    def long_episodes(self) -> str | None:
        """Why an algorithm for bandits cannot learn here; None if it can."""
        return long_episodes(self.maker, self.config.env, self.config.run.seed)

    def refuse_options(self, environments: Environments) -> None:
        """Refuse options of several agents."""
        config = self.config
        names = [f"modules.{module_id}" for module_id in config.modules]
        if config.learner.modules_to_train != LearnerSection().modules_to_train:
            names.append("learner.modules_to_train")
        if config.league.is_used:
            names.append("league")
        if names:
            why = f"is for environments with several agents; {environments.name!r} has one"
            raise ConfigError("the options", [Problem(name, why) for name in names])

    def adapted(self, environments: Environments, learner: Learner, feed: Feed) -> Environments:
        """Environments of tensors as arrays, if module or feed do not take tensors."""
        if environments.device is None:
            return environments
        if learner.modules[DEFAULT_MODULE].acts_on_tensors and feed.takes_tensors:
            return environments
        _LOG.warning(
            "rlplug: %s acts on arrays: each step copies the tensors of environment %r to the "
            "host.",
            self.prepared.algorithm.label,
            environments.name,
        )
        return environments.as_arrays()

    def for_evaluation(
        self, training: Environments, num_envs: int, *, alone: bool = False, **arguments: Any
    ) -> Environments:
        """Separate environments, of the same problem instance where there are several.

        With `alone`, every agent is alone in a module named after it.
        """
        made = self._make(
            num_envs,
            self._section_like(training, arguments),
            # Vector environments do not render.
            vectorization="sync" if arguments else self.config.sampling.vectorization,
            max_episode_steps=0,
            training=False,
            device=device_for_environments(self.config.compute),
        )
        if isinstance(training.vector, SyncVector) and isinstance(made.vector, SyncVector):
            refuse_shared([*training.vector.envs, *made.vector.envs])
        return made

    def _section_like(self, training: Environments, arguments: Mapping[str, Any]) -> EnvSection:
        problem = getattr(training.vector.unwrapped, "problem_seed", None)
        more = {} if problem is None else {"problem_seed": problem}
        return _with_arguments(self.config.env, {**arguments, **more})

    def open_feed(
        self, feed: Feed, environments: Environments, learner: Learner, ranks: Ranks | None
    ) -> OpenFeed:
        """The feed of the run."""
        setting = self._setting(environments, learner.modules[DEFAULT_MODULE])
        if ranks is not None:
            # Of several modules, one may have rows in some learners alone, which would wait.
            setting = attrs.evolve(setting, least=ranks.least)
        return feed.open(setting)

    def _setting(self, environments: Environments, module: Module) -> FeedSetting:
        config = self.config
        return FeedSetting(
            observation_space=environments.vector.single_observation_space,
            action_space=environments.action_space,
            num_envs=environments.num_envs,
            steps=config.run.steps,
            seed=own_seed(config.run.seed, self.index),
            double=config.compute.dtype == "float64",
            has_memory=module.initial_state(1) is not None,
            frame_stack=environments.frame_stack,
            num_epoch_samples=config.sampling.num_epoch_samples,
            normalization=environments.normalization,
            device=environments.device,
        )

    def sampler(self, environments: Environments, learner: Learner, feed: OpenFeed) -> Sampler:
        """What takes the steps of the run in this process."""
        sampler: Sampler = self.collector(environments, learner.modules, feed)
        return sampler

    def collector(
        self, environments: Environments, modules: Mapping[str, Module], feed: OpenFeed
    ) -> Any:
        """Collects what the feed asks for, in this process."""
        collector = make_collector(self.config, environments, modules, feed)
        if self.config.sampling.record:
            record_into(collector, self.config, environments, feed)
        return collector

    def policy(self, modules: Mapping[str, Module]) -> Module:
        """What acts in evaluations, and is what the run comes to."""
        return modules[DEFAULT_MODULE]

    def normalize(self, environments: Environments) -> Any:
        """What changes the observations of evaluations: a function, or None."""
        scaling = environments.normalization
        return None if scaling is None else scaling.observations

    def evaluator(self, training: Environments, sampler: Sampler, **options: Any) -> Evaluator:
        """Evaluates the policy in environments of its own."""
        options["step_timeout"] = self.config.sampling.step_timeout
        return Evaluator(lambda count: self.for_evaluation(training, count), **options)


def _with_arguments(section: EnvSection, arguments: Mapping[str, Any]) -> EnvSection:
    return attrs.evolve(section, arguments={**section.arguments, **arguments})
