"""Neural LinUCB: its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from rlplug import Algorithm, Batch, LearnerView, UnsupportedSpaceError, hookimpl
from rlplug.bandits import BanditBatch
from rlplug.errors import RunFailedError
from rlplug.feeds import Stream
from rlplug.nn import make_encoder
from rlplug.seeding import forked
from rlplug.spaces import number_of_arms, whole_numbers
from rlplug_linucb.algorithm import prediction_metrics, update_across_learners
from rlplug_linucb.neural.config import NeuralLinUCBConfig
from rlplug_linucb.neural.inputs import inputs_of
from rlplug_linucb.neural.module import DRAWN, NeuralLinUCBModule
from rlplug_linucb.neural.window import Kept, Window

__all__ = ["NeuralLinUCB"]


class NeuralLinUCB(Algorithm):
    """LinUCB on the last hidden layer of a network that learns to predict rewards."""

    Config: ClassVar[type[NeuralLinUCBConfig]] = NeuralLinUCBConfig
    default_env: ClassVar[str] = "RingsBandit-v0"
    default_steps: ClassVar[int] = 20_000
    config: NeuralLinUCBConfig

    def feed(self) -> Stream:
        """Each row is learned from once its reward is known."""
        return Stream(steps_per_update=self.config.update_every, one_step_episodes=True)

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """Why these spaces are not supported; None if they are."""
        try:
            number_of_arms(action_space)
            inputs = inputs_of(observation_space, action_space)
            if not self.config.encoder:
                with forked(0):
                    make_encoder(inputs.space)
        except UnsupportedSpaceError as error:
            return error.message
        return None

    @hookimpl
    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        config: NeuralLinUCBConfig,
    ) -> NeuralLinUCBModule:
        """The untrained module."""
        return NeuralLinUCBModule(observation_space, number_of_arms(action_space), config)

    @hookimpl
    def build_extra(
        self, module: NeuralLinUCBModule, config: NeuralLinUCBConfig, seed: int
    ) -> Window:
        """The buffer of recent rows."""
        return Window(module.inputs.space, config.buffer_size, seed)

    @hookimpl
    def prepare_batch(
        self,
        module: NeuralLinUCBModule,
        extra: Window,
        config: NeuralLinUCBConfig,
        batch: Batch,
    ) -> Mapping[str, Tensor]:
        """Add the new rows to the buffer, and draw the rows of this gradient step."""
        rows = _rows(module, batch)
        if config.loss == "cross_entropy":
            _check_probabilities(rows.labels)
        extra.add(rows)
        # Each column has one entry per new row: here, several drawn rows.
        drawn = extra.draw((batch.rows, -(-config.batch_size // batch.rows)))
        return {f"{DRAWN}{name}": column for name, column in drawn._asdict().items()}

    @hookimpl
    def compute_loss_for_module(
        self,
        module: NeuralLinUCBModule,
        config: NeuralLinUCBConfig,
        batch: Batch,
        fwd_out: Mapping[str, Tensor],
    ) -> Tensor:
        """Weighted squared error, or cross-entropy, of the chosen arms' predicted rewards."""
        if f"{DRAWN}actions" in batch:
            rows = Kept(*(batch[f"{DRAWN}{name}"] for name in Kept._fields))
        else:
            rows = _rows(module, batch)
        _, actions, labels, weights = rows
        labels, weights = labels.reshape(-1), weights.reshape(-1)
        predicted = fwd_out["values"].gather(1, actions.reshape(-1, 1)).squeeze(1)
        if config.loss == "cross_entropy":
            losses = binary_cross_entropy_with_logits(predicted, labels, reduction="none")
            return (weights * losses).mean()
        errors = predicted - labels
        return (weights * errors * errors).mean()

    @hookimpl
    def additional_update(
        self,
        module: NeuralLinUCBModule,
        extra: Window,
        config: NeuralLinUCBConfig,
        batch: Batch,
        timestep: int,
        learner: LearnerView,
    ) -> Mapping[str, float]:
        """Learn the rows in closed form, or refit on all rows of the buffer."""
        bandit = module.bandit
        bandit.set_alpha(config.alpha)
        rows = _rows(module, batch)
        if timestep - extra.refitted >= config.refit_every:
            module.refit(extra.rows(), learner)
            extra.refitted = timestep
        else:
            learned = module.learned_rows(rows)
            if learner.world_size == 1:
                bandit.update(*learned)
            else:
                update_across_learners(bandit, learned, learner)
        return {**prediction_metrics(batch, rows.labels), **bandit.fallbacks()}


def _rows(module: NeuralLinUCBModule, batch: Batch) -> Kept:
    """The rows of the batch as inputs of the network; arms with inputs of their own are arm 0."""
    given: Any = BanditBatch.of(batch, read=batch.__getitem__, validate=False)
    labels = given.label.reshape(-1)
    weights = given.effective_weight if given.weighted else torch.ones_like(labels)
    actions = given.actions
    if actions.is_floating_point():
        actions = torch.from_numpy(whole_numbers(actions, "rlplug-linucb: arm"))
    actions = actions.reshape(-1).long().to(labels.device)
    inputs = module.inputs.chosen(batch["observations"], actions)
    arms = torch.zeros_like(actions) if module.inputs.featured else actions
    return Kept(inputs, arms, labels, weights.reshape(-1))


def _check_probabilities(labels: Tensor) -> None:
    outside = (labels < 0.0) | (labels > 1.0)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise RunFailedError(
            f"rlplug-linucb: the reward of row {row} is {float(labels[row])}, and cross-entropy "
            "takes 0 to 1.",
            "nothing was changed; try: loss = 'mse'",
        )
