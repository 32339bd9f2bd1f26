"""NeuralLinUCBModule: LinUCB on the features of a network, as of the last refit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rlplug import Acted, ActInput, Batch, LearnerView, Module
from rlplug.nn import Body, Network, NetworkOptions, QHead
from rlplug_linucb.arrays import Estimates, HasEstimates
from rlplug_linucb.config import LinUCBConfig, config_of
from rlplug_linucb.layout import Layout
from rlplug_linucb.linucb import Scores
from rlplug_linucb.module import LinUCBModule
from rlplug_linucb.neural.config import NeuralLinUCBConfig
from rlplug_linucb.neural.inputs import inputs_of, mask_in
from rlplug_linucb.neural.window import Kept

__all__ = ["DRAWN", "NeuralLinUCBModule"]

DRAWN = "drawn_"
"""Prefix of columns drawn from the buffer, with several rows for each new one."""


class NeuralLinUCBModule(HasEstimates, Module):
    """A bandit with a regression per arm on the last hidden layer of a network.

    Featured arms have an input each, the context and the arm side by side, and share a regression.

    Features come from `settled`, a frozen copy of the network's body that is updated only when the
    regressions are refitted: their sums and their predictions must be of the same features.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        num_arms: int,
        config: NeuralLinUCBConfig | None = None,
    ) -> None:
        super().__init__()
        config = config_of(NeuralLinUCBConfig, config)
        options = NetworkOptions(
            net_arch=config.net_arch,
            activation=config.activation,
            ortho_init=config.ortho_init,
            encoder=config.encoder,
        )
        self.inputs = inputs = inputs_of(observation_space, spaces.Discrete(num_arms))
        body = Body(inputs.space, options)
        self.network = Network(body, QHead(body.out_features, 1 if inputs.featured else num_arms))
        self.settled = Network(Body(inputs.space, options), nn.Sequential())
        self.settled.requires_grad_(False)
        self.update_frozen_copy()
        width = body.out_features + 1
        dims = (0, width) if inputs.featured else (width, 0)
        layout = Layout(num_arms=num_arms, context_dim=dims[0], arm_dim=dims[1])
        self.bandit = LinUCBModule(
            layout, LinUCBConfig(alpha=config.alpha, l2_lambda=config.l2_lambda)
        )

    # -- acting --------------------------------------------------------------------------------

    def forward_exploration(self, act: ActInput) -> Acted:
        """The arms of the highest upper confidence bound; ties are broken by `act.random`."""
        return self.bandit.forward_exploration(self._with_features(act))

    def action_probabilities(self, act: ActInput) -> Any:
        """1 over the number of arms that are tied for the highest bound, (n, arms)."""
        return self.bandit.action_probabilities(self._with_features(act))

    def forward_inference(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward; of equal ones, the first."""
        return self.bandit.forward_inference(self._with_features(act))

    def forward_export(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward, in torch."""
        inputs = self.inputs.read(act.observations)
        lead = inputs.shape[:2] if self.inputs.featured else inputs.shape[:1]
        hidden = self.settled.step(inputs.flatten(0, 1) if self.inputs.featured else inputs)[0]
        ones = torch.ones((*hidden.shape[:1], 1), dtype=torch.float64)
        features = torch.cat([hidden.double(), ones], 1).reshape(*lead, -1)
        mask = mask_in(act.observations, act.action_mask)
        return self.bandit.forward_export(ActInput(features, action_mask=mask))

    def score(
        self, observations: Any, alpha: float | None = None, action_mask: Any = None
    ) -> Scores:
        """Predicted reward, its standard deviation and the UCB of every arm of every row.

        Of absent arms the reward and the UCB are -inf, the deviation is 0.
        """
        features = self.features(observations)
        return self.bandit.score(features, alpha, mask_in(observations, action_mask))

    def choose(
        self,
        observations: Any,
        random: numpy.random.Generator,
        action_mask: Any = None,
        alpha: float | None = None,
    ) -> Any:
        """The actions of `forward_exploration`, one per row; `alpha` is that of this call."""
        features, mask = self.features(observations), mask_in(observations, action_mask)
        return self.bandit.choose(features, random, mask, alpha)

    def confidence_width(
        self, observations: Any, alpha: float | None = None, action_mask: Any = None
    ) -> Any:
        """By how much the UCB of every arm exceeds its predicted reward; 0 for absent arms."""
        features, mask = self.features(observations), mask_in(observations, action_mask)
        return self.bandit.confidence_width(features, alpha, mask)

    def estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta at once, of the regressions on the network's features."""
        return self.bandit.estimates()

    def features(self, observations: Any) -> Any:
        """The frozen copy's last hidden layer and a column of ones, (n, width + 1).

        For featured arms (n, arms, width + 1). A tensor for a tensor, an array for an array.
        """
        return self.features_of(self.inputs.read(observations))

    def features_of(self, inputs: Any) -> Any:
        """As `features`, of inputs of the network."""
        lead = inputs.shape[:2] if self.inputs.featured and inputs.ndim == 3 else inputs.shape[:1]
        hidden = self.settled.act(inputs.reshape(math.prod(lead), *inputs.shape[len(lead) :]))[0]
        features = numpy.ones((*lead, hidden.shape[1] + 1))
        features[..., :-1] = hidden.reshape(*lead, hidden.shape[1])
        return torch.from_numpy(features) if isinstance(inputs, Tensor) else features

    def learned_rows(self, rows: Kept) -> Kept:
        """Rows of the network's inputs as the regressions learn them.

        Featured arms share a regression: a row stands at the index 0 of all arms.
        """
        features = self.features_of(rows.observations)
        if self.inputs.featured:
            features = features[:, None].expand(-1, self.bandit.layout.num_arms, -1)
        return rows._replace(observations=features)

    def _with_features(self, act: ActInput) -> ActInput:
        mask = mask_in(act.observations, act.action_mask)
        features = self.features(act.observations)
        return ActInput(
            features,
            action_mask=mask,
            random=act.random,
            wants_log_prob=act.wants_log_prob,
        )

    # -- learning ------------------------------------------------------------------------------

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Predicted reward of every arm in the drawn contexts, or in those of the batch itself.

        Of featured arms only that of the chosen one, (n, 1). With cross-entropy they are logits.
        """
        if f"{DRAWN}observations" in batch:
            inputs = batch[f"{DRAWN}observations"].flatten(0, 1)
        else:
            inputs = self.inputs.chosen(batch["observations"], batch["actions"].reshape(-1).long())
        return {"values": self.network(inputs)}

    def update_frozen_copy(self) -> None:
        """Copy the network's weights into the frozen copy."""
        self.settled.body.load_state_dict(self.network.body.state_dict())

    def refit(self, rows: Kept, learner: LearnerView) -> None:
        """Update the frozen copy, and regress the rows of all learners on its features."""
        self.update_frozen_copy()
        bandit = self.bandit
        sums = bandit.statistics(*self.learned_rows(rows))
        if learner.world_size > 1:
            sums = learner.all_reduce(sums)
        bandit.discount_(0.0)
        bandit.absorb(sums, len(rows.actions))
