"""What a run with several agents has in place of one feed and one sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import attrs

from rlplug.config.sections import LearnerSection, RunConfig, SamplingSection
from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import ConfigError, Problem, RequestError, did_you_mean
from rlplug.feeds import Feed, FeedSetting, ModuleFeeds
from rlplug.learner import Learner
from rlplug.plugin import Module
from rlplug.runs.league import league_of
from rlplug.runs.module_sections import options_of
from rlplug.runs.prepare import Prepared
from rlplug.sampling import Collector, make_collector
from rlplug.scale.ranks import Ranks

__all__ = [
    "agent_collector",
    "agent_feeds",
    "described_feeds",
    "refuse_options",
    "train_modules",
]


def refuse_options(config: RunConfig, environments: Environments) -> None:
    """Refuse options of several agents where there is one, and the other way round."""
    name, several = environments.name, isinstance(environments, AgentEnvironments)
    problems = []
    if not several:
        why = f"is for environments with several agents; {name!r} has one"
        problems += [Problem(f"modules.{module_id}", why) for module_id in config.modules]
        if config.learner.modules_to_train != LearnerSection().modules_to_train:
            problems.append(Problem("learner.modules_to_train", why))
        if config.league.is_used:
            problems.append(Problem("league", why))
    else:
        why = f"cannot be used with several agents, as in {name!r}"
        fields, sampling = attrs.fields_dict(SamplingSection), config.sampling
        for option in _OF_ONE_AGENT:
            if getattr(sampling, option) != fields[option].default:
                problems.append(Problem(f"sampling.{option}", why))
        if config.data.is_used:
            problems.append(Problem("data", why))
    if problems:
        raise ConfigError("the options", problems)


_OF_ONE_AGENT = (
    "min_batch_size",
    "max_batch_size",
    "max_wait_time",
    "max_staleness",
    "vectorization",
    "record",
    "min_trajectory_length",
    "max_trajectory_length",
)


def train_modules(learner: Learner, config: RunConfig) -> None:
    """Train the modules of `learner.modules_to_train`, and let the others only act."""
    patterns = config.learner.modules_to_train
    if patterns == LearnerSection().modules_to_train:
        return
    wanted: set[str] = set()
    problems = []
    for pattern in patterns:
        found = {one for one in learner.modules if fnmatchcase(one, pattern)}
        if not found:
            guess = did_you_mean(pattern, learner.modules)
            said = f"{pattern!r} is no module"
            problems.append(
                Problem("learner.modules_to_train", f"{said}, {guess}" if guess else said)
            )
        wanted |= found
    if problems:
        raise ConfigError("the options", problems, f"modules: {', '.join(learner.modules)}")
    learner.modules_to_train = wanted


def described_feeds(prepared: Prepared, environments: AgentEnvironments) -> dict[str, Feed]:
    """What the feed of each module is to be, with the module's options."""
    algorithm, config = prepared.algorithm, prepared.config
    feeds = {}
    for module_id in environments.modules:
        plugin = algorithm.plugin
        if module_id in config.modules:
            plugin = type(plugin)(options_of(config.algorithm, config.modules[module_id]))
        with algorithm.found.calling("feed"):
            feeds[module_id] = plugin.feed()
    return feeds


def agent_feeds(
    described: Mapping[str, Feed],
    environments: AgentEnvironments,
    learner: Learner,
    setting: Callable[[Environments, Module], FeedSetting],
    ranks: Ranks | None,
) -> ModuleFeeds:
    """A feed of its own for each module that is trained."""
    wanted = learner.modules_to_train
    assert not callable(wanted)
    feeds = {}
    for module_id, own in environments.stored.items():
        module = learner.modules[module_id]
        has_memory = module.initial_state(1) is not None
        if has_memory and described[module_id].team:
            raise RequestError(
                f"the agents of module {module_id!r} are learned from together, and the module has "
                "memory.",
                "try: options without memory",
            )
        if environments.in_turn and has_memory:
            raise RequestError(
                f"the agents of {environments.name!r} act in turn, and module {module_id!r} has "
                "memory, which is for agents that act at once.",
                "try: options without memory",
            )
        if wanted is not None and module_id not in wanted:
            continue
        try:
            feed = described[module_id]
            feed = feed if ranks is None else feed.shared(ranks.size)
            feeds[module_id] = feed.open(setting(own, module))
        except RequestError as error:
            agents = sum(one == module_id for one in environments.agents.values())
            games = own.num_envs // agents
            rows = (
                f"its environments are its rows: {agents} agent{'s' if agents > 1 else ''} in "
                f"{games} environment{'s' if games > 1 else ''}"
            )
            if described[module_id].team:
                rows = f"it has {own.num_envs} environments"
            raise RequestError(
                f"module {module_id!r}: {error.message}", *error.hints, rows
            ) from error
    steps = {module_id: feed.steps_per_collect for module_id, feed in feeds.items()}
    if len(set(steps.values())) > 1:
        told = ", ".join(f"{module_id} {count:,}" for module_id, count in steps.items())
        raise RequestError(
            f"the modules want collections of different lengths: {told} steps.",
            "try: the same n_steps or train_freq in all [modules.NAME]",
        )
    opened = ModuleFeeds(feeds)
    if ranks is not None:
        opened.learners, opened.sum = ranks.size, ranks.sum
    return opened


def agent_collector(
    config: RunConfig,
    environments: AgentEnvironments,
    modules: Mapping[str, Module],
    feeds: ModuleFeeds,
) -> Collector:
    """Collects what the feeds ask for, in a league if there is one."""
    league = league_of(config, environments, modules, feeds.by_module)
    return make_collector(config, environments, modules, feeds, league)
