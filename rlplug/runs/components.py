"""The components of a run, made from its options: all that trains, without any tracking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.manifest import reading
from rlplug.checkpoint.state import SavedPolicy, init_from
from rlplug.envs import Environments
from rlplug.errors import RlplugError, UnsupportedSpaceError
from rlplug.feeds import Feed, OpenFeed
from rlplug.feeds.stream import Logged
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.learner.device import match_environment_device, settings_kept, without_compiler
from rlplug.plugin import Module
from rlplug.registry import ALGORITHM, FoundPlugin
from rlplug.runs.build_learner import make_learner, train_modules
from rlplug.runs.limits import Limits
from rlplug.runs.setup import Setup
from rlplug.runs.signals import Interrupts
from rlplug.trainer import Sampler, Trainer

if TYPE_CHECKING:
    from rlplug.scale.ranks import Ranks

__all__ = ["Components", "make_components"]


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
    ranks: Ranks | None
    """All learners of the run, if there are several."""
    others: Callable[[], Mapping[str, Any]] | None
    """Returns the state of the other learners."""

    @property
    def module(self) -> Module:
        """The module of the run; with several agents, those of all of them."""
        return self.setup.policy(self.learner.modules)

    def describe_feed(self) -> str:
        """The feed's buffers, their memory, and whether checkpoints save them; maybe empty."""
        buffers, saved = self.feed.describe(), self.setup.config.checkpoint.save_replay
        if self.feed.rows is None:
            return buffers
        return f"{buffers}; {'saved' if saved else 'not saved'} with checkpoints"

    def get_state(self) -> dict[str, Any]:
        """The state of what collects and counts; those of learner and feed are saved beside it."""
        environments = self.setup.config.checkpoint.save_environments
        state = {**self.get_counts(), "sampler": self.sampler.get_state(environments=environments)}
        return state if self.others is None else {**state, "learners": self.others()}

    def get_counts(self) -> dict[str, Any]:
        """The state of what counts, which several learners have in common."""
        state = {"trainer": self.trainer.get_state(), "limits": self.limits.get_state()}
        if self.sampler.roster is not None:
            state["league"] = self.sampler.roster.get_state()
        return state

    def set_common(
        self,
        learner: Mapping[str, Any],
        normalization: Mapping[str, Any],
        counts: Mapping[str, Any],
        *,
        keep_settings: bool = False,
    ) -> None:
        """Restore all that several learners have in common; no normalization leaves it alone."""
        if self.environments.normalization is not None and normalization:
            self.environments.normalization.set_state(normalization)
        self.learner.set_state(learner, keep_settings=keep_settings)
        self.trainer.set_state(counts["trainer"])
        self.limits.set_state(counts["limits"])
        if self.sampler.roster is not None and "league" in counts:
            self.sampler.roster.set_state(counts["league"])


def make_components(
    setup: Setup,
    interrupts: Interrupts,
    stack: ExitStack,
    *,
    resumed: bool = False,
    ranks: Ranks | None = None,
    others: Callable[[], Mapping[str, Any]] | None = None,
    judge: Callable[[Mapping[str, float]], str] = lambda metrics: "",
) -> Components:
    """Make environments, learner, feed, sampler and trainer, or raise what is wrong.

    A resumed run takes its weights from its checkpoint. With `ranks` they are those of one of
    several learners; `others` returns the state of the other ones.
    """
    config, prepared = setup.config, setup.prepared
    calls, feed = prepared.hooks(), setup.describe_feed()
    environments = _environments(setup, ranks)
    stack.callback(environments.close)
    setup.refuse_options(environments)
    _refuse_unsupported(setup, feed, environments)
    if ranks is not None:
        feed = feed.shared(ranks.size)
    stack.enter_context(settings_kept())
    if not config.compute.compile:
        stack.enter_context(without_compiler())
    learner = make_learner(
        prepared,
        calls,
        {
            module_id: (own.observation_space, own.action_space)
            for module_id, own in environments.modules.items()
        },
        match_environment_device(config.compute, environments.device, environments.name),
        training_spaces=environments.training_spaces,
    )
    train_modules(learner, config)
    environments = setup.adapted(environments, learner, feed)
    if config.run.init_from and not resumed:
        source = find_checkpoint(config.run.init_from)
        with reading(source, "weights"):
            saved, strict = SavedPolicy.read(source), config.run.init_strict
            init_from(learner, environments.normalization, saved, strict=strict)
    if config.evaluation.video:
        from rlplug.evaluation.video import check_drawing

        drawn = partial(setup.for_evaluation, environments, 1, render_mode="rgb_array")
        check_drawing(drawn, config.run.seed)
    opened = setup.open_feed(feed, environments, learner, ranks)
    if config.scale.engine == "ray":
        from rlplug.runs.runners import runner_sampler

        sampler: Sampler = runner_sampler(setup, environments, learner.modules, opened, stack)
    else:
        sampler = setup.sampler(environments, learner, opened)
    made = calls, learner, sampler, opened
    if ranks is None:
        limits = Limits(config, judge)
        trainer = Trainer(*made, steps=config.run.steps, limits=limits, stop=interrupts.check)
    else:
        from rlplug.runs.in_step import join_ranks

        limits, trainer = join_ranks(ranks, interrupts, environments, made, config, judge)
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


def _environments(setup: Setup, ranks: Ranks | None) -> Environments:
    """The environments to train in."""
    if setup.config.scale.engine == "ray":
        from rlplug.runs.runners import environments_elsewhere

        environments = environments_elsewhere(setup)
    else:
        environments = setup.environments()
    if ranks is None:
        return environments
    for own in environments.modules.values():
        if own.normalization is not None:
            own.normalization.gather = ranks.gather
    return attrs.evolve(environments, first=ranks.index * environments.num_envs)


def _refuse_unsupported(setup: Setup, feed: Feed, environments: Environments) -> None:
    """Refuse environments that the algorithm cannot have, and name those that can."""
    algorithm = setup.prepared.algorithm
    reason = _unsupported(setup, algorithm.found, algorithm.plugin, feed, environments)
    if reason is None:
        return
    others = sorted(_others(setup, algorithm.found, environments))
    names = [name for *_, name in others]
    hint = f"installed algorithms that support it: {', '.join(names) or 'none'}"
    raise UnsupportedSpaceError(
        f"{algorithm.label} cannot be run on {environments.name!r}: {reason.rstrip('.')}.",
        hint,
        f"try: --algo {names[0]}" if names else f"see: rlplug plugins show {algorithm.name}",
    )


def _unsupported(
    setup: Setup, found: FoundPlugin, plugin: Any, feed: Any, environments: Environments
) -> str | None:
    """Why an algorithm does not support the environments; None if it does."""
    one_step = getattr(feed, "one_step_episodes", False)
    if environments.agents and (one_step or isinstance(feed, Logged)):
        whose = "bandits" if one_step else "logs"
        return f"it is for {whose}, which have one agent; here there are several"
    if environments.agents and getattr(environments, "in_turn", False) and feed.team:
        return "it learns from what agents do at once, and here they act in turn"
    for own in environments.modules.values():
        with found.calling("supports"):
            reason: str | None = plugin.supports(own.observation_space, own.action_space)
        if reason is not None:
            return reason
    return setup.long_episodes() if one_step else None


def _others(
    setup: Setup, refused: FoundPlugin, environments: Environments
) -> Iterator[tuple[bool, bool, str]]:
    """Other algorithms that support it, in the order of this; imports all of them.

    One for bandits supports nothing else, so it fits best where it does. The main algorithm
    of a package comes before its variants.
    """
    for found, kind in setup.prepared.registry.others(ALGORITHM, refused.name):
        # What cannot be used cannot be suggested.
        with suppress(RlplugError):
            with found.calling("feed"):
                plugin = kind(kind.Config())
                feed: Any = plugin.feed()
            if isinstance(feed, Logged) and not setup.config.data.is_used:
                continue
            if _unsupported(setup, found, plugin, feed, environments) is None:
                one_step = getattr(feed, "one_step_episodes", False)
                yield not one_step, not found.bears_name_of_package, found.name
