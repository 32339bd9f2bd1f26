"""Whether an algorithm can be run on an environment, and which of those installed can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from rlplug.config.sections import RunConfig
from rlplug.envs import Environments, EnvMaker, long_episodes
from rlplug.errors import PluginError, RlplugError
from rlplug.feeds import Stream
from rlplug.registry import ALGORITHM, FoundPlugin, Registry

__all__ = ["Fitting"]


@attrs.frozen(eq=False)
class Fitting:
    """What fits the environment of a run."""

    environments: Environments
    maker: EnvMaker
    config: RunConfig

    def unfit(self, found: FoundPlugin, algorithm: Any, feed: Any) -> str | None:
        """Why this algorithm cannot be run here; None if it can."""
        with found.asked("supports"):
            reason: Any = algorithm.supports(
                self.environments.observation_space, self.environments.action_space
            )
        if not (reason is None or isinstance(reason, str)):
            raise PluginError(
                f"{found.label}: supports() gave {reason!r}.",
                "try: return None for what it supports, else the reason",
            )
        if reason is None and isinstance(feed, Stream) and feed.one_step_episodes:
            return long_episodes(self.maker, self.config.env, self.config.run.seed)
        return reason

    def advice(self, refused: FoundPlugin, registry: Registry) -> list[str]:
        """Which other algorithms that are installed can be run here; only now are they imported."""
        names = list(self._others(refused, registry))
        if not names:
            return [
                "no other algorithm that is installed can.",
                f"see: rlplug plugins show {refused.name}",
            ]
        return [f"installed algorithms that can: {', '.join(names)}", f"try: --algo {names[0]}"]

    def _others(self, refused: FoundPlugin, registry: Registry) -> Iterator[str]:
        groups = registry.grouped(ALGORITHM)
        for name, (found, *twins) in sorted(groups.items()):
            if twins or name == refused.name:
                continue
            try:
                kind = registry.load(found)
                with found.asked("__init__"):
                    algorithm = kind(kind.Config())
                with found.asked("feed"):
                    feed = algorithm.feed()
                if self.unfit(found, algorithm, feed) is None:
                    yield name
            except RlplugError:
                # What cannot even be loaded is no advice; the refusal itself stands.
                continue
