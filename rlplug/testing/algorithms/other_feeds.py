"""The small algorithms with other feeds: what an add-on finds in their batches differs."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rlplug import Batch
from rlplug.feeds import Replay, Rollout
from rlplug.testing.algorithms.policy_gradient import (
    PolicyGradient,
    PolicyGradientConfig,
    PolicyGradientModule,
)
from rlplug.testing.algorithms.q_learning import QLearning

__all__ = ["ReplayQLearning", "RolloutGradient"]


class RolloutGradient(PolicyGradient):
    """Actor-critic on rollouts: batches with fragments, without `next_observations`."""

    def feed(self) -> Rollout:
        """Two epochs over eight steps of every environment."""
        return Rollout(n_steps=8, batch_size=0, n_epochs=2)

    def prepare_batch(
        self, module: PolicyGradientModule, config: PolicyGradientConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """One-step targets and advantages, from one pass over the extended fragments."""
        extended = batch.extended()
        values, following = extended.split(module.values(extended["observations"]))
        targets = batch["rewards"] + config.gamma * following * ~batch["terminated"]
        return {"targets": targets, "advantages": targets - values}


class ReplayQLearning(QLearning):
    """Q-learning from a replay buffer: batches with `discounts`, drawn at random."""

    def feed(self) -> Replay:
        """Uniform batches of 32 from the last 2,000 transitions."""
        return Replay(buffer_size=2_000, batch_size=32, learning_starts=32, gamma=self.config.gamma)
