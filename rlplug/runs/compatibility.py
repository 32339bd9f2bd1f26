"""Which algorithms support the environment of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from rlplug.config.sections import RunConfig
from rlplug.envs import Environments, EnvMaker, long_episodes
from rlplug.errors import PluginError, RlplugError
from rlplug.feeds import Stream
from rlplug.registry import ALGORITHM, FoundPlugin, Registry

__all__ = ["Compatibility"]


@attrs.frozen(eq=False)
class Compatibility:
    """Asks algorithms whether they support the environment of a run."""

    environments: Environments
    maker: EnvMaker
    config: RunConfig

    def unsupported(self, found: FoundPlugin, algorithm: Any, feed: Any) -> str | None:
        """Why an algorithm does not support the environment; None if it does."""
        with found.calling("supports"):
            reason: Any = algorithm.supports(
                self.environments.observation_space, self.environments.action_space
            )
        if not (reason is None or isinstance(reason, str)):
            raise PluginError(
                f"{found.label}: supports() returned {reason!r}.",
                "try: return None if it supports the spaces, else the reason as a string",
            )
        if reason is None and isinstance(feed, Stream) and feed.one_step_episodes:
            return long_episodes(self.maker, self.config.env, self.config.run.seed)
        return reason

    def suggestions(self, refused: FoundPlugin, registry: Registry) -> list[str]:
        """Hints that name other installed algorithms which support it; imports all of them."""
        names = list(self._others(refused, registry))
        if not names:
            return [
                "no other installed algorithm supports it.",
                f"see: rlplug plugins show {refused.name}",
            ]
        return [
            f"installed algorithms that support it: {', '.join(names)}",
            f"try: --algo {names[0]}",
        ]

    def _others(self, refused: FoundPlugin, registry: Registry) -> Iterator[str]:
        groups = registry.grouped(ALGORITHM)
        for name, (found, *twins) in sorted(groups.items()):
            if twins or name == refused.name:
                continue
            try:
                kind = registry.load(found)
                with found.calling("__init__"):
                    algorithm = kind(kind.Config())
                with found.calling("feed"):
                    feed = algorithm.feed()
                if self.unsupported(found, algorithm, feed) is None:
                    yield name
            except RlplugError:
                continue  # it cannot be suggested if it cannot be loaded
