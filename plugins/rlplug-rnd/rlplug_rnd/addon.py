"""RND: its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Adam

from rlplug import AddOn, Batch, LearnerView, RequestError, hookimpl
from rlplug.feeds import Stream
from rlplug.spaces import AnySpace
from rlplug_rnd.config import RNDConfig
from rlplug_rnd.module import Distillation

__all__ = ["RND"]


class RND(AddOn):
    """Rewards transitions to observations that are new (Burda et al. 2018)."""

    Config: ClassVar[type[RNDConfig]] = RNDConfig
    config: RNDConfig
    neutral: ClassVar[Mapping[str, Any]] = {"coef": 0.0}

    @hookimpl
    def run_started(self, run: Any) -> None:
        """Refuses bandits: their actions lead nowhere."""
        algorithm = run.participants[0]
        feed = algorithm.plugin.feed()
        if isinstance(feed, Stream) and feed.one_step_episodes:
            raise RequestError(
                f"rnd rewards new observations that actions lead to, but {algorithm.label} is "
                "for episodes of one step.",
                "try: without --with rnd",
            )

    @hookimpl
    def build_extra(self, observation_space: AnySpace, config: RNDConfig) -> Distillation:
        """The fixed network and the predictor."""
        return Distillation(observation_space, config.net_arch, config.out_features)

    @hookimpl
    def configure_optimizers_for_module(self, extra: Distillation, config: RNDConfig) -> Adam:
        """Adam over the predictor."""
        return Adam(extra.predictor.parameters(), lr=config.learning_rate)

    @hookimpl
    def prepare_batch(
        self, extra: Distillation, config: RNDConfig, batch: Batch
    ) -> Mapping[str, Tensor] | None:
        """Adds the bonuses to the rewards."""
        errors = next_errors(extra, batch)
        if errors is None:
            return None
        columns = {"rnd_errors": errors, "rnd_bonuses": extra.bonuses(errors)}
        if config.coef:
            rewards = batch["rewards"]
            columns["rewards"] = rewards + config.coef * columns["rnd_bonuses"].to(rewards.dtype)
        return columns

    @hookimpl
    def compute_loss_for_module(self, extra: Distillation, batch: Batch) -> Tensor:
        """The error of the predictions."""
        return extra.errors(extra.features(batch["observations"])).mean()

    @hookimpl
    def additional_update(
        self, extra: Distillation, batch: Batch, learner: LearnerView
    ) -> Mapping[str, Any] | None:
        """Updates the statistics that normalize observations and bonuses."""
        if "rnd_errors" not in batch:
            return None
        extra.absorb(batch["observations"], batch["rnd_errors"], learner)
        return {"bonus": batch["rnd_bonuses"].mean()}


def next_errors(extra: Distillation, batch: Batch) -> Tensor | None:
    """The error at each row's next observation; None for episodes of one step, without any."""
    if "next_observations" in batch:
        return extra.errors(extra.features(batch["next_observations"]))
    if "fragments" not in batch:
        return None
    extended = batch.extended()
    _, errors = extended.split(extra.errors(extra.features(extended["observations"])))
    return errors
