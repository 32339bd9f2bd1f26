"""Checks of action values and masks: what they say of losses that are wrong in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug import Batch, Loss, option
from rlplug.testing.algorithms import (
    PolicyGradient,
    QLearning,
    QLearningConfig,
)
from tests.faulty import passed_by, passes

# -- masks -----------------------------------------------------------------------------------------


class OfTwoActions(PolicyGradient):
    """Supports no environment of the kit that has masks."""

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        if not isinstance(action_space, spaces.Discrete) or action_space.n != 2:
            return "two actions"
        return super().supports(observation_space, action_space)


def test_masked_actions_that_get_no_gradient_pass() -> None:
    passes("masked_actions_are_not_learned", PolicyGradient)
    assert passed_by("masked_actions_are_not_learned", OfTwoActions) == (
        "its batches have no action_mask, or forward_train gives nothing of it"
    )


# -- quantiles -------------------------------------------------------------------------------------


# -- kinds of errors -------------------------------------------------------------------------------


class LossOfErrors(QLearning):
    """Q-learning with another loss of errors, of small size."""

    @staticmethod
    def loss_of(errors: Tensor) -> Tensor:
        """The loss of each row."""
        return 0.5 * errors**2

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])[:, 0]
        return Loss(1e-3 * self.loss_of(batch["targets"] - chosen).mean())


class Absolute(LossOfErrors):
    """Errors that all pull alike."""

    @staticmethod
    def loss_of(errors: Tensor) -> Tensor:
        return errors.abs()


@pytest.mark.parametrize("plugin", [LossOfErrors, Absolute])
def test_errors_that_pull_more_or_alike_pass(plugin: type[Any]) -> None:
    passes("errors_pull_values", plugin)


@attrs.frozen(kw_only=True)
class KindsConfig(QLearningConfig):
    """A choice of losses, and a conservative penalty."""

    loss: Literal["mse", "huber"] = option("huber", "Kind of loss.")
    cql_alpha: float = option(0.0, "Weight of the conservative penalty.")


class Kinds(QLearning):
    """Q-learning with a choice of losses and a conservative penalty."""

    Config: ClassVar[type[Any]] = KindsConfig
    swapped: ClassVar[bool] = False

    def penalty(self, values: Tensor, chosen: Tensor, batch: Batch) -> Tensor:
        """Of each row."""
        if "action_mask" in batch:
            values = values.masked_fill(batch["action_mask"] == 0, -torch.inf)
        return values.logsumexp(1) - chosen

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        values = fwd_out["q_values"]
        chosen = values.gather(1, batch["actions"].long()[:, None])[:, 0]
        error = (chosen - batch["targets"]).abs()
        if (config.loss == "mse") is not self.swapped:
            losses = error**2
        else:
            losses = torch.where(error.detach() < 1, 0.5 * error**2, error - 0.5)
        penalty = self.penalty(values, chosen, batch)
        return Loss(losses.mean() + config.cql_alpha * penalty.mean())


# -- conservative penalties ------------------------------------------------------------------------


def test_penalties_that_lower_other_actions_pass() -> None:
    passes("conservative_penalty_lowers_other_actions", Kinds)
    assert passed_by("conservative_penalty_lowers_other_actions", QLearning) == (
        "it has no option cql_alpha"
    )
