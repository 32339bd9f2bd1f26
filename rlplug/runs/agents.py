"""A run in environments with several agents: a feed for each module that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import attrs

from rlplug.config.sections import EnvSection, SamplingSection
from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments, agent_environments
from rlplug.errors import ConfigError, Problem, RequestError
from rlplug.evaluation import Evaluator
from rlplug.evaluation.agents import AgentModules
from rlplug.feeds import Feed, ModuleFeeds, OpenFeed
from rlplug.learner import Learner
from rlplug.plugin import Module
from rlplug.runs.setup import Setup
from rlplug.sampling import make_collector
from rlplug.trainer import Sampler

if TYPE_CHECKING:
    from rlplug.scale.ranks import Ranks

__all__ = ["AgentsSetup"]

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


class AgentsSetup(Setup):
    """A run with several agents, maybe in a league."""

    def environments(self, *, tensors: bool = True) -> AgentEnvironments:
        """The environments to train in, which store what the feed of each module learns from."""
        number = self.config.sampling.num_envs
        return self._storing(self._games(number, self.config.env, **self._training()))

    def few_environments(self, count: int) -> AgentEnvironments:
        """The spaces and the statistics of all."""
        number = self.config.sampling.num_envs
        return self._storing(self._games(number, self.config.env, elsewhere=True))

    def _games(self, num_envs: int, section: EnvSection, **more: Any) -> AgentEnvironments:
        modules = more.pop("modules", self.config.modules)
        games = agent_environments(self.maker, num_envs, section, modules, **more)
        assert games is not None
        return games

    def _storing(self, games: AgentEnvironments) -> AgentEnvironments:
        return games.storing({name: self._feed_of(name) for name in games.modules})

    def _feed_of(self, module_id: str) -> Feed:
        """What the feed of a module is to be, with the module's options."""
        plugin, config = self.prepared.algorithm.plugin, self.config
        if module_id in config.modules:
            own = {**plain(config.algorithm), **config.modules[module_id].options}
            plugin = type(plugin)(structure(type(config.algorithm), own, "modules")[0])
        with self.prepared.algorithm.found.calling("feed"):
            feed: Feed = plugin.feed()
        return feed

    def problem_of(self, environments: Environments) -> dict[str, Any]:
        """Games have no problem of their own."""
        return {}

    def refuse_options(self, environments: Environments) -> None:
        """Refuse options of environments with one agent."""
        fields, sampling = attrs.fields_dict(SamplingSection), self.config.sampling
        why = f"cannot be used with several agents, as in {environments.name!r}"
        problems = [
            Problem(f"sampling.{name}", why)
            for name in _OF_ONE_AGENT
            if getattr(sampling, name) != fields[name].default
        ]
        if problems:
            raise ConfigError("the options", problems)

    def adapted(self, environments: Environments, learner: Learner, feed: Feed) -> Environments:
        """As they are."""
        return environments

    def for_evaluation(
        self, training: Environments, num_envs: int, *, alone: bool = False, **arguments: Any
    ) -> Environments:
        """Separate environments, of the same problem instance."""
        section = self._section_like(training, arguments)
        if not alone:
            return self._games(num_envs, section)
        agents = {agent: agent for agent in training.agents}
        return self._games(num_envs, section, modules={}, agents=agents)

    def open_feed(
        self, feed: Feed, environments: Environments, learner: Learner, ranks: Ranks | None
    ) -> ModuleFeeds:
        """A feed for each module that is trained."""
        games = cast(AgentEnvironments, environments)
        feeds, teams = {}, []
        for module_id, own in games.stored.items():
            module, described = learner.modules[module_id], self._feed_of(module_id)
            if module.initial_state(1) is not None and (described.team or games.in_turn):
                how = "act in turn" if games.in_turn else "are learned from together"
                raise RequestError(
                    f"the agents of module {module_id!r} {how}, and the module has memory.",
                    "try: options without memory",
                )
            if not learner.can_module_be_updated(module_id):
                continue
            if described.team:
                teams.append(module_id)
            shared = described if ranks is None else described.shared(ranks.size)
            try:
                feeds[module_id] = shared.open(self._setting(own, module))
            except RequestError as error:
                rows = f"its rows are {own.num_envs}"
                raise RequestError(
                    f"module {module_id!r}: {error.message}", *error.hints, rows
                ) from error
        steps = {module_id: feed.steps_per_collect for module_id, feed in feeds.items()}
        if len(set(steps.values())) > 1:
            lengths = ", ".join(f"{module_id} {count:,}" for module_id, count in steps.items())
            raise RequestError(
                f"the modules want collections of different lengths: {lengths} steps.",
                "try: the same n_steps or train_freq in all [modules.NAME]",
            )
        if self.config.league.is_used:
            from rlplug.runs.league import refuse_split_teams

            refuse_split_teams(self.config, games.agents, teams)
        opened = ModuleFeeds(feeds)
        if ranks is not None:
            opened.learners, opened.sum = ranks.size, ranks.sum
        return opened

    def collector(
        self, environments: Environments, modules: Mapping[str, Module], feed: OpenFeed
    ) -> Any:
        """Collects what the feeds ask for, in a league if there is one."""
        games, feeds, league = cast(AgentEnvironments, environments), cast(ModuleFeeds, feed), None
        if self.config.league.is_used:
            from rlplug.runs.league import league_of

            league = league_of(self.config, games, modules, feeds.by_module)
        return make_collector(self.config, games, modules, feeds, league)

    def policy(self, modules: Mapping[str, Module]) -> Module:
        """The modules of all agents."""
        return AgentModules(modules)

    def normalize(self, environments: Environments) -> Any:
        """What changes the observations of evaluations, by module."""
        scalings = {name: own.normalization for name, own in environments.modules.items()}
        return {name: own.observations for name, own in scalings.items() if own is not None}

    def evaluator(self, training: Environments, sampler: Sampler, **options: Any) -> Evaluator:
        """Evaluates the modules, in a league also against its pool."""
        if sampler.roster is None:
            return super().evaluator(training, sampler, **options)
        from rlplug.evaluation.league import LeagueEvaluator

        options["step_timeout"] = self.config.sampling.step_timeout
        return LeagueEvaluator(
            lambda count: self.for_evaluation(training, count),
            lambda count: self.for_evaluation(training, count, alone=True),
            sampler.roster,
            **options,
        )
