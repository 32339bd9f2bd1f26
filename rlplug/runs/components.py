"""The components of a run, made from its options: all that trains, without any tracking."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.manifest import reading
from rlplug.checkpoint.state import SavedPolicy, init_from
from rlplug.config.sections import LearnerSection, RunConfig
from rlplug.envs import Environments
from rlplug.errors import (
    ConfigError,
    PluginError,
    Problem,
    RequestError,
    RlplugError,
    UnsupportedSpaceError,
    did_you_mean,
)
from rlplug.feeds import Feed, OpenFeed
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.learner.device import match_environment_device, settings_kept, without_compiler
from rlplug.plugin import Module
from rlplug.runs.compatibility import Compatibility
from rlplug.runs.limits import Limits, check_stop_when
from rlplug.runs.prepare import Prepared
from rlplug.runs.setup import Setup
from rlplug.runs.signals import Interrupts
from rlplug.trainer import Sampler, Trainer

if TYPE_CHECKING:
    from rlplug.scale.ranks import Ranks

__all__ = ["Components", "built", "make_components", "train_modules"]

_LOG = logging.getLogger("rlplug")


@attrs.frozen(kw_only=True, eq=False)
class Components:
    """What trains in a run."""

    setup: Setup
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

    @property
    def module(self) -> Module:
        """The module of the run; with several agents, those of all of them."""
        return self.setup.policy(self.learner.modules)

    def describe_feed(self) -> str:
        """The feed's buffers, their memory, and whether checkpoints save them; maybe empty."""
        buffers = self.feed.describe()
        if not buffers or self.feed.rows is None:
            return buffers
        if self.setup.config.checkpoint.save_replay:
            return f"{buffers}; checkpoints save it, in about twice as much on disk"
        return f"{buffers}; not saved: a resumed run starts with an empty one"

    def get_state(self) -> dict[str, Any]:
        """The state of what collects and counts; those of learner and feed are saved beside it."""
        environments = self.setup.config.checkpoint.save_environments
        state = {
            "trainer": self.trainer.get_state(),
            "sampler": self.sampler.get_state(environments=environments),
            "limits": self.limits.get_state(),
        }
        if self.sampler.roster is not None:
            state["league"] = self.sampler.roster.get_state()
        return state if self.others is None else {**state, "learners": self.others()}


def make_components(
    setup: Setup,
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
    config, calls = setup.config, setup.prepared.hooks()
    check_stop_when(config)
    feed = setup.describe_feed()
    environments = _environments(setup, feed, ranks)
    stack.callback(environments.close)
    if ranks is not None:
        feed = feed.shared(ranks.size)
    stack.enter_context(settings_kept())
    if not config.compute.compile:
        stack.enter_context(without_compiler())
    learner = _learner(calls, environments, setup.prepared)
    environments = setup.adapted(environments, learner, feed)
    if config.run.init_from and not resumed:
        source = find_checkpoint(config.run.init_from)
        with reading(source, "weights"):
            saved, strict = SavedPolicy.read(source), config.run.init_strict
            init_from(learner, environments.normalization, saved, strict=strict)
    if config.evaluation.video and config.evaluation.episodes:
        from rlplug.evaluation.video import check_drawing

        drawn = partial(setup.for_evaluation, environments, 1, render_mode="rgb_array")
        check_drawing(drawn, config.run.seed)
    _refuse_unmonitored(learner, config)
    opened = setup.open_feed(feed, environments, learner, ranks)
    if ranks is not None:
        from rlplug.runs.share import refuse_unshared

        refuse_unshared(environments, opened, ranks.size)
        learner.process_group.check = ranks.refuse_lost
    if config.scale.engine == "ray":
        from rlplug.runs.runners import runner_sampler

        sampler: Sampler = runner_sampler(setup, environments, learner.modules, opened, stack)
    else:
        sampler = setup.sampler(environments, learner, opened)
    if not config.data.is_used:
        collected = opened.steps_per_collect * environments.num_envs
        collected = config.sampling.num_epoch_samples or collected
        _warn_of_overrun(collected * (1 if ranks is None else ranks.size), config.run.steps)
    made = calls, learner, sampler, opened
    limits: Limits
    if ranks is None:
        limits = Limits(config)
        steps = config.run.steps
        trainer = Trainer(*made, steps=steps, limits=limits, stop=interrupts.check)
    else:
        from rlplug.runs.in_step import RankLimits, RankTrainer

        collector: Any = sampler
        for stats in collector.stats_by_module.values():
            stats.sum = ranks.sum
        if sampler.roster is not None:
            sampler.roster.gather = ranks.gather_in_step
        limits = RankLimits(config, ranks)
        trainer = RankTrainer(ranks, interrupts, *made, steps=config.run.steps, limits=limits)
    return Components(
        setup=setup,
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


def _environments(setup: Setup, feed: Feed, ranks: Ranks | None) -> Environments:
    """The environments to train in; refused if the algorithm cannot have them."""
    algorithm, config = setup.prepared.algorithm, setup.config
    if config.scale.engine == "ray":
        from rlplug.runs.runners import environments_elsewhere

        environments = environments_elsewhere(setup)
    else:
        environments = setup.environments()
    if ranks is not None:
        for own in environments.modules.values():
            if own.normalization is not None:
                own.normalization.gather = ranks.gather
        environments = attrs.evolve(environments, first=ranks.index * environments.num_envs)
    try:
        setup.refuse_options(environments)
        compatibility = Compatibility(environments, setup.maker, config, setup.log)
        reason = compatibility.unsupported(algorithm.found, algorithm.plugin, feed)
        if reason is not None:
            registry = setup.prepared.registry
            raise UnsupportedSpaceError(
                f"{algorithm.label} cannot be run on {environments.name!r}: {reason.rstrip('.')}.",
                *compatibility.suggestions(algorithm.found, algorithm.plugin, registry),
            )
    except BaseException:
        environments.close()
        raise
    return environments


def _refuse_unmonitored(learner: Learner, config: RunConfig) -> None:
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


def train_modules(learner: Learner, config: RunConfig) -> None:
    """Train the modules of `learner.modules_to_train`, and let the others only act."""
    patterns = config.learner.modules_to_train
    if patterns == LearnerSection().modules_to_train:
        return
    wanted: set[str] = set()
    for pattern in patterns:
        matching = {name for name in learner.modules if fnmatchcase(name, pattern)}
        if not matching:
            guess = did_you_mean(pattern, learner.modules)
            said = f"{pattern!r} is no module" + (f", {guess}" if guess else "")
            problems = [Problem("learner.modules_to_train", said)]
            raise ConfigError("the options", problems, f"modules: {', '.join(learner.modules)}")
        wanted |= matching
    learner.modules_to_train = wanted
