"""The LinUCB algorithm: its hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy
import torch

from rlplug import Algorithm, Batch, LearnerView, UnsupportedSpaceError, hookimpl
from rlplug.feeds import Stream
from rlplug_linucb.config import LinUCBConfig
from rlplug_linucb.layout import layout_of
from rlplug_linucb.models import model_name
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
        try:
            model_name(layout_of(observation_space, action_space, self.config.arms), self.config)
        except UnsupportedSpaceError as error:
            return error.message
        return None

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
        read = batch.array if module.on_cpu else batch.__getitem__
        labels = read("label" if "label" in batch else "rewards")
        rows = (read("observations"), read("actions"), labels, _weights(batch, read))
        if learner.world_size == 1:
            module.update(*rows)
        else:
            count = torch.tensor(len(labels), device=learner.device)
            # Learners that step together are as many rows ahead as the busiest of them.
            (most,) = learner.all_reduce([count], "max")
            module.absorb(learner.all_reduce(module.statistics(*rows)), int(most))
        return {**_foretold(batch, labels), **module.fallbacks()}


def _weights(batch: Batch, read: Callable[[str], Any]) -> Any:
    """What each row counts: the observations it stands for times its importance."""
    given = [read(name) for name in ("weights", "importance_weight") if name in batch]
    if len(given) == 2:
        return given[0] * given[1]
    return given[0] if given else None


def _foretold(batch: Batch, labels: Any) -> Mapping[str, float]:
    """How far predictions were off when arms were chosen, and how unsure of them it was."""
    if "pred_label" not in batch:
        return {}
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().numpy()
    labels = labels.reshape(-1)
    means, sigma = batch.array("pred_label"), batch.array("pred_sigma")
    if len(labels) == 1:
        # Three reductions of arrays would cost more than learning the row.
        error = float(means[0]) - float(labels[0])
        return {"progressive_error": error * error, "sigma": float(sigma[0])}
    errors = means - labels
    return {
        "progressive_error": float(numpy.vdot(errors, errors)) / len(errors),
        "sigma": float(sigma.mean()),
    }
