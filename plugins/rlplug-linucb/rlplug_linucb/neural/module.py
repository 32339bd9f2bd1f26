"""NeuralLinUCBModule: LinUCB on the features of a network, as of the last refit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from gymnasium import Space
from torch import Tensor, nn

from rlplug import Acted, ActInput, Batch, LearnerView, Module
from rlplug.config.schedule import resolve
from rlplug.nn import Body, Network, NetworkOptions, QHead
from rlplug_linucb.config import LinUCBConfig
from rlplug_linucb.estimates import Estimates, HasEstimates
from rlplug_linucb.layout import Layout, wrong_shape
from rlplug_linucb.linucb import Scores
from rlplug_linucb.module import LinUCBModule
from rlplug_linucb.neural.config import NeuralLinUCBConfig
from rlplug_linucb.neural.window import Kept

__all__ = ["DRAWN", "NeuralLinUCBModule", "context_in"]

DRAWN = "drawn_"
"""Prefix of columns drawn from the buffer, with several rows for each new one."""


class NeuralLinUCBModule(HasEstimates, Module):
    """A bandit with a regression per arm on the last hidden layer of a network.

    Features come from `settled`, a frozen copy of the network's body that is updated only when the
    regressions are refitted: their sums and their predictions must be of the same features.
    """

    def __init__(
        self,
        context_space: Space[Any],
        num_arms: int,
        config: NeuralLinUCBConfig | None = None,
    ) -> None:
        super().__init__()
        config = resolve(NeuralLinUCBConfig() if config is None else config, 0)
        options = NetworkOptions(
            net_arch=config.net_arch,
            activation=config.activation,
            ortho_init=config.ortho_init,
            encoder=config.encoder,
        )
        body = Body(context_space, options)
        self.context_shape = context_space.shape
        self.network = Network(body, QHead(body.out_features, num_arms))
        self.settled = Network(Body(context_space, options), nn.Sequential())
        self.settled.requires_grad_(False)
        self.update_frozen_copy()
        layout = Layout(num_arms=num_arms, context_dim=body.out_features + 1)
        self.bandit = LinUCBModule(
            layout, LinUCBConfig(alpha=config.alpha, l2_lambda=config.l2_lambda)
        )

    # -- acting --------------------------------------------------------------------------------

    def forward_exploration(self, act: ActInput) -> Acted:
        """The arms of the highest upper confidence bound; ties are broken by `act.random`."""
        return self.bandit.forward_exploration(self._with_features(act))

    def forward_inference(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward; of equal ones, the first."""
        return self.bandit.forward_inference(self._with_features(act))

    def score(
        self, observations: Any, alpha: float | None = None, action_mask: Any = None
    ) -> Scores:
        """Predicted reward, its standard deviation and the UCB of every arm of every row.

        Of absent arms the reward and the UCB are -inf, the deviation is 0.
        """
        features = self.features(context_in(observations))
        return self.bandit.score(features, alpha, _mask_in(observations, action_mask))

    def estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta at once, of the regressions on the network's features."""
        return self.bandit.estimates()

    def features(self, contexts: Any) -> Any:
        """The frozen copy's last hidden layer and a column of ones, (n, width + 1).

        A tensor for a tensor, an array for an array.
        """
        if contexts is None or contexts.shape[1:] != self.context_shape:
            raise wrong_shape("context", contexts, ("n", *(self.context_shape or ())))
        hidden = self.settled.act(contexts)[0]
        features = numpy.ones((len(hidden), hidden.shape[1] + 1))
        features[:, :-1] = hidden
        return torch.from_numpy(features) if isinstance(contexts, Tensor) else features

    def _with_features(self, act: ActInput) -> ActInput:
        mask = _mask_in(act.observations, act.action_mask)
        features = self.features(context_in(act.observations))
        return ActInput(features, action_mask=mask, random=act.random)

    # -- learning ------------------------------------------------------------------------------

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Predicted reward of every arm in the drawn contexts, or in those of the batch itself."""
        if f"{DRAWN}observations" in batch:
            contexts = batch[f"{DRAWN}observations"].flatten(0, 1)
        else:
            contexts = context_in(batch["observations"])
        return {"values": self.network(contexts)}

    def update_frozen_copy(self) -> None:
        """Copy the network's weights into the frozen copy."""
        self.settled.body.load_state_dict(self.network.body.state_dict())

    def refit(self, rows: Kept, learner: LearnerView) -> None:
        """Update the frozen copy, and regress the rows of all learners on its features."""
        self.update_frozen_copy()
        bandit = self.bandit
        features = self.features(rows.observations)
        sums = bandit.statistics(features, rows.actions, rows.labels, rows.weights)
        if learner.world_size > 1:
            sums = learner.all_reduce(sums)
        bandit.discount_(0.0)
        bandit.absorb(sums, len(rows.actions))


def context_in(observations: Any) -> Any:
    """The part of observations that the network reads."""
    return observations.get("context") if isinstance(observations, Mapping) else observations


def _mask_in(observations: Any, mask: Any) -> Any:
    """The mask, or else that of the observations."""
    if mask is None and isinstance(observations, Mapping):
        return observations.get("action_mask")
    return mask
