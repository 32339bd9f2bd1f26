"""Checks of target networks: copies that follow wrongly, or are read wrongly, and parts of them."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import attrs
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug import Batch, Loss, option
from rlplug.testing import Subject
from rlplug.testing.algorithms import (
    PolicyGradient,
    PolicyGradientConfig,
    QLearning,
    QLearningConfig,
    QLearningModule,
)
from rlplug.testing.cases import CASES
from rlplug.testing.checks.targets import frozen_copies
from rlplug.testing.harness import make_harness
from tests.faulty import failure, passed_by, passes

DISCRETE, BOX = (
    next(one for one in CASES if one.name == name and not one.one_step)
    for name in ("box, discrete", "box, box")
)

# -- how far a target moves ------------------------------------------------------------------------


# -- layers ----------------------------------------------------------------------------------------


def layers(inputs: int, width: int, outputs: int, **options: Any) -> nn.Sequential:
    """A network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs, **options))


# -- copies ----------------------------------------------------------------------------------------


class WithParts(QLearning):
    """Q-learning with parts that look like copies."""

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        module = super().build(observation_space, action_space, config)
        # Another start: no copy. And one that is trained.
        module.fixed = layers(4, config.width, 3).requires_grad_(False)
        module.twin = copy.deepcopy(module.q)
        return module


def test_copies_are_frozen_and_equal_what_they_follow() -> None:
    (found,) = frozen_copies(make_harness(Subject.of(QLearning), DISCRETE))
    assert (found.name, set(found.sources)) == ("target", {"q"})
    (found,) = frozen_copies(make_harness(Subject.of(WithParts), DISCRETE))
    assert (found.name, set(found.sources)) == ("target", {"q", "twin"})
    assert frozen_copies(make_harness(Subject.of(PolicyGradient), DISCRETE)) == []


class NeverCopied(QLearning):
    """Leaves its target as it was."""

    def additional_update(self, module: Any, config: Any) -> None:
        module.epsilon.fill_(config.epsilon)


class Wanders(QLearning):
    """Moves its target by chance."""

    def additional_update(self, module: Any, config: Any) -> None:
        module.epsilon.fill_(config.epsilon)
        with torch.no_grad():
            for param in module.target.parameters():
                param += 0.1 * torch.randn_like(param)


def test_targets_that_do_not_follow_are_told() -> None:
    passes("targets_follow", QLearning)
    told = failure("targets_follow", NeverCopied)
    assert (told.looked_for, told.found) == (
        "target networks that follow what is trained within 100 updates",
        "'target' is still as it was built",
    )
    assert told.look_at.startswith("NeverCopied.additional_update (")
    told = failure("targets_follow", Wanders)
    assert told.looked_for == "a target network 'target' that moves toward what it is a copy of"
    assert passed_by("targets_follow", PolicyGradient) == (
        "it keeps no frozen copy of a trained network"
    )


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


class ReadsNoTarget(QLearning):
    """Values next states with the network that is trained."""

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        values = module.q(module.floats(batch["next_observations"])).max(1).values
        return {"targets": batch["rewards"] + config.gamma * values * ~batch["terminated"]}


class OnlyChooses(QLearning):
    """Chooses with the target network, and values with the one that is trained."""

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        after = module.floats(batch["next_observations"])
        best = module.target(after).argmax(1, keepdim=True)
        values = module.q(after).gather(1, best)[:, 0]
        return {"targets": batch["rewards"] + config.gamma * values * ~batch["terminated"]}


class Both(nn.Module):
    """Two networks with the values of all actions."""

    def __init__(self, inputs: int, actions: int, width: int) -> None:
        super().__init__()
        self.one, self.other = (layers(inputs, width, actions) for _ in range(2))

    def forward(self, rows: Tensor) -> Tensor:
        """The lower values."""
        return torch.minimum(self.one(rows), self.other(rows))


class TakesTheLower(QLearning):
    """Two critics."""

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        inputs, actions = spaces.flatdim(observation_space), spaces.flatdim(action_space)
        module = QLearningModule(inputs, actions, config.width, config.epsilon)
        module.q = Both(inputs, actions, config.width)  # type: ignore[assignment]
        module.target = copy.deepcopy(module.q).requires_grad_(False)
        return module

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        after = module.floats(batch["next_observations"])
        values = self.of_both(module.target.one(after), module.target.other(after)).max(1).values
        return {"targets": batch["rewards"] + config.gamma * values * ~batch["terminated"]}

    def compute_loss_for_module(self, module: Any, batch: Batch) -> Loss:  # type: ignore[override]
        rows, actions = module.floats(batch["observations"]), batch["actions"].long()[:, None]
        both = [critic(rows).gather(1, actions)[:, 0] for critic in (module.q.one, module.q.other)]
        return Loss(sum(((one - batch["targets"]) ** 2).mean() for one in both))  # type: ignore[arg-type]

    @staticmethod
    def of_both(one: Tensor, other: Tensor) -> Tensor:
        """The values of next states."""
        return torch.minimum(one, other)


class TakesTheHigher(TakesTheLower):
    """Believes the critic that promises more."""

    @staticmethod
    def of_both(one: Tensor, other: Tensor) -> Tensor:
        return torch.maximum(one, other)


@pytest.mark.parametrize(
    ("plugin", "looked_for", "found", "hint"),
    [
        (
            ReadsNoTarget,
            "another update for other weights of the target network 'target' in 'box, discrete'",
            "the same one: nothing reads it",
            "value next states with the target network",
        ),
        (
            OnlyChooses,
            "next states valued by the target network 'target' in 'box, discrete'",
            "the same update where all its values are higher: it only chooses actions",
            "double Q-learning chooses with the trained network, and values with the target "
            "network",
        ),
        (
            TakesTheHigher,
            "next states valued by the lower of the values that 'target' gives in 'box, discrete'",
            "by the higher one: what a lower one says makes no difference",
            "torch.minimum of both; the higher one overestimates",
        ),
    ],
)
def test_targets_that_are_not_used_as_they_should_be_are_told(
    plugin: type[Any], looked_for: str, found: str, hint: str
) -> None:
    told = failure("targets_are_used", plugin)
    assert (told.looked_for, told.found) == (looked_for, found)
    assert told.look_at.startswith(f"{plugin.__name__}.prepare_batch (")
    assert told.look_at.endswith(f"): {hint}")


def test_targets_that_value_next_states_pass() -> None:
    passes("targets_are_used", QLearning)
    passes("targets_are_used", TakesTheLower)
    assert passed_by("targets_are_used", PolicyGradient) == (
        "it keeps no frozen copy of a trained network, or values no next state"
    )


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


def test_what_has_no_delay_is_passed_by() -> None:
    assert passed_by("policy_is_delayed", PolicyGradient) == "it has no option policy_delay"
