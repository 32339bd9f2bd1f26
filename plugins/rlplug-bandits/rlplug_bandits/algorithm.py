"""The algorithms: their hooks, which differ in the module that is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium import spaces

from rlplug import Algorithm, Batch, LearnerView, UnsupportedSpaceError, hookimpl
from rlplug.bandits import BanditBatch
from rlplug.feeds import Stream
from rlplug.spaces import describe, number_of_arms, without_action_mask
from rlplug_bandits.config import (
    BanditOptions,
    EpsilonGreedyConfig,
    MetricUCBConfig,
    SoftmaxConfig,
    ThompsonConfig,
    UCB1Config,
)
from rlplug_bandits.counts import ArmCounts
from rlplug_bandits.randomized import EpsilonGreedyModule, SoftmaxModule
from rlplug_bandits.thompson import BetaThompsonModule, GaussianThompsonModule
from rlplug_bandits.ucb import MetricUCBModule, UCB1Module

__all__ = ["UCB1", "EpsilonGreedy", "MetricUCB", "Softmax", "Thompson"]

_UNTESTED = {
    "initial_value": "several environments at once may try every arm of the kit in their first step"
}
_LEARNED = ("actions", "rewards", "label", "weights", "importance_weight")


class _Bandit(Algorithm):
    """What all share: a stream of one-step episodes, and sums in place of gradients."""

    default_env: ClassVar[str] = "MultiArmedBandit-v0"
    default_steps: ClassVar[int] = 10_000
    config: BanditOptions

    Module: ClassVar[type[Any]]
    """Made from the number of arms and the options."""
    explores_by: ClassVar[str] = ""
    """The option that `exploration` of the module follows, by its schedule."""

    def feed(self) -> Stream:
        """Each row is learned from once, as soon as its reward is known."""
        return Stream(steps_per_update=self.config.update_every, one_step_episodes=True)

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """Why these spaces are not supported; None if they are."""
        try:
            check_arms(observation_space, action_space, self.config)
        except UnsupportedSpaceError as error:
            return error.message
        return None

    @hookimpl
    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: Any,
    ) -> ArmCounts:
        """The untrained module."""
        made: ArmCounts = self.module_for(config)(
            check_arms(observation_space, action_space, config), config
        )
        return made

    def module_for(self, config: Any) -> type[Any]:
        """The class of the module with these options."""
        return self.Module

    @hookimpl
    def configure_optimizers_for_module(self) -> None:
        """No optimizer: the update is in closed form."""

    @hookimpl
    def additional_update(
        self, module: Any, config: Any, batch: Batch, learner: LearnerView
    ) -> Mapping[str, float]:
        """Count the rows; metrics are of the means by which arms were chosen."""
        if self.explores_by:
            module.exploration.fill_(getattr(config, self.explores_by))
        columns = {name: batch.array(name) for name in _LEARNED if name in batch}
        rows = BanditBatch(validate=False, **columns)
        weights = rows.effective_weight if rows.weighted else None
        statistics = module.statistics(rows.actions, rows.label, weights)
        if learner.world_size > 1:
            statistics = learner.all_reduce(statistics)
        module.absorb(statistics)
        return _metrics(batch, rows.label)


class UCB1(_Bandit):
    """Chooses the arm of the highest upper confidence bound of its mean reward."""

    Config: ClassVar[type[Any]] = UCB1Config
    Module: ClassVar[type[Any]] = UCB1Module
    explores_by: ClassVar[str] = "alpha"


class MetricUCB(UCB1):
    """As UCB1, with a bound that is closer where mean rewards are low."""

    Config: ClassVar[type[Any]] = MetricUCBConfig
    Module: ClassVar[type[Any]] = MetricUCBModule


class Thompson(_Bandit):
    """Chooses the arm that is best under a draw from the posterior of the mean rewards."""

    Config: ClassVar[type[Any]] = ThompsonConfig
    variants: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"distribution": "gaussian"},
        {"distribution": "gaussian", "prior_mean": 5.0},
    )

    def module_for(self, config: ThompsonConfig) -> type[Any]:
        """By the distribution of rewards."""
        return BetaThompsonModule if config.distribution == "beta" else GaussianThompsonModule


class EpsilonGreedy(_Bandit):
    """Chooses the arm of the highest mean reward, and sometimes any."""

    Config: ClassVar[type[Any]] = EpsilonGreedyConfig
    Module: ClassVar[type[Any]] = EpsilonGreedyModule
    explores_by: ClassVar[str] = "epsilon"
    untested_options: ClassVar[Mapping[str, str]] = _UNTESTED


class Softmax(_Bandit):
    """Chooses arms with probabilities that grow exponentially with their mean rewards."""

    Config: ClassVar[type[Any]] = SoftmaxConfig
    Module: ClassVar[type[Any]] = SoftmaxModule
    explores_by: ClassVar[str] = "temperature"
    untested_options: ClassVar[Mapping[str, str]] = _UNTESTED


def check_arms(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    config: BanditOptions,
) -> int:
    """Number of arms; raises UnsupportedSpaceError for spaces that are not supported."""
    count = number_of_arms(action_space)
    if not config.ignore_context and has_features(observation_space):
        raise UnsupportedSpaceError(
            f"it chooses without a context, and observations are {describe(observation_space)}; "
            "in a bandit, ignore_context = true gives a baseline that does not read them."
        )
    return count


def has_features(space: gymnasium.Space[Any]) -> bool:
    """Whether observations can differ in more than their action mask."""
    space = without_action_mask(space)
    if isinstance(space, spaces.Dict):
        return any(map(has_features, space.values()))
    if isinstance(space, spaces.Discrete):
        return int(space.n) > 1
    return space.shape is None or 0 not in space.shape


def _metrics(batch: Batch, labels: Any) -> Mapping[str, float]:
    if "pred_label" not in batch:
        return {}
    predicted = batch.array("pred_label")
    errors = predicted - numpy.asarray(labels).reshape(-1)
    return {
        "progressive_error": float(numpy.vdot(errors, errors)) / len(errors),
        "predicted": float(predicted.mean()),
    }
