"""Checks of target networks: copies that follow wrongly, or are read wrongly, and parts of them."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytest
import torch

from rlplug import Batch, Loss, option
from rlplug.testing.algorithms import (
    PolicyGradient,
    PolicyGradientConfig,
    QLearning,
    QLearningConfig,
)
from tests.faulty import failure, passes

# -- how far a target moves ------------------------------------------------------------------------


# -- layers ----------------------------------------------------------------------------------------


# -- copies ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TauConfig(QLearningConfig):
    """A rate."""

    tau: float = option(0.05, "Share of the way in each update.")


class MovesByTau(QLearning):
    """Moves its target in each update."""

    Config: ClassVar[type[Any]] = TauConfig
    factor: ClassVar[float] = 1.0

    def additional_update(self, module: Any, config: Any) -> None:
        module.epsilon.fill_(config.epsilon)
        with torch.no_grad():
            for old, new in zip(module.target.parameters(), module.q.parameters(), strict=True):
                old.lerp_(new, self.factor * config.tau)


class MovesByHalf(MovesByTau):
    """Moves it half as far."""

    factor: ClassVar[float] = 0.5


def test_targets_that_move_at_another_rate_are_told() -> None:
    passes("targets_follow", MovesByTau)
    told = failure("targets_follow", MovesByHalf)
    assert told.looked_for == "steps of 0.05 of the way for tau = 0.05"
    assert told.found == "'target' moves by 0.025 of the way"


# -- delays ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class DelayConfig(PolicyGradientConfig):
    """With a delay of the policy."""

    policy_delay: int = option(1, "Updates of the critic per one of the policy.")


class Delayed(PolicyGradient):
    """Learns its policy in every so many updates."""

    Config: ClassVar[type[Any]] = DelayConfig

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        module = super().build(observation_space, action_space, config)
        module.register_buffer("updates", torch.tensor(0))
        return module

    def compute_loss_for_module(  # type: ignore[override]
        self, module: Any, config: Any, batch: Batch, fwd_out: Any
    ) -> Loss:
        if not self.rests(int(module.updates), config):
            return super().compute_loss_for_module(config, batch, fwd_out)
        return Loss(((fwd_out["values"] - batch["targets"]) ** 2).mean())

    def additional_update(self, module: Any) -> None:
        module.updates += 1

    @staticmethod
    def rests(update: int, config: Any) -> bool:
        """Whether the policy is left as it is."""
        return update % int(config.policy_delay) != 0


class NeverRests(Delayed):
    """Learns its policy in every update."""

    @staticmethod
    def rests(update: int, config: Any) -> bool:
        return False


class RestsTooOften(Delayed):
    """Learns its policy half as often as it should."""

    @staticmethod
    def rests(update: int, config: Any) -> bool:
        return update % (2 * int(config.policy_delay)) != 0


@pytest.mark.parametrize("plugin", [NeverRests, RestsTooOften])
def test_policies_that_are_not_delayed_as_they_should_be_are_told(plugin: type[Any]) -> None:
    passes("policy_is_delayed", Delayed)
    told = failure("policy_is_delayed", plugin)
    assert told.looked_for == "parameters that move in 2 of 6 updates with policy_delay = 3"
    assert told.found == "all that are trained move in other ones"
    assert told.look_at.startswith(f"{plugin.__name__}.compute_loss_for_module (")
    assert told.look_at.endswith(
        ": leave the actor's loss out in the other updates, not only the targets"
    )
