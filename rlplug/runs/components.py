"""The components of a run, made from its options: all that trains, without any tracking."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import attrs

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.checkpoints import Checkpoints
from rlplug.checkpoint.manifest import reading
from rlplug.checkpoint.state import SavedPolicy, init_from
from rlplug.config.sections import CheckpointSection, RunConfig
from rlplug.envs import Environments, EnvMaker
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import PluginError, RequestError, RlplugError
from rlplug.evaluation.video import check_drawing
from rlplug.feeds import Feed, FeedSetting, ModuleFeeds, OpenFeed
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.learner.device import (
    match_environment_device,
    settings_kept,
    without_compiler,
)
from rlplug.logs import Log
from rlplug.plugin import DEFAULT_MODULE, Module
from rlplug.runs.agents import (
    agent_collector,
    agent_feeds,
    described_feeds,
    train_modules,
)
from rlplug.runs.environments import (
    environments_for_evaluation,
    environments_for_video,
    tensors_or_arrays,
    training_environments,
)
from rlplug.runs.from_log import feed_of, sampler_of
from rlplug.runs.league import evaluator_for, refuse_split_teams, roster_of
from rlplug.runs.learners.loop import FirstTasks, RankLimits, RankTrainer
from rlplug.runs.learners.share import own_seed, refuse_unshared, shared
from rlplug.runs.limits import Limits, check_stop_when
from rlplug.runs.periodic import PeriodicTasks
from rlplug.runs.prepare import Prepared
from rlplug.runs.profiler import refuse_short_run
from rlplug.runs.runners.sampler import runner_sampler
from rlplug.runs.signals import Interrupts
from rlplug.runs.videos import Videos
from rlplug.sampling import Collector, make_collector, record_into
from rlplug.scale.ranks import Ranks
from rlplug.scale.ray_sampler import RaySampler
from rlplug.tracking import Tracking
from rlplug.tracking.activity import Activities
from rlplug.trainer import Sampler, Trainer

__all__ = ["Components", "built", "make_components"]

_LOG = logging.getLogger("rlplug")


@attrs.frozen(kw_only=True, eq=False)
class Components:
    """What trains in a run."""

    calls: HookCalls
    environments: Environments
    learner: Learner
    feed: OpenFeed
    sampler: Sampler
    trainer: Trainer
    limits: Limits
    ranks: Ranks | None = None
    """All learners of the run, if there are several."""
    others: Callable[[], Mapping[str, Any]] | None = None
    """Returns the state of the other learners."""

    def periodic(
        self,
        config: RunConfig,
        maker: EnvMaker,
        tracking: Tracking,
        interrupts: Interrupts,
        activities: Activities,
    ) -> PeriodicTasks:
        """Give the trainer evaluations and checkpoints to run at intervals."""
        section, evaluator, videos = config.evaluation, None, None
        training = self.environments
        if section.episodes:
            evaluator = evaluator_for(
                self.sampler,
                partial(environments_for_evaluation, config, maker, training),
                partial(environments_for_evaluation, config, maker, training, alone=True),
                episodes=section.episodes,
                parallel=section.parallel,
                seed=config.run.seed,
                check=interrupts.check,
                max_episode_steps=section.max_episode_steps,
            )
            if section.video:
                videos = Videos(
                    make_environments=partial(environments_for_video, config, maker, training),
                    tracking=tracking,
                    activities=activities,
                    seed=config.run.seed,
                )
        periodic = PeriodicTasks(
            config=config,
            calls=self.calls,
            learner=self.learner,
            feed=self.feed,
            environments=self.environments,
            tracking=tracking,
            limits=self.limits,
            checkpoints=Checkpoints(
                tracking.folder / "checkpoints",
                config.checkpoint.keep,
                keep_best=config.checkpoint.keep_best,
                keep_every=config.checkpoint.keep_every,
                before_commit=tracking.write_journal,
            ),
            evaluator=evaluator,
            videos=videos,
            activities=activities,
            has_id=isinstance(maker, str),
            run_state=partial(self.get_state, environments=config.checkpoint.save_environments),
        )
        ranks = self.ranks
        self.trainer.periodic = periodic if ranks is None else FirstTasks(periodic, ranks)
        interrupts.checkpoint = periodic.save_soon
        return periodic

    def describe_feed(self, section: CheckpointSection) -> str:
        """The feed's buffers, their memory, and whether checkpoints save them; maybe empty."""
        buffers = self.feed.describe()
        if not buffers or self.feed.rows is None:
            return buffers
        if section.save_replay:
            return f"{buffers}; checkpoints save it, in about twice as much on disk"
        return f"{buffers}; not saved: a resumed run starts with an empty one"

    def get_state(self, *, environments: bool) -> dict[str, Any]:
        """The state of what collects and counts; those of learner and feed are saved beside it."""
        state = {
            "trainer": self.trainer.get_state(),
            "sampler": self.sampler.get_state(environments=environments),
            "limits": self.limits.get_state(),
        }
        roster = roster_of(self.sampler)
        if roster is not None:
            state["league"] = roster.get_state()
        return state if self.others is None else {**state, "learners": self.others()}


def make_components(
    prepared: Prepared,
    maker: EnvMaker,
    interrupts: Interrupts,
    stack: ExitStack,
    *,
    resumed: bool = False,
    ranks: Ranks | None = None,
    others: Callable[[], Mapping[str, Any]] | None = None,
) -> Components:
    """Make environments, learner, feed, sampler and trainer, or raise what is wrong.

    A resumed run takes its weights from its checkpoint. With `ranks` they are those of one of
    several learners; `others` returns the state of the other ones.
    """
    learners = 1 if ranks is None else ranks.size
    if ranks is not None:
        prepared = shared(prepared, learners)
    config, calls = prepared.config, prepared.hooks()
    check_stop_when(config)
    log = Log.open(config.data) if config.data.is_used else None
    feed = feed_of(_feed(prepared), config.data, prepared.algorithm.label)
    environments = training_environments(prepared, maker, feed, log, ranks)
    stack.callback(environments.close)
    if ranks is not None:
        feed = feed.shared(learners)
    stack.enter_context(settings_kept())
    if not config.compute.compile:
        stack.enter_context(without_compiler())
    described: Mapping[str, Feed] = {}
    if isinstance(environments, AgentEnvironments):
        described = described_feeds(prepared, environments)
        environments = environments.storing(described)
    learner = _learner(calls, environments, prepared)
    if environments.device is not None:
        environments = tensors_or_arrays(environments, learner, feed, prepared)
    if config.run.init_from and not resumed:
        source = find_checkpoint(config.run.init_from)
        with reading(source, "weights"):
            init_from(
                learner,
                environments.normalization,
                SavedPolicy.read(source),
                strict=config.run.init_strict,
            )
    if config.evaluation.video and config.evaluation.episodes:
        check_drawing(partial(environments_for_video, config, maker, environments), config.run.seed)
    _check_monitored(learner, config)
    opened: OpenFeed
    setting = partial(_setting, prepared, ranks)
    if isinstance(environments, AgentEnvironments):
        opened = agent_feeds(described, environments, learner, setting, ranks)
        teams = [module_id for module_id in opened.by_module if described[module_id].team]
        refuse_split_teams(config, environments.agents, teams)
    else:
        told = setting(environments, learner.modules[DEFAULT_MODULE])
        if ranks is not None:
            # Of several modules, one may have rows in some learners alone, which would wait.
            told = attrs.evolve(told, least=ranks.least)
        opened = feed.open(told)
    if ranks is not None:
        refuse_unshared(environments, opened, learners)
        learner.process_group.check = ranks.refuse_lost
    sampler: Sampler
    if log is not None:
        sampler = sampler_of(log, config, opened, learner)
    else:
        collected = opened.steps_per_collect * environments.num_envs
        collected = (config.sampling.num_epoch_samples or collected) * learners
        _warn_of_overrun(collected, config.run.steps)
        refuse_short_run(config.profiler, config.run.steps, collected)
        modules = learner.modules
        if config.scale.engine == "ray":
            index = 0 if ranks is None else ranks.index
            sampler = runner_sampler(
                prepared, maker, environments, modules, opened, stack, learner=index
            )
        elif isinstance(environments, AgentEnvironments):
            sampler = agent_collector(config, environments, modules, cast(ModuleFeeds, opened))
        else:
            sampler = collector = make_collector(config, environments, modules, opened)
            if config.sampling.record:
                record_into(collector, config, environments, opened)
    made_of = calls, learner, sampler, opened
    if ranks is None:
        limits, stop = Limits(config), interrupts.check
        trainer = Trainer(*made_of, steps=config.run.steps, limits=limits, stop=stop)
    else:
        if isinstance(sampler, Collector | RaySampler):
            for stats in sampler.stats_by_module.values():
                stats.sum = ranks.sum
        roster = roster_of(sampler)
        if roster is not None:
            roster.gather = ranks.gather_in_step
        limits = RankLimits(config, ranks)
        trainer = RankTrainer(
            ranks,
            interrupts,
            *made_of,
            steps=config.run.steps,
            limits=limits,
        )
    return Components(
        calls=calls,
        environments=environments,
        learner=learner,
        feed=opened,
        sampler=sampler,
        trainer=trainer,
        limits=limits,
        ranks=ranks,
        others=others,
    )


def _check_monitored(learner: Learner, config: RunConfig) -> None:
    """Refuse a scheduler that would wait in vain for an evaluation."""
    evaluation = config.evaluation
    if evaluation.episodes and 0 < evaluation.every < config.run.steps:
        return
    for name in sorted(learner.optimizers.monitored):
        if name.startswith("eval/"):
            raise RequestError(
                f"a scheduler monitors {name!r}, but there is no evaluation before the end of the "
                f"run (evaluation.episodes = {evaluation.episodes}, evaluation.every = "
                f"{evaluation.every:,}).",
                "try: --set evaluation.episodes=10 --set "
                f"evaluation.every={max(config.run.steps // 10, 1)}",
            )


def _warn_of_overrun(steps_per_collect: int, steps: int) -> None:
    """Warn if rounding up to whole collections makes the run notably longer."""
    rounded = -(-steps // steps_per_collect) * steps_per_collect
    if rounded > 1.1 * steps:
        _LOG.warning(
            "rlplug: steps are collected %s at a time: the run takes %s instead of %s.",
            *(f"{number:,}" for number in (steps_per_collect, rounded, steps)),
        )


def _feed(prepared: Prepared) -> Feed:
    with prepared.algorithm.found.calling("feed"):
        feed = prepared.algorithm.plugin.feed()
    if not isinstance(feed, Feed):
        raise PluginError(
            f"{prepared.algorithm.label}: feed() returned {type(feed).__name__}.",
            "try: return rlplug.feeds.Stream(...), Rollout(...) or Replay(...)",
        )
    return feed


def _setting(
    prepared: Prepared, ranks: Ranks | None, environments: Environments, module: Module
) -> FeedSetting:
    """What the feed is told about the run."""
    config = prepared.config
    return FeedSetting(
        observation_space=environments.vector.single_observation_space,
        action_space=environments.action_space,
        num_envs=environments.num_envs,
        steps=config.run.steps,
        seed=config.run.seed if ranks is None else own_seed(config.run.seed, ranks.index),
        double=config.compute.dtype == "float64",
        has_memory=module.initial_state(1) is not None,
        frame_stack=environments.frame_stack,
        num_epoch_samples=config.sampling.num_epoch_samples,
        normalization=environments.normalization,
        device=environments.device,
    )


def _learner(calls: HookCalls, environments: Environments, prepared: Prepared) -> Learner:
    config = prepared.config
    learner = Learner(
        calls,
        {
            module_id: (own.observation_space, own.action_space)
            for module_id, own in environments.modules.items()
        },
        training_spaces=environments.training_spaces,
        seed=config.run.seed,
        learning=config.learner,
        compute=match_environment_device(config.compute, environments.device, environments.name),
    )
    for module_id, section in config.modules.items():
        learner.set_options(module_id, section.options)
    built(learner, prepared)
    train_modules(learner, config)
    return learner


def built(learner: Learner, prepared: Prepared) -> Learner:
    """Build the modules of a learner, or raise what is wrong with them or with their plugin."""
    try:
        learner.build()
    except RlplugError:
        raise
    except Exception as error:
        raise PluginError(
            f"the module of {prepared.algorithm.label} could not be built:",
            f"{type(error).__name__}: {error}",
            *getattr(error, "__notes__", ()),
            "try: other options, or fix the plugin     (--debug shows the traceback)",
        ) from error
    return learner
