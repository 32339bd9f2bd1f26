"""Checks of action values and masks: what they say of losses that are wrong in one place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug import Batch, Loss, option
from rlplug.feeds import Feed, Replay
from rlplug.nn import QuantileHead
from rlplug.testing.algorithms import (
    PolicyGradient,
    PolicyGradientModule,
    QLearning,
    QLearningConfig,
    QLearningModule,
)
from tests.faulty import failure, passed_by, passes

# -- masks -----------------------------------------------------------------------------------------


class WithoutMask(PolicyGradient):
    """Learns log-probabilities of all actions, also of those that were masked."""

    scale: ClassVar[float] = 1.0

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        class Module(PolicyGradientModule):
            def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
                return super().forward_train(Batch({"observations": batch["observations"]}))

        inputs, actions = spaces.flatdim(observation_space), spaces.flatdim(action_space)
        return Module(inputs, actions, config.width)

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        loss = super().compute_loss_for_module(config, batch, fwd_out)
        return Loss(loss.value * self.scale)


class WithoutMaskAndSmall(WithoutMask):
    """The same with tiny gradients."""

    scale: ClassVar[float] = 1e-3


@pytest.mark.parametrize("plugin", [WithoutMask, WithoutMaskAndSmall])
def test_gradients_of_masked_actions_are_told(plugin: type[Any]) -> None:
    told = failure("masked_actions_are_not_learned", plugin)
    assert told.looked_for == "a loss that does not depend on 'log_probs' of masked actions"
    first, _, second = told.found.partition(", of others up to ")
    wrong = float(first.removeprefix("a gradient of up to "))
    assert 0 < wrong < plugin.scale
    assert 0 < float(second) < plugin.scale
    assert told.look_at.startswith(f"{plugin.__name__}.compute_loss_for_module (")
    assert told.look_at.endswith(': log-probabilities and entropies under batch["action_mask"]')


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


class EndsAtTimeLimits(QLearning):
    """Uses masks of next actions, where an episode goes on: time limits end it as well."""

    def feed(self) -> Feed:
        return Replay(buffer_size=100, batch_size=8, learning_starts=8)

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        values = module.target(module.floats(batch["next_observations"]))
        if "next_action_mask" in batch:
            values = values.masked_fill(batch["next_action_mask"] == 0, -1e9)
        future = values.max(1).values * ~batch["terminated"] * ~batch["truncated"]
        return {"targets": batch["rewards"] + config.gamma * future}


def test_masks_of_next_actions_are_tried_where_no_episode_ends() -> None:
    passes("masks_of_next_actions_are_used", EndsAtTimeLimits)


# -- quantiles -------------------------------------------------------------------------------------


class QuantileModule(QLearningModule):
    """Three quantiles of each action's return."""

    def __init__(self, inputs: int, actions: int, width: int, epsilon: float) -> None:
        super().__init__(inputs, actions, width, epsilon)
        self.q = nn.Sequential(nn.Linear(inputs, width), nn.Tanh())  # type: ignore[assignment]
        self.head = QuantileHead(width, actions, atoms=3)
        del self.target

    def quantiles(self, observations: Any) -> Tensor:
        """Shape (n, actions, 3)."""
        outputs: Tensor = self.head(self.q(self.floats(observations)))
        return outputs.reshape(len(outputs), self.actions, 3)

    def greedy(self, observations: Any, mask: Any = None) -> Any:
        return self.quantiles(observations).mean(2).argmax(1).cpu().numpy()

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"quantiles": self.quantiles(batch["observations"])}


class Quantiles(QLearning):
    """One-step returns as quantiles."""

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        inputs, actions = spaces.flatdim(observation_space), spaces.flatdim(action_space)
        return QuantileModule(inputs, actions, config.width, config.epsilon)

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        return {"targets": batch["rewards"]}

    @staticmethod
    def pull(errors: Tensor, fractions: Tensor) -> Tensor:
        """The loss of each error, target minus quantile."""
        return (fractions - (errors.detach() < 0).to(errors)).abs() * errors.abs()

    def compute_loss_for_module(self, module: Any, batch: Batch, fwd_out: Any) -> Loss:
        rows = torch.arange(batch.rows)
        chosen = fwd_out["quantiles"][rows, batch["actions"].long()]
        errors = batch["targets"][:, None] - chosen
        return Loss(self.pull(errors, module.head.fractions.to(errors)).mean())

    def additional_update(self, module: Any, config: Any) -> None:
        module.epsilon.fill_(config.epsilon)


class WrongSide(Quantiles):
    """Pulls the q-th quantile up as it should be pulled down."""

    @staticmethod
    def pull(errors: Tensor, fractions: Tensor) -> Tensor:
        return (fractions - (errors.detach() > 0).to(errors)).abs() * errors.abs()


class AlikeBelow(Quantiles):
    """Pulls all quantiles down alike."""

    @staticmethod
    def pull(errors: Tensor, fractions: Tensor) -> Tensor:
        share = torch.where(errors.detach() < 0, 0.5 * torch.ones_like(errors), fractions)
        return share * errors.abs()


class AlikeAbove(Quantiles):
    """Pulls all quantiles up alike."""

    @staticmethod
    def pull(errors: Tensor, fractions: Tensor) -> Tensor:
        share = torch.where(errors.detach() > 0, 0.5 * torch.ones_like(errors), 1 - fractions)
        return share * errors.abs()


@pytest.mark.parametrize(
    ("plugin", "proportion", "side", "found", "wanted"),
    [
        (WrongSide, "q", "above", "0.2", "5"),
        (AlikeAbove, "q", "above", "1", "5"),
        (AlikeBelow, "1 - q", "below", "1", "0.2"),
    ],
)
def test_quantiles_that_are_pulled_wrongly_are_told(
    plugin: type[Any], proportion: str, side: str, found: str, wanted: str
) -> None:
    told = failure("errors_pull_values", plugin)
    assert told.looked_for == (
        f"gradients in proportion to {proportion} for the outputs of quantiles q, where targets "
        f"are far {side} them"
    )
    assert told.found == (
        f"{found} times as much for the highest q as for the lowest, not {wanted} times"
    )
    assert told.look_at.startswith(f"{plugin.__name__}.compute_loss_for_module (")
    assert told.look_at.endswith(": the sign of errors = target - quantile, and |q - (error < 0)|")


def test_quantiles_that_are_pulled_rightly_pass() -> None:
    passes("errors_pull_values", Quantiles)
    passes("errors_pull_values", Quantiles)
    assert passed_by("errors_pull_values", QLearning) == (
        "it has no rlplug.nn.QuantileHead, or gives no output of it"
    )


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


class SteepNear(LossOfErrors):
    """A Huber loss whose parts have other slopes at the threshold."""

    @staticmethod
    def loss_of(errors: Tensor) -> Tensor:
        near = errors.detach().abs() < 1
        return torch.where(near, 2 * errors**2, errors.abs())


class Repelled(LossOfErrors):
    """Values that flee from their targets."""

    @staticmethod
    def loss_of(errors: Tensor) -> Tensor:
        return -0.5 * errors**2


class Absolute(LossOfErrors):
    """Errors that all pull alike."""

    @staticmethod
    def loss_of(errors: Tensor) -> Tensor:
        return errors.abs()


@pytest.mark.parametrize("plugin", [SteepNear, Repelled])
def test_errors_that_pull_less_the_larger_they_are_are_told(plugin: type[Any]) -> None:
    told = failure("errors_pull_values", plugin)
    assert told.looked_for == "gradients of action values that fall as the target rises"
    found = re.fullmatch(
        "they rise by (.*), of at most (.*), where the rewards of last steps rise "
        "from (.*) to (.*)",
        told.found,
    )
    assert found is not None
    rise, largest, low, high = map(float, found.groups())
    assert 0 < rise < largest < 1e-2
    # In steps of half a reward; the slope falls where an error of 1 is left behind.
    assert high - low == 0.5
    assert plugin is Repelled or 0.5 <= abs(low + high) / 2 <= 1.5
    assert told.look_at.startswith(f"{plugin.__name__}.compute_loss_for_module (")
    assert told.look_at.endswith(
        ": the sign of the error; both parts of a Huber loss have the same slope at its threshold"
    )


@pytest.mark.parametrize("plugin", [LossOfErrors, Absolute])
def test_errors_that_pull_more_or_alike_pass(plugin: type[Any]) -> None:
    passes("errors_pull_values", plugin)


def test_what_gives_no_action_values_has_no_errors_that_pull() -> None:
    assert passed_by("errors_pull_values", PolicyGradient) == (
        "forward_train gives no q_values or quantiles that get gradients"
    )


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


class OtherKind(Kinds):
    """Takes the one for the other."""

    swapped: ClassVar[bool] = True


class HuberAlone(Kinds):
    """Knows one kind alone, whatever is asked for."""

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        return super().compute_loss_for_module(attrs.evolve(config, loss="huber"), batch, fwd_out)


class MseAlone(Kinds):
    """Knows the other one."""

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        return super().compute_loss_for_module(attrs.evolve(config, loss="mse"), batch, fwd_out)


@pytest.mark.parametrize(
    ("plugin", "growth", "name", "found"),
    [
        (OtherKind, 2, "mse", "1 times"),
        (HuberAlone, 2, "mse", "1 times"),
        (MseAlone, 1, "huber", "2 times"),
    ],
)
def test_losses_of_another_kind_than_they_are_named_are_told(
    plugin: type[Any], growth: int, name: str, found: str
) -> None:
    told = failure("loss_is_the_one_that_is_named", plugin)
    assert told.looked_for.startswith(
        f"gradients {growth} times as large for errors twice as large, with loss = {name!r}"
    )
    assert told.found == found
    assert told.look_at.startswith(f"{plugin.__name__}.compute_loss_for_module (")


def test_losses_that_are_what_they_are_named_pass() -> None:
    passes("loss_is_the_one_that_is_named", Kinds)
    assert passed_by("loss_is_the_one_that_is_named", QLearning) == (
        "it has no option loss = 'mse' or 'huber'"
    )


# -- conservative penalties ------------------------------------------------------------------------


class RaisesOthers(Kinds):
    """A penalty of the wrong sign."""

    def penalty(self, values: Tensor, chosen: Tensor, batch: Batch) -> Tensor:
        return -super().penalty(values, chosen, batch)


class RaisesUnmasked(RaisesOthers):
    """A penalty of the wrong sign where there is no mask."""

    def penalty(self, values: Tensor, chosen: Tensor, batch: Batch) -> Tensor:
        found = super().penalty(values, chosen, batch)
        return -found if "action_mask" in batch else found


class LowersMasked(Kinds):
    """Lowers actions that the mask forbids as well."""

    def penalty(self, values: Tensor, chosen: Tensor, batch: Batch) -> Tensor:
        return values.logsumexp(1) - chosen


class RaisesAlone(Kinds):
    """Lowers no action."""

    def penalty(self, values: Tensor, chosen: Tensor, batch: Batch) -> Tensor:
        return -chosen


class LowersAll(Kinds):
    """Lowers the actions that were taken most."""

    def penalty(self, values: Tensor, chosen: Tensor, batch: Batch) -> Tensor:
        return super().penalty(values, 0.0 * chosen, batch)


@pytest.mark.parametrize(
    "plugin",
    [RaisesOthers, RaisesUnmasked, LowersMasked, RaisesAlone, LowersAll],
)
def test_penalties_that_lower_other_actions_than_they_should_are_told(plugin: type[Any]) -> None:
    told = failure("conservative_penalty_lowers_other_actions", plugin)
    assert told.looked_for.startswith(
        "'q_values' that rise for actions taken and fall for all others that are allowed with "
        "cql_alpha = 100.0"
    )
    assert told.found.startswith("gradients of ")
    raised, lowered = map(float, told.found.removeprefix("gradients of ").split(" and "))
    assert (raised < 0) is (plugin not in (RaisesOthers, RaisesUnmasked, LowersAll))
    assert (lowered > 0) is (plugin not in (RaisesOthers, RaisesUnmasked, RaisesAlone))
    assert told.look_at.startswith(f"{plugin.__name__}.compute_loss_for_module (")
    assert told.look_at.endswith(
        ": log Σ exp Q(s, ·) − Q(s, a) over allowed actions, which is added to the loss"
    )


def test_penalties_that_lower_other_actions_pass() -> None:
    passes("conservative_penalty_lowers_other_actions", Kinds)
    assert passed_by("conservative_penalty_lowers_other_actions", QLearning) == (
        "it has no option cql_alpha"
    )
