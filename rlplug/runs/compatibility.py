"""Which algorithms support the environment of a run."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, combinations
from typing import Any

import attrs

from rlplug.config.sections import RunConfig
from rlplug.envs import Environments, EnvMaker, long_episodes
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import PluginError, RlplugError
from rlplug.feeds import Logged, Stream
from rlplug.logs import Log
from rlplug.registry import ALGORITHM, FoundPlugin, Registry

__all__ = ["Compatibility"]


@attrs.frozen(eq=False)
class Compatibility:
    """Asks algorithms whether they support the environment of a run."""

    environments: Environments
    maker: EnvMaker
    config: RunConfig
    log: Log | None = None
    """What the run learns from, if not from the environment."""

    def unsupported(self, found: FoundPlugin, algorithm: Any, feed: Any) -> str | None:
        """Why an algorithm does not support the environment; None if it does."""
        several = isinstance(self.environments, AgentEnvironments)
        # First, as other options for the spaces would not help.
        reason = _no_agents(feed) if several else None
        if reason is None and self._in_turn and getattr(feed, "team", False):
            reason = "it learns from what agents do at once, and here they act in turn"
        for own in self.environments.modules.values():
            reason = reason or self._unsupported_spaces(found, algorithm, own)
        if several:
            return reason
        if reason is None and _for_bandits(feed):
            if self.log is not None:
                return None if self.log.is_bandit else _LONG_LOG
            return long_episodes(self.maker, self.config.env, self.config.run.seed)
        return reason

    @property
    def _in_turn(self) -> bool:
        return isinstance(self.environments, AgentEnvironments) and self.environments.in_turn

    def _unsupported_spaces(
        self, found: FoundPlugin, algorithm: Any, environments: Environments
    ) -> str | None:
        with found.calling("supports"):
            reason: Any = algorithm.supports(
                environments.observation_space, environments.action_space
            )
        if not (reason is None or isinstance(reason, str)):
            raise PluginError(
                f"{found.label}: supports() returned {reason!r}.",
                "try: return None if it supports the spaces, else the reason as a string",
            )
        return reason

    def suggestions(self, refused: FoundPlugin, algorithm: Any, registry: Registry) -> list[str]:
        """What to change: options of the refused algorithm, or else the algorithm."""
        hindering = self._hindering_options(refused, type(algorithm))
        if hindering:
            return [f"try: leave out {' and '.join(hindering)}"]
        names = self._others(refused, registry)
        if names:
            return [
                f"installed algorithms that support it: {', '.join(names)}",
                f"try: --algo {names[0]}",
            ]
        return [
            "no other installed algorithm supports it.",
            f"see: rlplug plugins show {refused.name}",
        ]

    def _hindering_options(self, refused: FoundPlugin, kind: type[Any]) -> list[str]:
        """One or two options without which the refused algorithm supports it; empty if none are."""
        config = self.config.algorithm
        # A required option has no valid default.
        with attrs.validators.disabled():
            defaults = kind.Config()
        changed = {
            field.name: getattr(defaults, field.name)
            for field in attrs.fields(kind.Config)
            if getattr(config, field.name) != getattr(defaults, field.name)
        }
        for names in chain(combinations(changed, 1), combinations(changed, 2)):
            without = {name: changed[name] for name in names}
            # Those that remain may contradict the default.
            with suppress(TypeError, ValueError):
                if self._feed(refused, kind, attrs.evolve(config, **without)):
                    return [f"algorithm.{name}" for name in names]
        return []

    def _others(self, refused: FoundPlugin, registry: Registry) -> list[str]:
        """Other algorithms that support it, the ones that fit best first; imports all of them.

        One for bandits supports nothing else, so it fits best where it does. The main algorithm
        of a package comes before its variants.
        """
        ranked = []
        for found, kind in registry.others(ALGORITHM, refused.name):
            feed = self._feed(found, kind)
            if feed is not None:
                ranked.append((not _for_bandits(feed), not found.bears_name_of_package, found.name))
        return [name for *_, name in sorted(ranked)]

    def _feed(self, found: FoundPlugin, kind: type[Any], config: Any = None) -> Any:
        """The feed of an algorithm that supports it, with these or default options; or None."""
        # What cannot be used cannot be suggested.
        with suppress(RlplugError):
            with found.calling("__init__"):
                algorithm = kind(kind.Config() if config is None else config)
            with found.calling("feed"):
                feed = algorithm.feed()
            if isinstance(feed, Logged) and self.log is None:
                return None
            if self.unsupported(found, algorithm, feed) is None:
                return feed
        return None


_LONG_LOG = "it is for bandits, whose episodes have one step; the log has longer ones"


def _no_agents(feed: Any) -> str | None:
    """Why a feed is not for several agents; None if it is."""
    if _for_bandits(feed):
        return "it is for bandits, which have one agent; here there are several"
    if isinstance(feed, Logged):
        return "it learns from a log, and logs are of one agent; here there are several"
    return None


def _for_bandits(feed: Any) -> bool:
    return isinstance(feed, Stream) and feed.one_step_episodes
