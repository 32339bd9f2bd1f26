"""The LinUCB algorithm: its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium

from rlplug import Algorithm, Batch, LearnerView, hookimpl
from rlplug.feeds import Stream
from rlplug_linucb.config import LinUCBConfig
from rlplug_linucb.layout import layout_of
from rlplug_linucb.learning import learn_batch
from rlplug_linucb.models import why_not
from rlplug_linucb.module import LinUCBModule

__all__ = ["LinUCB"]


class LinUCB(Algorithm):
    """Chooses arms by upper confidence bounds of linear models that are learned in closed form."""

    Config: ClassVar[type[LinUCBConfig]] = LinUCBConfig
    default_env: ClassVar[str] = "LinearBandit-v0"
    default_steps: ClassVar[int] = 20_000
    config: LinUCBConfig

    def feed(self) -> Stream:
        """Every decision is learned from once, as soon as its reward is there."""
        return Stream(steps_per_update=self.config.update_every, one_step_episodes=True)

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """Why these spaces, or these options with them, cannot be handled; None if they can."""
        return why_not(observation_space, action_space, self.config)

    @hookimpl
    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: LinUCBConfig,
    ) -> LinUCBModule:
        """A module that knows nothing yet."""
        return LinUCBModule(layout_of(observation_space, action_space, config.arms), config)

    @hookimpl
    def configure_optimizers_for_module(self) -> None:
        """No gradient moves a linear bandit."""

    @hookimpl
    def additional_update(
        self, module: LinUCBModule, config: LinUCBConfig, batch: Batch, learner: LearnerView
    ) -> Mapping[str, float]:
        """Learn the batch in closed form; its errors were made before it was learned."""
        module.set_alpha(config.alpha)
        return learn_batch(module, batch, learner)
